// Attention, backward: the gradients of queries, keys, values, alphas and an additive mask.

#pragma once

#include "attention_tile.h"
#include "gradients.h"

namespace {

constexpr int MARKS = 16;  // keys whose marks share one integer, one bit per key
// From this many entries per key on, gradients of keys and values are summed key by key.
constexpr double BY_COLUMNS = 3;
constexpr int64_t ENTRIES_PER_STEP = 4096;  // with more entries, N rows are computed at a time
// With more than FAR_BYTES of keys or values and more than LONG_LIST entries per list on average,
// lists are read in passes over KEYS_PER_PASS keys, which stay in the cache.
constexpr int64_t FAR_BYTES = 1 << 18, LONG_LIST = 64, KEYS_PER_PASS = 256;

template <class T> class AttentionBackward : AttentionTile<T> {
    using Base = AttentionTile<T>;
    using Base::call, Base::tiles, Base::width, Base::value_width, Base::drops, Base::N;
    using Base::prefetcher, Base::counts, Base::stats, Base::layout, Base::saved_offset;
    using Base::tile, Base::alpha, Base::queries, Base::scores, Base::keys, Base::values;

  public:
    explicit AttentionBackward(const AttentionCall& call) : Base(call), sharing(call) {}

    // Compute the parts [first, last) of all key heads. If heads or batch elements share the
    // gradient of a mask, a part comprises all of them.
    void run(int64_t first, int64_t last) {
        Arena::allocate([&](Arena& arena) { allocate(arena); });
        const int64_t group = sharing.batch * sharing.heads;
        for (int64_t number = first * group; number < last * group; number++) {
            const Part now = part_of(number);
            const int64_t to = now.number * call.batch + now.batch;
            T* const of_keys = row_of<T>(call.key_grad, to, now.head, 0);
            T* const of_values = row_of<T>(call.value_grad, to, now.head, 0);
            const bool whole_keys = call.size == width && call.key_grad.row == width;
            const bool whole_values = this->has_whole_vectors(call.value_grad);
            key_grads = whole_keys ? of_keys : key_grad_copy;
            value_grads = whole_values ? of_values : value_grad_copy;
            zero(key_grads, call.keys * width), zero(value_grads, call.keys * value_width);
            // Each part takes every splits-th tile, because the last tiles of causal attention take
            // the most work.
            for (int64_t g = 0; g < call.group; g++)
                for (int64_t i = now.number; i < tiles; i += call.splits) {
                    if (!this->begin(this->tile_index(now.batch, now.head * call.group + g, i)))
                        value_panel_rows = {};
                    prefetch(now, number, g, i);
                    compute_tile(now.number);
                }
            if (!whole_keys)
                store_rows(key_grads, width, call.keys, call.size, (T)1, of_keys,
                           call.key_grad.row);
            if (!whole_values)
                store_rows(value_grads, value_width, call.keys, call.value_size, (T)1, of_values,
                           call.value_grad.row);
        }
    }

  private:
    const MaskSharing sharing;
    ReadyRows value_panel_rows;
    const T* upstream;  // gradient of the output [rows, value_width]
    T *value_panels, *upstream_copy;
    T* weight_grads;  // [rows, span]
    T* slope_grad;    // for each row of the tile, or null
    T *query_grads, *key_grad_copy, *value_grad_copy;
    T *key_grads, *value_grads;  // the results themselves, or copies

    // The tile's supports as CSR rows: list r has the entries [starts[r], starts[r + 1]).
    int64_t starts[MAX_TILE_ROWS + 1], total;
    struct Lists {
        int32_t *index, *row;
        T *weight, *weight_grad, *score_grad;
        T *slope, *curvature;  // scratch
    } lists;
    uint16_t* marks;  // [keys / MARKS][MAX_TILE_ROWS]: a bit for each entry of the supports

    int64_t lists_size() const {
        const int64_t computed = (int64_t)(DENSE_BACKWARD * (double)(call.tile_rows * call.keys));
        return max(computed, call.tile_rows * call.capacity) + call.keys + N;
    }
    void allocate(Arena& arena) {
        Base::allocate(arena);
        arena.take(value_panels, panels_size<T>(call.keys, call.value_size));
        arena.take(weight_grads, this->scores_size());
        arena.take(upstream_copy, call.tile_rows * value_width);
        arena.take(query_grads, call.tile_rows * width);
        arena.take(key_grad_copy, call.keys * width);
        arena.take(value_grad_copy, call.keys * value_width);
        arena.take(marks, (call.keys + MARKS - 1) / MARKS * MAX_TILE_ROWS);
        const int64_t size = lists_size();
        arena.take(lists.index, size), arena.take(lists.row, size);
        arena.take(lists.weight, size), arena.take(lists.weight_grad, size);
        arena.take(lists.score_grad, size);
        arena.take(lists.slope, size), arena.take(lists.curvature, size);
    }
    static void zero(T* p, int64_t n) {
        for (int64_t i = 0; i < n; i += N) store(p + i, Vec<T>{});
    }

    // One of the parts into which the tiles of a key head are divided.
    struct Part {
        int64_t number, batch, head;
    };
    Part part_of(int64_t number) const {
        const int64_t group = sharing.batch * sharing.heads, own = number / group / call.splits;
        const int64_t within = number % group, head_groups = call.key_heads / sharing.heads;
        return {number / group % call.splits, own / head_groups + within / sharing.heads,
                own % head_groups + within % sharing.heads};
    }

    // Prefetch what this tile writes and the next one reads; i is the index of the tile in head g
    // of the part.
    void prefetch(const Part& now, int64_t number, int64_t g, int64_t i) {
        this->prefetch_rows(call.query_grad, tile.batch, tile.head, tile.first_row, tile.rows,
                            call.size, true);
        if (i + call.splits < tiles)
            return prefetch_tile(this->tile_index(now.batch, tile.head, i + call.splits));
        if (g + 1 < call.group)
            return prefetch_tile(this->tile_index(now.batch, tile.head + 1, now.number));
        if (call.keys <= MAX_TILE_ROWS) {
            const int64_t to = now.number * call.batch + now.batch;
            this->prefetch_rows(call.key_grad, to, now.head, 0, call.keys, call.size, true);
            this->prefetch_rows(call.value_grad, to, now.head, 0, call.keys, call.value_size, true);
        }
        if (number + 1 >= call.batch * call.key_heads * call.splits) return;
        const Part next = part_of(number + 1);
        prefetch_tile(this->tile_index(next.batch, next.head * call.group, next.number));
    }
    void prefetch_tile(const TileIndex& next) {
        this->prefetch_queries(next);
        this->prefetch_rows(call.grad, next.batch, next.head, next.first_row, next.rows,
                            call.value_size, false);
        prefetch_saved(next);
        this->prefetch_keys(next);
    }
    void prefetch_saved(const TileIndex& next) {
        int64_t entries = 0;
        for (int64_t r = 0; r < next.rows; r++) entries += counts(next)[r];
        const int64_t from = saved_offset(next);
        if (this->saves_weights(next, entries)) {
            prefetcher.add((T*)call.weight + from, 0, 1, next.rows * next.keys * (int64_t)sizeof(T),
                           false);
        } else if (this->saves_lists(next, entries)) {
            prefetcher.add((T*)call.weight + from, 0, 1, entries * (int64_t)sizeof(T), false);
            prefetcher.add(call.columns + from, 0, 1, entries * (int64_t)sizeof(int32_t), false);
        }
    }

    void load_upstream() {
        const T* from = row_of<T>(call.grad, tile.batch, tile.head, tile.first_row);
        upstream = this->has_whole_vectors(call.grad) ? from : upstream_copy;
        if (upstream != from)
            load_rows(from, call.grad.row, tile.rows, call.value_size, (T)1, value_width,
                      upstream_copy);
    }

    void compute_tile(int64_t part) {
        const int64_t rows = tile.rows;
        T* query_grad = row_of<T>(call.query_grad, tile.batch, tile.head, tile.first_row);
        const int64_t first = tile.row_of_heads * call.queries + tile.first_row;
        T* alpha_grad = call.alpha_grad ? (T*)call.alpha_grad + first : nullptr;
        slope_grad = call.slope_grad ? (T*)call.slope_grad + first : nullptr;
        if (tile.keys == 0) {
            for (int64_t r = 0; r < rows; r++) {
                fill_row(query_grad + r * call.query_grad.row, call.size, (T)0);
                if (alpha_grad) alpha_grad[r] = 0;
                if (slope_grad) slope_grad[r] = 0;
            }
            return;
        }
        this->load_queries();
        load_upstream();
        starts[0] = 0;
        for (int64_t r = 0; r < rows; r++) starts[r + 1] = starts[r] + counts(tile)[r];
        total = starts[rows];
        const T* saved = (const T*)call.weight + (call.columns ? saved_offset(tile) : 0);
        if (this->saves_weights(tile, total)) {
            backward_dense(saved, alpha_grad, part);
        } else if (this->saves_lists(tile, total)) {
            if (call.slopes) set_window_of(call.columns + saved_offset(tile));
            backward_sparse(call.columns + saved_offset(tile), saved, alpha_grad, part);
        } else {
            if (!this->compute_window()) this->compute_scores();
            const AlphaParams<T> f = alpha_params<T>(alpha, tile.span, MAPS);
            for (int64_t r = 0; r < rows; r++)
                entmax_weights(f, stats() + r * STATS, tile.span, scores + r * tile.span);
            if (!this->is_denser(tile, total, DENSE_BACKWARD) && compress_rows())
                backward_sparse(lists.index, lists.weight, alpha_grad, part);
            else
                backward_dense(scores, alpha_grad, part);
        }
        store_rows(query_grads, width, rows, call.size, (T)call.scale, query_grad,
                   call.query_grad.row);
    }

    // Narrow the tile to the keys of its lists.
    void set_window_of(const int32_t* index) {
        int64_t begin = tile.keys, end = 0;
        for (int64_t r = 0; r < tile.rows; r++)
            if (starts[r + 1] > starts[r])
                begin = min(begin, (int64_t)index[starts[r]]),
                end = max(end, (int64_t)index[starts[r + 1] - 1] + 1);
        if (end > begin) tile.begin = begin, tile.span = end - begin;
    }

    // Compress all rows of recomputed weights; return false if they don't fit. Their lengths may
    // differ from the saved counts: tiny weights may round to zero in only one of the two
    // computations.
    bool compress_rows() {
        for (int64_t r = 0; r < tile.rows; r++) {
            const int64_t at = starts[r];
            if (at + tile.span + N > lists_size()) return false;
            starts[r + 1] = at + this->compress_row(scores + r * tile.span, lists.index + at,
                                                    lists.weight + at);
        }
        total = starts[tile.rows];
        return true;
    }

    // Return where to add the gradient of the tile's part of the mask.
    T* mask_grad(int64_t part) const {
        const int64_t* strides = call.mask_grad_strides;
        return (T*)call.mask_grad + part * strides[0] + tile.batch * strides[1] +
               tile.head * strides[2] + tile.first_row * strides[3];
    }
    void add_mask_grad(int64_t part) const {
        const int64_t of_query = call.mask_grad_strides[3], of_key = call.mask_grad_strides[4];
        for (int64_t r = 0; r < tile.rows; r++) {
            T *const to = mask_grad(part) + r * of_query, *const from = scores + r * tile.keys;
            if (of_key == 1)
                for (int64_t j = 0; j < tile.keys; j++) to[j] += from[j];
            else
                for (int64_t j = 0; j < tile.keys; j++) to[j * of_key] += from[j];
        }
    }

    // Compute all gradients as matrix products. The gradients of the scores replace the scores.
    void backward_dense(const T* weights, T* alpha_grad, int64_t part) {
        const int64_t rows = tile.rows, n = tile.span;
        this->prepare_keys();
        prefetcher.pace_over(2 * product_units<T>(n, width) + product_units<T>(rows, width + n));
        const T* dropped = weights;
        if (drops) {
            for (int64_t r = 0; r < rows; r++)
                this->drop_row(weights + r * n, r, weight_grads + r * n);
            dropped = weight_grads;
        }
        multiply<true, T>({dropped, 1, n}, {upstream, value_width}, n, rows, value_width,
                          value_grads + tile.begin * value_width, prefetcher);
        const T* panels =
            this->pack_panels(call.value, value_panel_rows, value_panels, call.value_size);
        multiply_panels<T>({upstream, value_width, 1}, panels, rows, call.value_size, weight_grads,
                           n, n, prefetcher);
        for (int64_t r = 0; r < rows && drops; r++)
            this->drop_row(weight_grads + r * n, r, weight_grads + r * n);
        const MapGradientCall gradient{layout(), weights, weight_grads, scores, alpha_grad};
        map_gradient_range<T, T>(gradient, 0, rows);
        if (call.mask_grad) add_mask_grad(part);
        for (int64_t r = 0; r < rows && slope_grad; r++) slope_grad[r] = slope_gradient(r);
        multiply<false>({scores, n, 1}, this->from_begin(keys), rows, n, width, query_grads,
                        prefetcher);
        multiply<true, T>({scores, 1, n}, {queries, width}, n, rows, width,
                          key_grads + tile.begin * width, prefetcher);
    }

    // Return the gradient of a row's slope, from the gradients of its scores or of its list.
    T slope_gradient(int64_t r) const {
        Vec<T> distance = this->distances(r), total = {};
        for (int64_t j = 0; j < tile.span; j += N, distance += (T)N)
            total -= absolute(distance) * load_row(scores + r * tile.span, j, tile.span, (T)0);
        return sum<T>(total);
    }
    T slope_gradient(int64_t r, const int32_t* index) const {
        T total = 0;
        for (int64_t k = starts[r]; k < starts[r + 1]; k++)
            total -= std::fabs((T)(this->position(r) - index[k])) * lists.score_grad[k];
        return total;
    }

    bool by_columns() const { return (double)total > BY_COLUMNS * (double)tile.span; }

    // Call visit(row, from, to) for every list. If the keys don't fit into the cache, visit the
    // lists in parts, starting with the entries of the first KEYS_PER_PASS keys.
    template <class Visit>
    void for_each_list(const int32_t* index, int64_t key_width, Visit&& visit) {
        const int64_t n = tile.span, end = tile.begin + n;
        const bool passes =
            n * key_width * (int64_t)sizeof(T) > FAR_BYTES && total > tile.rows * LONG_LIST;
        int64_t next[MAX_TILE_ROWS];
        for (int64_t r = 0; r < tile.rows; r++) next[r] = starts[r];
        for (int64_t first = tile.begin, step = passes ? KEYS_PER_PASS : n; first < end;
             first += step)
            for (int64_t r = 0; r < tile.rows; r++) {
                const int64_t from = next[r], last = starts[r + 1];
                int64_t to = passes ? from : last;
                while (to < last && index[to] < first + step) to++;
                if (to > from) visit(r, from, to);
                next[r] = to;
            }
    }

    // Compute all gradients as sums over the lists.
    void backward_sparse(const int32_t* index, const T* weight, T* alpha_grad, int64_t part) {
        const int64_t rows = tile.rows;
        this->prepare_keys(), this->prepare_values();
        const bool long_lists = total > rows * N;  // lists are longer than a vector on average
        prefetcher.pace_over((long_lists ? rows : (total + N - 1) / N) +
                             (by_columns() ? tile.span : rows) + rows);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = starts[r]; k < starts[r + 1]; k++) lists.row[k] = (int32_t)r;
        if (long_lists) {
            for_each_list(index, value_width, [&](int64_t r, int64_t from, int64_t to) {
                prefetcher.advance(1);
                sddmm_row(index + from, to - from, upstream + r * value_width, values, value_width,
                          lists.weight_grad + from);
            });
        } else {
            sddmm_rows<T>(lists.row, index, total, {upstream, value_width}, values, value_width,
                          lists.weight_grad, prefetcher);
        }
        if (drops) drop_lists(index, lists.weight_grad, lists.weight_grad);
        score_gradients(weight, alpha_grad);
        if (call.mask_grad) {
            const int64_t of_query = call.mask_grad_strides[3], of_key = call.mask_grad_strides[4];
            T* const to = mask_grad(part);
            for (int64_t k = 0; k < total; k++)
                to[lists.row[k] * of_query + index[k] * of_key] += lists.score_grad[k];
        }
        for (int64_t r = 0; r < rows && slope_grad; r++) slope_grad[r] = slope_gradient(r, index);
        const T* dropped = weight;
        if (drops) drop_lists(index, weight, lists.curvature), dropped = lists.curvature;
        if (by_columns()) {
            scatter_lists(index, dropped);
            add_columns();
        } else {
            scatter_add_rows(index, dropped);
        }
        zero(query_grads, rows * width);
        for_each_list(index, width, [&](int64_t r, int64_t from, int64_t to) {
            prefetcher.advance(1);
            spmm_row<true>(index + from, lists.score_grad + from, to - from, keys, width,
                           query_grads + r * width);
        });
    }

    void drop_lists(const int32_t* index, const T* from, T* to) const {
        for (int64_t r = 0; r < tile.rows; r++)
            this->drop_list(index + starts[r], from + starts[r], starts[r + 1] - starts[r], r,
                            to + starts[r]);
    }

    // Compute the gradients of scores and alphas from the gradients of the lists' weights.
    void score_gradients(const T* weight, T* alpha_grad) {
        const AlphaParams<T> f = alpha_params<T>(alpha, tile.span, MAPS);
        const int64_t rows = tile.rows, step = total > ENTRIES_PER_STEP ? N : rows;
        for (int64_t first = 0; first < rows; first += step) {
            const int64_t some = min(step, rows - first);
            T* const dalpha = alpha_grad ? alpha_grad + first : nullptr;
            DISPATCH_KIND(f.kind, gradient_of_csr_rows<K>(weight, lists.weight_grad, starts + first,
                                                          some, f, lists.score_grad, dalpha,
                                                          lists.slope, lists.curvature))
        }
    }

    // Add the gradients of keys and values list by list.
    void scatter_add_rows(const int32_t* index, const T* weight) {
        for (int64_t r = 0; r < tile.rows; r++) {
            const int64_t from = starts[r], n = starts[r + 1] - from;
            prefetcher.advance(1);
            scatter_add_row(index + from, weight + from, n, upstream + r * value_width, value_width,
                            value_grads);
            scatter_add_row(index + from, lists.score_grad + from, n, queries + r * width, width,
                            key_grads);
        }
    }

    // Prepare the gradients of keys and values key by key: scatter the lists into `scores`
    // (weights) and `weight_grads` (gradients of scores), and mark the entries. add_columns sums
    // each marked column.
    void scatter_lists(const int32_t* index, const T* weight) const {
        const int64_t n = tile.span;
        std::memset(marks, 0, (size_t)((n + MARKS - 1) / MARKS * MAX_TILE_ROWS) * sizeof(uint16_t));
        for (int64_t k = 0; k < total; k++) {
            const int64_t r = lists.row[k], j = index[k] - tile.begin;
            scores[r * n + j] = weight[k], weight_grads[r * n + j] = lists.score_grad[k];
            marks[j / MARKS * MAX_TILE_ROWS + r] |= (uint16_t)(1u << j % MARKS);
        }
    }
    void add_columns() {
        const int64_t n = tile.span;
        T* const to_value = value_grads + tile.begin * value_width;
        T* const to_key = key_grads + tile.begin * width;
        for (int64_t first = 0; first < n; first += MARKS) {
            const uint16_t* rows = marks + first / MARKS * MAX_TILE_ROWS;
            for (int64_t j = first; j < min(first + MARKS, n); j++) {
                const uint64_t column = column_mask<T>(rows, (int)(j - first));
                prefetcher.advance(1);
                if (!column) continue;
                masked_row_sum(column, scores + j, n, upstream, value_width,
                               to_value + j * value_width);
                masked_row_sum(column, weight_grads + j, n, queries, width, to_key + j * width);
            }
        }
    }
};

template <class T>
void attention_gradient_range(const AttentionCall& call, int64_t first, int64_t last) {
    AttentionBackward<T>(call).run(first, last);
    release_scratch(SCRATCH_LIMIT, FOR_TILES);
}

}  // namespace
