// Attention: for some queries of a head at a time their scores, weights and output; and all
// gradients.
//
// Weights of most keys are zero, and products with them need not be computed. Only the scores
// themselves are a product of whole matrices: their rows become weights where they lie, in the
// core's cache, and then lists of the keys they attend to. Output and gradients are sums by these
// lists, a few instructions an entry, as many as a dense product takes; where nearly everything is
// attended to they are products of matrices.

#pragma once

#include "dropout.h"
#include "gradients.h"
#include "maps.h"
#include "matmul.h"

namespace {

constexpr int MOST_ROWS = 64;  // of a tile
constexpr int FEW_ROWS = 4;
constexpr int MARKS = 16;  // keys whose marks are one number
// Shares of the keys in a tile's supports from which on products of matrices are faster, forward
// and backward.
constexpr double DENSE = 0.75, DENSE_BACKWARD = 0.4;
// Entries a key from which on gradients of keys and values are summed a key at a time.
constexpr double BY_COLUMNS = 3;
constexpr int64_t TOGETHER = 4096;  // entries of lists whose gradients are computed at a time
// Bytes of keys or values that are too many for lists to run through them all:
constexpr int64_t FAR = 1 << 18;
// Then rows are taken so many keys at a time, where their lists have.
constexpr int64_t KEYS_TOGETHER = 256;
constexpr int64_t LONG_LIST = 64;  // so many entries on average

template <class T> INLINE int64_t whole_vectors(int64_t n) { return padded<T>(n) * LANES<T>; }

// Where a row of a tensor of heads begins.
template <class T> INLINE T* row_of(const Heads& x, int64_t batch, int64_t head, int64_t row) {
    return (T*)x.memory + batch * x.batch + head * x.head + row * x.row;
}

// Rows of `size` entries, as rows of `width`, times a factor; zeros behind.
template <class T>
INLINE void take_rows(const T* from, int64_t stride, int64_t rows, int64_t size, T factor,
                      int64_t width, T* to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += LANES<T>)
            store(to + r * width + i, load_row(from + r * stride, i, size, (T)0) * factor);
}
template <class T>
INLINE void give_rows(const T* from, int64_t width, int64_t rows, int64_t size, T factor, T* to,
                      int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i += LANES<T>)
            store_row(to + r * stride, i, size, load(from + r * width + i) * factor);
}

// Memory in one piece: first counted, then given out.
class Pieces {
  public:
    template <class T> void take(T*& piece, int64_t count) {
        piece = (T*)(base + used);
        used += (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    }
    template <class Ask> static void give(Ask&& ask) {
        Pieces pieces;
        ask(pieces);
        pieces.base = (char*)scratch_memory(pieces.used, FOR_TILES);
        pieces.used = 0;
        ask(pieces);
    }

  private:
    char* base = nullptr;
    int64_t used = 0;
};

// A tile: some queries of a head, and the keys that they may see.
struct Spot {
    int64_t batch = -1, head = -1, key_head = -1, number, first_row, rows, live, seen;
};

template <class T> class Attention : Spot {
    static constexpr int N = LANES<T>;

  public:
    explicit Attention(const AttentionCall& call)
        : call(call),
          heads(call.heads * call.group),
          tiles((call.queries + call.rows - 1) / call.rows),
          width(whole_vectors<T>(call.size)),
          value_width(whole_vectors<T>(call.value_size)),
          below(kept_below(call.stays)),
          kept_scale((T)(1 / call.stays)),
          drops(call.stays != 1),
          few(call.queries < FEW_ROWS),
          sharing(call) {}

    // Tiles [first, last) of all heads.
    void forward(int64_t first, int64_t last) {
        Pieces::give([&](Pieces& pieces) {
            take_common(pieces);
            pieces.take(output_room, call.rows * value_width);
            pieces.take(index, call.keys + N);
            pieces.take(weight, call.keys + N);
        });
        for (int64_t number = first; number < last; number++) {
            begin(spot(number / tiles / heads, number / tiles % heads, number % tiles));
            call_rows(call.out, head, first_row, rows, call.value_size, true);
            const int64_t next = number + 1, of = next / tiles;
            if (of < call.batch * heads) call_next(spot(of / heads, of % heads, next % tiles));
            forward_tile();
        }
    }

    // Parts [first, last) of all heads of keys; of those that share the gradient of a mask, each is
    // all of them.
    void backward(int64_t first, int64_t last) {
        Pieces::give([&](Pieces& pieces) {
            take_common(pieces);
            pieces.take(value_panels, panels_size<T>(call.keys, call.value_size));
            pieces.take(second, scores_size());
            pieces.take(upstream_room, call.rows * value_width);
            pieces.take(query_grads, call.rows * width);
            pieces.take(key_grads, call.keys * width);
            pieces.take(value_grads, call.keys * value_width);
            pieces.take(marks, (call.keys + MARKS - 1) / MARKS * MOST_ROWS);
            pieces.take(index, lists_size());
            pieces.take(weight, lists_size());
            pieces.take(pulled, lists_size());
            pieces.take(dots, lists_size());
            pieces.take(slopes, lists_size());
            pieces.take(curvatures, lists_size());
            pieces.take(owners, lists_size());
        });
        const int64_t together = sharing.batch * sharing.heads,
                      all = call.batch * call.heads * call.splits;
        for (int64_t number = first * together; number < last * together; number++) {
            const auto [part, b, h] = unit(number);
            zero(key_grads, call.keys * width), zero(value_grads, call.keys * value_width);
            // The last tiles of causal attention are the most work: parts take turns.
            for (int64_t g = 0; g < call.group; g++)
                for (int64_t tile = part; tile < tiles; tile += call.splits) {
                    begin(spot(b, h * call.group + g, tile));
                    call_rows(call.query_grad, head, first_row, rows, call.size, true);
                    if (tile + call.splits < tiles) {
                        call_next(spot(b, head, tile + call.splits));
                    } else if (g + 1 < call.group) {
                        call_next(spot(b, head + 1, part));
                    } else {
                        if (call.keys <= MOST_ROWS) {
                            call_rows(call.key_grad, h, 0, call.keys, call.size, true,
                                      part * call.batch + b);
                            call_rows(call.value_grad, h, 0, call.keys, call.value_size, true,
                                      part * call.batch + b);
                        }
                        const Unit next = unit(number + 1);
                        if (number + 1 < all)
                            call_next(spot(next.batch, next.head * call.group, next.part));
                    }
                    backward_tile(part);
                }
            const int64_t to = part * call.batch + b;
            give_rows(key_grads, width, call.keys, call.size, (T)1,
                      row_of<T>(call.key_grad, to, h, 0), call.key_grad.row);
            give_rows(value_grads, value_width, call.keys, call.value_size, (T)1,
                      row_of<T>(call.value_grad, to, h, 0), call.value_grad.row);
        }
    }

  private:
    const AttentionCall& call;
    const int64_t heads, tiles, width, value_width;
    const uint32_t below;
    const T kept_scale;
    const bool drops, few;  // whether weights are dropped; whether there are only a few queries
    const Sharing sharing;

    double alpha;  // of the tile at work
    bool panels_there, value_panels_there, keys_there, values_there;
    Table<T> keys, values;  // [keys, width] and [keys, value_width]
    const T* upstream;      // [rows, value_width]

    T *key_room, *value_room, *key_panels, *value_panels;
    T *queries, *scores, *second, *output_room, *upstream_room, *query_grads, *key_grads,
        *value_grads;
    T *weight, *pulled, *dots, *slopes, *curvatures;  // of lists
    Ahead ahead;
    int32_t *index, *owners;
    int64_t starts[MOST_ROWS + 1], total;  // of a tile's lists
    uint16_t* marks;  // [keys / 16][MOST_ROWS]: a bit for each entry of a tile's supports

    int64_t scores_size() const { return call.rows * call.keys + N; }
    int64_t lists_size() const {
        const int64_t most = (int64_t)(DENSE_BACKWARD * (double)(call.rows * call.keys)),
                      kept = call.rows * call.room;
        return larger(most, kept) + call.keys + N;
    }
    static void zero(T* p, int64_t n) {
        for (int64_t i = 0; i < n; i += N) store(p + i, Vec<T>{});
    }

    void take_common(Pieces& pieces) {
        pieces.take(key_room, call.keys * width);
        pieces.take(value_room, call.keys * value_width);
        pieces.take(key_panels, panels_size<T>(call.keys, call.size));
        pieces.take(queries, call.rows * width);
        pieces.take(scores, scores_size());
    }

    struct Unit {
        int64_t part, batch, head;  // of keys
    };
    Unit unit(int64_t number) const {
        const int64_t together = sharing.batch * sharing.heads,
                      own = number / together / call.splits;
        const int64_t within = number % together, apart = call.heads / sharing.heads;
        return {number / together % call.splits, own / apart + within / sharing.heads,
                own % apart + within % sharing.heads};
    }
    Spot spot(int64_t b, int64_t h, int64_t tile) const {
        const int64_t first = tile * call.rows, some = smaller(call.rows, call.queries - first);
        const int64_t live = call.lengths ? call.lengths[b] : call.keys;
        return {b,     h,    h / call.group, b * heads + h,
                first, some, live,           call.causal ? smaller(live, first + some) : live};
    }
    bool same_keys(const Spot& other) const {
        return other.batch == batch && other.key_head == key_head;
    }
    void begin(const Spot& now) {
        if (!same_keys(now)) panels_there = value_panels_there = keys_there = values_there = false;
        (Spot&)* this = now;
        const int64_t of_alpha = batch * call.alpha_strides[0] + head * call.alpha_strides[1];
        alpha = call.alphas ? (double)((const T*)call.alphas)[of_alpha] : call.alpha;
        ahead.clear();
    }

    void call_rows(const Heads& x, int64_t h, int64_t row, int64_t rows, int64_t size,
                   bool to_write, int64_t b = -1) {
        ahead.add(row_of<T>(x, b < 0 ? batch : b, h, row), x.row * sizeof(T), rows,
                  size * sizeof(T), to_write);
    }
    // What the next tile will read; keys and values only if they are so few that nothing else has
    // read them before.
    void call_next(const Spot& next) {
        call_rows(call.query, next.head, next.first_row, next.rows, call.size, false, next.batch);
        if (call.grad.memory) {
            call_rows(call.grad, next.head, next.first_row, next.rows, call.value_size, false,
                      next.batch);
            call_kept(next);
        }
        if (same_keys(next) || call.keys > MOST_ROWS) return;
        call_rows(call.key, next.key_head, 0, call.keys, call.size, false, next.batch);
        call_rows(call.value, next.key_head, 0, call.keys, call.value_size, false, next.batch);
    }
    void call_kept(const Spot& next) {
        const int64_t entries = sum_counts(next), from = kept_begin(next);
        const bool all = keeps_all(next, entries);
        if (!all && !keeps_lists(next, entries)) return;
        ahead.add((T*)call.weight + from, 0, 1,
                  (all ? next.rows * next.seen : entries) * (int64_t)sizeof(T), false);
        if (!all) ahead.add(call.index + from, 0, 1, entries * (int64_t)sizeof(int32_t), false);
    }

    // Keys and values as rows of whole vectors: where they lie, or copied one behind the other.
    Table<T> vectors(const Heads& x, T* memory, int64_t size, int64_t wide) const {
        const T* from = row_of<T>(x, batch, key_head, 0);
        if (size == wide && (few || x.row == wide)) return {from, x.row};
        take_rows(from, x.row, live, size, (T)1, wide, memory);
        return {memory, wide};
    }
    void need_keys() {
        if (!keys_there) keys = vectors(call.key, key_room, call.size, width);
        keys_there = true;
    }
    void need_values() {
        if (!values_there) values = vectors(call.value, value_room, call.value_size, value_width);
        values_there = true;
    }

    // Whether rows of values are whole vectors one behind the other, where they lie.
    bool in_place(const Heads& x) const {
        return call.value_size == value_width && x.row == value_width;
    }
    void take_upstream() {
        const T* from = row_of<T>(call.grad, batch, head, first_row);
        upstream = in_place(call.grad) ? from : upstream_room;
        if (upstream != from)
            take_rows(from, call.grad.row, rows, call.value_size, (T)1, value_width, upstream_room);
    }
    // scale Q [rows, width]
    void take_queries() {
        take_rows(row_of<T>(call.query, batch, head, first_row), call.query.row, rows, call.size,
                  (T)call.scale, width, queries);
    }

    void compute_scores() {
        ahead.spread((few ? 0 : product_units<T>(rows, seen)) + rows);
        if (few) {  // keys on their side would be the most work
            need_keys();
            for (int64_t r = 0; r < rows; r++)
                dots_of_rows(keys, seen, queries + r * width, width, scores + r * seen);
        } else {
            compute_product();
        }
        if (call.mask)
            for (int64_t r = 0; r < rows; r++) mask_row(scores + r * seen, r);
        if (call.causal)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = first_row + r + 1; j < seen; j++)
                    scores[r * seen + j] = (T)-INFINITY;
    }
    void compute_product() {
        if (!panels_there)
            turn_panels(row_of<T>(call.key, batch, key_head, 0), call.key.row, live, call.size,
                        key_panels);
        panels_there = true;
        multiply_panels<T>({queries, width, 1}, key_panels, rows, call.size, scores, seen, seen,
                           ahead);
    }

    void mask_row(T* row, int64_t r) const {
        const int64_t* strides = call.mask_strides;
        const int64_t from = batch * strides[0] + head * strides[1] + (first_row + r) * strides[2],
                      step = strides[3];
        if (call.boolean) {
            const uint8_t* takes_part = (const uint8_t*)call.mask + from;
            if (step == 1)
                for (int64_t j = 0; j < seen; j++) row[j] = takes_part[j] ? row[j] : (T)-INFINITY;
            else
                for (int64_t j = 0; j < seen; j++)
                    row[j] = takes_part[j * step] ? row[j] : (T)-INFINITY;
        } else {
            const T* added = (const T*)call.mask + from;
            if (step == 1)
                for (int64_t j = 0; j < seen; j++) row[j] += added[j];
            else
                for (int64_t j = 0; j < seen; j++) row[j] += added[j * step];
        }
    }

    Layout layout() const {
        return {sizeof(T) == 8 ? STORE_F64 : STORE_F32, rows, seen, 1, alpha, nullptr};
    }
    T* stats() const { return (T*)call.stats + (number * call.queries + first_row) * STATS; }
    int32_t* counts(const Spot& of) const {
        return call.counts + of.number * call.queries + of.first_row;
    }
    int64_t sum_counts(const Spot& of) const {
        int64_t sum = 0;
        for (int64_t r = 0; r < of.rows; r++) sum += counts(of)[r];
        return sum;
    }

    // What forward keeps of a tile with so many entries: lists if they are short enough, all
    // weights if these are many of few, or nothing. A list's end is written a whole vector at a
    // time, and what is behind belongs to another tile.
    int64_t kept_begin(const Spot& of) const {
        return (of.number * call.queries + of.first_row) * call.room;
    }
    static bool many(const Spot& of, int64_t entries, double share) {
        return (double)entries > share * (double)(of.rows * of.seen);
    }
    bool keeps_all(const Spot& of, int64_t entries) const {
        return call.index && of.seen <= call.room && many(of, entries, DENSE_BACKWARD);
    }
    bool keeps_lists(const Spot& of, int64_t entries) const {
        return call.index && entries <= of.rows * call.room - N && !keeps_all(of, entries);
    }

    // A row of weights as a list, with room for one more vector behind; returns its length.
    int64_t pack_row(const T* row, int32_t* index, T* weight) const {
        int64_t n = 0;
        for (int64_t j = 0; j < seen; j += N) {
            const Vec<T> p = load_row(row, j, seen, (T)0);
            // Where it is zero no machine can foresee.
            const uint32_t some = beyond<T>(p, Vec<T>{});
            store_packed(weight + n, p, some);
            store_places(index + n, (int32_t)j, some, T{});
            n += __builtin_popcount(some);
        }
        return n;
    }

    // All rows of weights that were computed again, where a weight next to nothing may have become
    // zero, or not be it any more; false if the lists then had no room.
    bool pack_rows() {
        for (int64_t r = 0; r < rows; r++) {
            if (starts[r] + seen + N > lists_size()) return false;
            starts[r + 1] =
                starts[r] + pack_row(scores + r * seen, index + starts[r], weight + starts[r]);
        }
        total = starts[rows];
        return true;
    }

    uint64_t drop_seed(int64_t r) const {
        return row_seed(call.seed, number * call.queries + first_row + r);
    }
    void drop_row(const T* from, int64_t r, T* to) const {
        const uint64_t seed = drop_seed(r);
        for (int64_t j = 0; j < seen; j++)
            to[j] = draw(seed, (uint32_t)j) < below ? from[j] * kept_scale : (T)0;
    }
    void drop_list(const int32_t* index, const T* from, int64_t n, int64_t r, T* to) const {
        const uint64_t seed = drop_seed(r);
        for (int64_t k = 0; k < n; k++)
            to[k] = draw(seed, (uint32_t)index[k]) < below ? from[k] * kept_scale : (T)0;
    }

    void drop_lists(const int32_t* index, const T* from, T* to) const {
        for (int64_t r = 0; r < rows; r++)
            drop_list(index + starts[r], from + starts[r], starts[r + 1] - starts[r], r,
                      to + starts[r]);
    }

    void forward_tile() {
        T* out = row_of<T>(call.out, batch, head, first_row);
        if (seen == 0) {
            for (int64_t r = 0; r < rows; r++) {
                fill_row(out + r * call.out.row, call.value_size, (T)0);
                counts(*this)[r] = 0;
            }
            return;
        }
        take_queries();
        compute_scores();
        const MapCall map{layout(), scores, scores, stats()};
        map_range<T, T>(map, 0, rows);
        total = 0;
        for (int64_t r = 0; r < rows; r++) {
            const T* row = stats() + r * STATS;
            total += counts(*this)[r] = row[3] == row[3] ? (int32_t)row[4] : (int32_t)seen;
        }
        const bool dense = many(*this, total, DENSE), lists = keeps_lists(*this, total);
        if (keeps_all(*this, total))
            std::memcpy((T*)call.weight + kept_begin(*this), scores,
                        (size_t)(rows * seen) * sizeof(T));
        need_values();
        T* output = in_place(call.out) ? out : output_room;
        int64_t at = kept_begin(*this);
        for (int64_t r = 0; r < rows && (lists || !dense); r++) {
            int32_t* to_index = lists ? call.index + at : index;
            T* to_weight = lists ? (T*)call.weight + at : weight;
            const int64_t n = pack_row(scores + r * seen, to_index, to_weight);
            at += n;
            ahead.call(1);
            if (dense) continue;
            if (drops) drop_list(to_index, to_weight, n, r, weight);
            add_listed<false>(to_index, drops ? weight : to_weight, n, values, value_width,
                              output + r * value_width);
        }
        if (dense) {
            for (int64_t r = 0; r < rows && drops; r++)
                drop_row(scores + r * seen, r, scores + r * seen);
            multiply<false>({scores, seen, 1}, values, rows, seen, value_width, output, ahead);
        }
        if (output != out)
            give_rows(output, value_width, rows, call.value_size, (T)1, out, call.out.row);
    }

    void backward_tile(int64_t part) {
        T* query_grad = row_of<T>(call.query_grad, batch, head, first_row);
        T* alpha_grad =
            call.alpha_grad ? (T*)call.alpha_grad + number * call.queries + first_row : nullptr;
        if (seen == 0) {
            for (int64_t r = 0; r < rows; r++) {
                fill_row(query_grad + r * call.query_grad.row, call.size, (T)0);
                if (alpha_grad) alpha_grad[r] = 0;
            }
            return;
        }
        take_queries();
        take_upstream();
        starts[0] = 0;
        for (int64_t r = 0; r < rows; r++) starts[r + 1] = starts[r] + counts(*this)[r];
        total = starts[rows];
        need_keys();
        const T* kept = (const T*)call.weight + (call.index ? kept_begin(*this) : 0);
        if (keeps_all(*this, total)) {
            backward_dense(kept, alpha_grad, part);
        } else if (keeps_lists(*this, total)) {
            backward_listed(call.index + kept_begin(*this), kept, alpha_grad, part);
        } else {
            compute_scores();
            const Family<T> f = family<T>(alpha, seen, MAPS);
            for (int64_t r = 0; r < rows; r++)
                weigh_row(f, stats() + r * STATS, seen, scores + r * seen);
            if (!many(*this, total, DENSE_BACKWARD) && pack_rows())
                backward_listed(index, weight, alpha_grad, part);
            else
                backward_dense(scores, alpha_grad, part);
        }
        give_rows(query_grads, width, rows, call.size, (T)call.scale, query_grad,
                  call.query_grad.row);
    }

    // Where the gradient of what was added to the tile's scores goes.
    T* mask_grad(int64_t part) const {
        const int64_t* strides = call.mask_grad_strides;
        return (T*)call.mask_grad + part * strides[0] + batch * strides[1] + head * strides[2] +
               first_row * strides[3];
    }

    void backward_dense(const T* weights, T* alpha_grad, int64_t part) {
        ahead.spread(2 * product_units<T>(seen, width) + product_units<T>(rows, width + seen));
        const T* dropped = weights;
        if (drops) {
            for (int64_t r = 0; r < rows; r++) drop_row(weights + r * seen, r, second + r * seen);
            dropped = second;
        }
        multiply<true, T>({dropped, 1, seen}, {upstream, value_width}, seen, rows, value_width,
                          value_grads, ahead);
        if (!value_panels_there)
            turn_panels(row_of<T>(call.value, batch, key_head, 0), call.value.row, live,
                        call.value_size, value_panels);
        value_panels_there = true;
        multiply_panels<T>({upstream, value_width, 1}, value_panels, rows, call.value_size, second,
                           seen, seen, ahead);
        for (int64_t r = 0; r < rows && drops; r++)
            drop_row(second + r * seen, r, second + r * seen);
        const MapGradientCall pull{layout(), weights, second, scores, alpha_grad};
        map_gradient_range<T, T>(pull, 0, rows);
        if (call.mask_grad) {
            const int64_t of_query = call.mask_grad_strides[3], of_key = call.mask_grad_strides[4];
            for (int64_t r = 0; r < rows; r++) {
                T *const to = mask_grad(part) + r * of_query, *const from = scores + r * seen;
                if (of_key == 1)
                    for (int64_t j = 0; j < seen; j++) to[j] += from[j];
                else
                    for (int64_t j = 0; j < seen; j++) to[j * of_key] += from[j];
            }
        }
        multiply<false>({scores, seen, 1}, keys, rows, seen, width, query_grads, ahead);
        multiply<true, T>({scores, 1, seen}, {queries, width}, seen, rows, width, key_grads, ahead);
    }

    bool by_columns() const { return (double)total > BY_COLUMNS * (double)seen; }
    // Visits all lists, visit(row, from, to), or where the keys are far parts of them, those of
    // near keys together.
    template <class Visit> void in_parts(const int32_t* index, int64_t key_width, Visit&& visit) {
        const bool apart = seen * key_width * (int64_t)sizeof(T) > FAR && total > rows * LONG_LIST;
        int64_t next[MOST_ROWS];
        for (int64_t r = 0; r < rows; r++) next[r] = starts[r];
        for (int64_t first = 0, step = apart ? KEYS_TOGETHER : seen; first < seen; first += step)
            for (int64_t r = 0; r < rows; r++) {
                const int64_t from = next[r], end = starts[r + 1];
                int64_t to = apart ? from : end;
                while (to < end && index[to] < first + step) to++;
                if (to > from) visit(r, from, to);
                next[r] = to;
            }
    }

    void backward_listed(const int32_t* index, const T* weight, T* alpha_grad, int64_t part) {
        need_values();
        const Family<T> f = family<T>(alpha, seen, MAPS);
        const bool each = total > rows * N;  // lists fill vectors
        ahead.spread((each ? rows : (total + N - 1) / N) + (by_columns() ? seen : rows) + rows);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = starts[r]; k < starts[r + 1]; k++) owners[k] = (int32_t)r;
        if (each) {
            in_parts(index, value_width, [&](int64_t r, int64_t from, int64_t to) {
                ahead.call(1);
                dots_listed(index + from, to - from, upstream + r * value_width, values,
                            value_width, dots + from);
            });
        } else {
            dots_of_lists<T>(owners, index, total, {upstream, value_width}, values, value_width,
                             dots, ahead);
        }
        if (drops) drop_lists(index, dots, dots);
        for (int64_t first = 0, step = total > TOGETHER ? N : rows; first < rows; first += step) {
            const int64_t some = smaller(step, rows - first);
            T* const moved = alpha_grad ? alpha_grad + first : nullptr;
            BY_KIND(f.kind, gradient_of_lists<K>(weight, dots, starts + first, some, f, pulled,
                                                 moved, slopes, curvatures))
        }
        if (call.mask_grad) {
            const int64_t of_query = call.mask_grad_strides[3], of_key = call.mask_grad_strides[4];
            T* const to = mask_grad(part);
            for (int64_t k = 0; k < total; k++)
                to[owners[k] * of_query + index[k] * of_key] += pulled[k];
        }
        const T* dropped = weight;
        if (drops) drop_lists(index, weight, curvatures), dropped = curvatures;
        for (int64_t r = 0; r < rows && !by_columns(); r++) {
            const int64_t from = starts[r], n = starts[r + 1] - from;
            ahead.call(1);
            spread_listed(index + from, dropped + from, n, upstream + r * value_width, value_width,
                          value_grads);
            spread_listed(index + from, pulled + from, n, queries + r * width, width, key_grads);
        }
        if (by_columns()) {
            place_lists(index, dropped);
            add_columns();
        }
        zero(query_grads, rows * width);
        in_parts(index, width, [&](int64_t r, int64_t from, int64_t to) {
            ahead.call(1);
            add_listed<true>(index + from, pulled + from, to - from, keys, width,
                             query_grads + r * width);
        });
    }

    // Weights and their gradients to their places, and marks there.
    void place_lists(const int32_t* index, const T* weight) const {
        std::memset(marks, 0, (size_t)((seen + MARKS - 1) / MARKS * MOST_ROWS) * sizeof(uint16_t));
        for (int64_t k = 0; k < total; k++) {
            const int64_t r = owners[k], j = index[k];
            scores[r * seen + j] = weight[k], second[r * seen + j] = pulled[k];
            marks[j / MARKS * MOST_ROWS + r] |= (uint16_t)(1u << j % MARKS);
        }
    }

    // Gradients of keys and values, of the entries that are marked: weights in `scores`, pulled in
    // `second`.
    void add_columns() {
        for (int64_t first = 0; first < seen; first += MARKS) {
            const uint16_t* some = marks + first / MARKS * MOST_ROWS;
            for (int64_t j = first; j < smaller(first + MARKS, seen); j++) {
                const uint64_t column = marked<T>(some, (int)(j - first));
                ahead.call(1);
                if (!column) continue;
                add_marked(column, scores + j, seen, upstream, value_width,
                           value_grads + j * value_width);
                add_marked(column, second + j, seen, queries, width, key_grads + j * width);
            }
        }
    }
};

constexpr int64_t KEPT_MEMORY = 64 << 20;  // bytes; of very many keys a thread gives it back

template <class T> void attention_range(const AttentionCall& call, int64_t first, int64_t last) {
    Attention<T>(call).forward(first, last);
    release_scratch(KEPT_MEMORY, FOR_TILES);
}
template <class T>
void attention_gradient_range(const AttentionCall& call, int64_t first, int64_t last) {
    Attention<T>(call).backward(first, last);
    release_scratch(KEPT_MEMORY, FOR_TILES);
}

}  // namespace
