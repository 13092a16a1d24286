// Shared by forward and backward of attention: tiles of queries, their scores, lists and dropout.
//
// Most weights are zero, and products with them need not be computed. Only the scores are computed
// as a product of whole matrices. A tile of scores fits into the core's cache. There its rows
// become weights, and then lists of the keys in the support. Output and gradients are sums over
// these lists, with as few instructions per entry as a dense product takes. If the supports are
// large, dense matrix products are faster and are used instead.

#pragma once

#include "dropout.h"
#include "maps.h"
#include "matmul.h"

namespace {

constexpr int MAX_TILE_ROWS = 64;
// The density of a tile's supports above which dense products are faster, forward and backward.
constexpr double DENSE = 0.75, DENSE_BACKWARD = 0.4;
// From this x on, exp(-x) is 0 in double or float.
template <class T> constexpr double UNDERFLOW_AT = sizeof(T) == 8 ? 746 : 104;

template <class T> INLINE int64_t whole_vectors(int64_t n) { return num_vectors<T>(n) * LANES<T>; }

template <class T> INLINE T* row_of(const Heads& x, int64_t batch, int64_t head, int64_t row) {
    return (T*)x.memory + batch * x.batch + head * x.head + row * x.row;
}

// Copy rows of `size` entries times a factor into rows of `width` entries, padded with zeros.
template <class T>
INLINE void load_rows(const T* from, int64_t stride, int64_t rows, int64_t size, T factor,
                      int64_t width, T* to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += LANES<T>)
            store(to + r * width + i, load_row(from + r * stride, i, size, (T)0) * factor);
}

// Copy the first `size` entries of rows of `width` entries, times a factor, into a tensor.
template <class T>
INLINE void store_rows(const T* from, int64_t width, int64_t rows, int64_t size, T factor, T* to,
                       int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i += LANES<T>)
            store_row(to + r * stride, i, size, load(from + r * width + i) * factor);
}

// Buffers in one piece of scratch memory. `request` runs twice: first to add up the sizes, then to
// set the addresses.
class Arena {
  public:
    template <class T> void take(T*& buffer, int64_t count) {
        buffer = (T*)(base + used);
        used += (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    }
    template <class Request> static void allocate(Request&& request) {
        Arena arena;
        request(arena);
        arena.base = (char*)scratch_memory(arena.used, FOR_TILES);
        arena.used = 0;
        request(arena);
    }

  private:
    char* base = nullptr;
    int64_t used = 0;
};

// The range of a table's rows that are already computed. It grows to the rows that tiles need.
struct ReadyRows {
    int64_t begin = 0, end = 0;

    // Call compute(first, last) for the rows of [from, to) that are not ready. The range starts
    // anew if a window has moved so far that these rows are not adjacent to it.
    template <class Compute> void extend(int64_t from, int64_t to, Compute&& compute) {
        if (from > end || to < begin) begin = end = from;
        if (from < begin) compute(from, begin), begin = from;
        if (to > end) compute(end, to), end = to;
    }
};

// The queries of a tile, and the number of keys that they may attend to.
struct TileIndex {
    int64_t batch = -1, head = -1, key_head = -1;
    int64_t row_of_heads;     // row of tensors [batch * heads, ...]
    int64_t first_row, rows;  // queries
    int64_t length;           // number of keys in the sequence
    int64_t keys;             // keys that the tile may attend to: fewer if causal
    int64_t begin, span;      // the part of these keys that is computed, see compute_window
};

template <class T> class AttentionTile {
  protected:
    static constexpr int N = LANES<T>;

    const AttentionCall& call;
    const int64_t heads, tiles;        // number of query heads; tiles per head
    const int64_t width, value_width;  // sizes of keys and values, rounded up to whole vectors
    const uint32_t keep_limit;         // entries with a draw below this are kept
    const T keep_scale;
    const bool drops, few_queries;

    TileIndex tile;
    double alpha;
    T slope;             // a score is reduced by slope times the distance of its key
    double largest_key;  // bound of the key norms in the first `bounded` blocks
    int64_t bounded;
    ReadyRows panel_rows, key_rows, value_rows;
    Table<T> keys, values;  // [keys, width] and [keys, value_width]
    T *key_copy, *value_copy, *key_panels;
    T *queries, *scores;
    Prefetcher prefetcher;

    explicit AttentionTile(const AttentionCall& call)
        : call(call),
          heads(call.key_heads * call.group),
          tiles((call.queries + call.tile_rows - 1) / call.tile_rows),
          width(whole_vectors<T>(call.size)),
          value_width(whole_vectors<T>(call.value_size)),
          keep_limit(keep_below(call.keep_prob)),
          keep_scale((T)(1 / call.keep_prob)),
          drops(call.keep_prob != 1),
          few_queries(call.queries < MIN_PANEL_QUERIES) {}

    int64_t scores_size() const { return call.tile_rows * call.keys + N; }

    void allocate(Arena& arena) {
        arena.take(key_copy, call.keys * width);
        arena.take(value_copy, call.keys * value_width);
        arena.take(key_panels, panels_size<T>(call.keys, call.size));
        arena.take(queries, call.tile_rows * width);
        arena.take(scores, scores_size());
    }

    TileIndex tile_index(int64_t b, int64_t h, int64_t number) const {
        const int64_t first = number * call.tile_rows,
                      rows = min(call.tile_rows, call.queries - first);
        const int64_t length = call.lengths ? call.lengths[b] : call.keys;
        const int64_t end = call.causal ? max((int64_t)0, first + rows + call.offset) : length,
                      keys = min(length, end);
        return {b, h, h / call.group, b * heads + h, first, rows, length, keys, 0, keys};
    }
    bool has_same_keys(const TileIndex& other) const {
        return other.batch == tile.batch && other.key_head == tile.key_head;
    }
    // Start a tile; return whether it has the same keys as the previous tile.
    bool begin(const TileIndex& next) {
        const bool same = has_same_keys(next);
        if (!same) panel_rows = key_rows = value_rows = {}, largest_key = bounded = 0;
        tile = next;
        const int64_t at = tile.batch * call.alpha_strides[0] + tile.head * call.alpha_strides[1];
        alpha = call.alphas ? (double)((const T*)call.alphas)[at] : call.alpha;
        slope = 0;
        if (call.slopes)
            slope = ((const T*)call.slopes)[tile.batch * call.slope_strides[0] +
                                            tile.head * call.slope_strides[1]];
        prefetcher.clear();
        return same;
    }

    // Return keys or values as rows of whole vectors: in place, or copied as far as the tile needs
    // them.
    Table<T> table(const Heads& x, ReadyRows& ready, T* copy, int64_t size, int64_t width) const {
        const T* from = row_of<T>(x, tile.batch, tile.key_head, 0);
        if (size == width && (few_queries || x.row == width)) return {from, x.row};
        ready.extend(tile.begin, tile.begin + tile.span, [&](int64_t first, int64_t last) {
            load_rows(from + first * x.row, x.row, last - first, size, (T)1, width,
                      copy + first * width);
        });
        return {copy, width};
    }
    void prepare_keys() { keys = table(call.key, key_rows, key_copy, call.size, width); }
    void prepare_values() {
        values = table(call.value, value_rows, value_copy, call.value_size, value_width);
    }
    // Return the panels of the tile's keys or values. Those in `ready` are packed already.
    const T* pack_panels(const Heads& x, ReadyRows& ready, T* panels, int64_t size) const {
        const T* from = row_of<T>(x, tile.batch, tile.key_head, 0);
        const int64_t end = tile.begin + tile.span, last_panel = end + PANEL<T> - 1;
        ready.extend(tile.begin, min(tile.length, last_panel / PANEL<T> * PANEL<T>),
                     [&](int64_t first, int64_t last) {
                         pack_transposed(from + first * x.row, x.row, last - first, size,
                                         panels + first * size);
                     });
        return panels + tile.begin * size;
    }

    // Return whether a tensor's rows of values are whole vectors without gaps between them.
    bool has_whole_vectors(const Heads& x) const {
        return call.value_size == value_width && x.row == value_width;
    }
    // Load the scaled queries [rows, width].
    void load_queries() {
        load_rows(row_of<T>(call.query, tile.batch, tile.head, tile.first_row), call.query.row,
                  tile.rows, call.size, (T)call.scale, width, queries);
    }

    // Return the position of a tile's row among the keys; and a table that starts at the tile's
    // first key.
    int64_t position(int64_t r) const { return tile.first_row + r + call.offset; }
    Table<T> from_begin(Table<T> table) const { return {table[tile.begin], table.step}; }

    // Compute the tile's scores [rows, span], including slopes and masks.
    void compute_scores() {
        const int64_t rows = tile.rows, n = tile.span;
        prefetcher.pace_over((few_queries ? 0 : product_units<T>(rows, n)) + rows);
        if (few_queries) {
            prepare_keys();
            for (int64_t r = 0; r < rows; r++)
                dots_of_rows(from_begin(keys), n, queries + r * width, width, scores + r * n);
        } else {
            const T* panels = pack_panels(call.key, panel_rows, key_panels, call.size);
            multiply_panels<T>({queries, width, 1}, panels, rows, call.size, scores, n, n,
                               prefetcher);
        }
        if (slope != 0)
            for (int64_t r = 0; r < rows; r++) add_slope(scores + r * n, r);
        if (call.mask)
            for (int64_t r = 0; r < rows; r++) mask_row(scores + r * n, r);
        if (call.causal)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = max((int64_t)0, position(r) + 1 - tile.begin); j < n; j++)
                    scores[r * n + j] = (T)-INFINITY;
    }
    // Return the signed distances from a row's position to the keys from `begin` on, as a vector.
    Vec<T> distances(int64_t r) const {
        Vec<T> number;
        for (int i = 0; i < N; i++) number[i] = (T)i;
        return number + (T)(tile.begin - position(r));
    }
    void add_slope(T* row, int64_t r) const {
        Vec<T> distance = distances(r);
        for (int64_t j = 0; j < tile.span; j += N, distance += (T)N)
            store_row(row, j, tile.span,
                      load_row(row, j, tile.span, (T)0) - slope * absolute(distance));
    }

    // Return a bound of the norms of a block of keys; it is infinite if a norm is not finite. The
    // first thread that needs the bound computes it. Threads that compute it at the same time write
    // the same number.
    double norm_of_block(int64_t block) const {
        const int64_t head = tile.batch * call.key_heads + tile.key_head;
        double* const known = call.block_norms + head * norm_blocks(call.keys) + block;
        double norm;
        __atomic_load(known, &norm, __ATOMIC_RELAXED);
        if (norm >= 0) return norm;
        T largest = 0;
        const int64_t first = block * NORM_BLOCK, end = min(first + NORM_BLOCK, tile.length);
        for (int64_t j = first; j < end; j++) {
            const T* key = row_of<T>(call.key, tile.batch, tile.key_head, j);
            Vec<T> total = {};
            for (int64_t i = 0; i < call.size; i += N) {
                const Vec<T> x = load_row(key, i, call.size, (T)0);
                total += x * x;
            }
            const T square = sum<T>(total);
            largest = square <= largest ? largest : square == square ? square : (T)INFINITY;
        }
        norm = std::sqrt((double)largest);
        __atomic_store(known, &norm, __ATOMIC_RELAXED);
        return norm;
    }
    // Return a bound of the norms of all keys that the tile may attend to.
    double largest_norm() {
        if (call.key_norms)
            return (double)((const T*)call.key_norms)[tile.batch * call.key_heads + tile.key_head];
        for (const int64_t blocks = norm_blocks(tile.keys); bounded < blocks; bounded++)
            largest_key = max(largest_key, norm_of_block(bounded));
        return largest_key;
    }

    // Bounds of the window of a tile. The score of a key is at most |q| |k| - slope * distance. A
    // weight is zero if its score is `cutoff` below the row's largest. So a row does not see a key
    // with norm |k| that is farther away than |q| |k| / slope + rest.
    struct Reach {
        double length[MAX_TILE_ROWS], rest[MAX_TILE_ROWS];  // length: |q| / slope
        double first, last;  // beyond these positions, not even keys of the largest norm are seen
    };
    // Compute the reach from the largest score so far; return false if there is no bound.
    bool bound_reach(double cutoff, Reach& reach) {
        const double longest = largest_norm();
        reach.first = 1e15, reach.last = -1e15;
        for (int64_t r = 0; r < tile.rows; r++) {
            const T *row = scores + r * tile.span, *query = queries + r * width;
            Vec<T> lanes[LANE_VECTORS], square = {};
            for (int64_t i = 0; i < width; i += N) square += load(query + i) * load(query + i);
            const double top = (double)row_maximum(row, tile.span, lanes), spare = 1 + 1e-5;
            reach.length[r] = std::sqrt((double)sum<T>(square)) * spare / (double)slope;
            reach.rest[r] = (cutoff * spare - top) / (double)slope + 2;
            const double most = reach.length[r] * longest + reach.rest[r];
            if (!(most < 1e15)) return false;  // NaN, or no key is seen
            reach.first = min(reach.first, (double)position(r) - most);
            reach.last = max(reach.last, (double)position(r) + most);
        }
        return true;
    }
    // Return whether any row may see a key of the block.
    bool reaches(const Reach& reach, int64_t block) const {
        const double norm = norm_of_block(block), begin = (double)(block * NORM_BLOCK),
                     end = begin + (double)NORM_BLOCK;
        bool result = false;
        for (int64_t r = 0; r < tile.rows; r++) {
            const double at = (double)position(r),
                         distance = max(max(begin - at, at - end), (double)0);
            result |= reach.length[r] * norm + reach.rest[r] >= distance;
        }
        return result;
    }
    // Compute the scores of the keys near the tile, and then of all keys that these scores don't
    // exclude. Return false if that does not help: the caller then computes all scores.
    bool compute_window() {
        const double eps = alpha - 1,
                     cutoff = eps * UNDERFLOW_AT<T> > 1 ? 1 / eps : UNDERFLOW_AT<T>;
        const int64_t end = tile.keys, rows = tile.rows;
        if (!(slope > 0) || end < MIN_WINDOW_KEYS || cutoff > (double)slope * (double)end ||
            !(call.key_norms || call.block_norms) || (call.mask && !call.boolean_mask))
            return false;
        const int64_t first = max((int64_t)0, min(position(0), end - 1) - PANEL<T>);
        set_window(first, max(min(position(rows), end), first + PANEL<T>));
        const int64_t near_begin = tile.begin, near_end = tile.begin + tile.span;
        compute_scores();
        Reach reach;
        if (!bound_reach(cutoff, reach)) return set_window(0, end), false;
        int64_t from = reach.first > 0 ? min((int64_t)reach.first, near_begin) : 0,
                to = reach.last < (double)end ? max((int64_t)reach.last, near_end) : end;
        // Leave out blocks of smaller norms, starting with the farthest.
        if (call.block_norms) {
            int64_t block = from / NORM_BLOCK;
            while ((block + 1) * NORM_BLOCK <= near_begin && !reaches(reach, block)) block++;
            from = max(from, block * NORM_BLOCK);
            block = norm_blocks(to) - 1;
            while (block * NORM_BLOCK >= near_end && !reaches(reach, block)) block--;
            to = min(to, (block + 1) * NORM_BLOCK);
        }
        if (from >= near_begin && to <= near_end) return true;
        set_window(min(from, near_begin), max(to, near_end));
        compute_scores();
        return true;
    }
    // Set the window. It begins at the start of a panel.
    void set_window(int64_t begin, int64_t end) {
        tile.begin = begin / PANEL<T> * PANEL<T>;
        tile.span = min(end, tile.keys) - tile.begin;
    }
    void mask_row(T* row, int64_t r) const {
        const int64_t *strides = call.mask_strides, n = tile.span, step = strides[3];
        const int64_t offset = tile.batch * strides[0] + tile.head * strides[1] +
                               (tile.first_row + r) * strides[2] + tile.begin * step;
        if (call.boolean_mask) {
            const uint8_t* takes_part = (const uint8_t*)call.mask + offset;
            if (step == 1)
                for (int64_t j = 0; j < n; j++) row[j] = takes_part[j] ? row[j] : (T)-INFINITY;
            else
                for (int64_t j = 0; j < n; j++)
                    row[j] = takes_part[j * step] ? row[j] : (T)-INFINITY;
        } else {
            const T* summand = (const T*)call.mask + offset;
            if (step == 1)
                for (int64_t j = 0; j < n; j++) row[j] += summand[j];
            else
                for (int64_t j = 0; j < n; j++) row[j] += summand[j * step];
        }
    }

    // Return the layout of the tile's scores as rows.
    Layout layout() const {
        return {sizeof(T) == 8 ? STORE_F64 : STORE_F32, tile.rows, tile.span, 1, alpha, nullptr};
    }
    T* stats() const {
        return (T*)call.stats + (tile.row_of_heads * call.queries + tile.first_row) * STATS;
    }
    int32_t* counts(const TileIndex& of) const {
        return call.support + of.row_of_heads * call.queries + of.first_row;
    }

    // Forward saves all weights of a tile if it has few keys and dense supports, otherwise lists if
    // they fit, otherwise nothing. The end of a list is stored as a whole vector, which must not
    // reach into the next tile's lists: hence - N.
    int64_t saved_offset(const TileIndex& of) const {
        return (of.row_of_heads * call.queries + of.first_row) * call.capacity;
    }
    static bool is_denser(const TileIndex& of, int64_t entries, double share) {
        return (double)entries > share * (double)(of.rows * of.span);
    }
    bool saves_weights(const TileIndex& of, int64_t entries) const {
        return call.columns && of.keys <= call.capacity && is_denser(of, entries, DENSE_BACKWARD);
    }
    bool saves_lists(const TileIndex& of, int64_t entries) const {
        return call.columns && entries <= of.rows * call.capacity - N &&
               !saves_weights(of, entries);
    }

    // Compress a row of weights into a list and return its length. The list needs room for one more
    // vector.
    int64_t compress_row(const T* row, int32_t* index, T* weight) const {
        int64_t n = 0;
        for (int64_t j = 0; j < tile.span; j += N) {
            const Vec<T> p = load_row(row, j, tile.span, (T)0);
            // Don't branch on an empty mask: the branch could not be predicted.
            const uint32_t support = not_le<T>(p, Vec<T>{});
            compress_store(weight + n, p, support);
            compress_lane_indices(index + n, (int32_t)(tile.begin + j), support, T{});
            n += __builtin_popcount(support);
        }
        return n;
    }

    // Apply dropout to a row of weights, or to a list.
    uint64_t drop_seed(int64_t r) const {
        return row_seed(call.seed, tile.row_of_heads * call.queries + tile.first_row + r);
    }
    void drop_row(const T* from, int64_t r, T* to) const {
        const uint64_t seed = drop_seed(r);
        for (int64_t j = 0; j < tile.span; j++)
            to[j] =
                draw(seed, (uint32_t)(tile.begin + j)) < keep_limit ? from[j] * keep_scale : (T)0;
    }
    void drop_list(const int32_t* index, const T* from, int64_t n, int64_t r, T* to) const {
        const uint64_t seed = drop_seed(r);
        for (int64_t k = 0; k < n; k++)
            to[k] = draw(seed, (uint32_t)index[k]) < keep_limit ? from[k] * keep_scale : (T)0;
    }

    // Prefetch what a tile will read or write.
    void prefetch_rows(const Heads& x, int64_t b, int64_t h, int64_t row, int64_t rows,
                       int64_t size, bool to_write) {
        prefetcher.add(row_of<T>(x, b, h, row), x.row * sizeof(T), rows, size * sizeof(T),
                       to_write);
    }
    void prefetch_queries(const TileIndex& next) {
        prefetch_rows(call.query, next.batch, next.head, next.first_row, next.rows, call.size,
                      false);
    }
    // Prefetch keys and values that this tile does not share with the next, if there are only a
    // few.
    void prefetch_keys(const TileIndex& next) {
        if (has_same_keys(next) || call.keys > MAX_TILE_ROWS) return;
        prefetch_rows(call.key, next.batch, next.key_head, 0, call.keys, call.size, false);
        prefetch_rows(call.value, next.batch, next.key_head, 0, call.keys, call.value_size, false);
    }
};

// Bytes of scratch memory that a thread keeps between calls; a larger buffer is freed.
constexpr int64_t SCRATCH_LIMIT = 64 << 20;

}  // namespace
