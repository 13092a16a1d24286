// The row kernels for one instruction set, TSALLIS_ISA: maps, losses and their gradients on ranges of rows.

#include "api.h"
#include "short.h"
#include "simd.h"
#include "solve.h"
#include "storage.h"

namespace {

int64_t rows_together(int64_t d) {
    // A block's scores stay in the second-level cache between the passes over them.
    int64_t rows = 32768 / d;
    return rows < 1 ? 1 : rows > MOST ? MOST : rows;
}

// Scratch of a block: buffers of candidates and probabilities, and room for copies of what is not plain rows.
template <class T> struct Block {
    Rows<T> rows;
    Family<T> family[MOST];
    int64_t stride;
    T *tile[3], *spare;  // room for copies of rows; one more row

    Block(const Layout& layout, int tiles) {
        const int64_t together = rows_together(layout.d), d = layout.d;
        stride = (larger(d, (int64_t)LANE_VECTORS * LANES<T>) / 16 + 3) * 16;
        T* memory = (T*)scratch_memory(((2 + tiles) * together + 1) * stride * (int64_t)sizeof(T));
        rows.x = memory, rows.p = memory + together * stride;
        for (int k = 0; k < 3; k++) tile[k] = memory + (2 + k) * together * stride;
        spare = memory + (2 + tiles) * together * stride;
        rows.d = d, rows.stride = stride, rows.family = family;
        rows.where = (int32_t*)memory, rows.places = 0, rows.level = false;
    }
};

template <class T> INLINE double alpha_of(const Layout& layout, int64_t row) {
    return layout.alphas ? (double)((const T*)layout.alphas)[row] : layout.alpha;
}

// Calls visit(kind, first, last) for runs of rows of one kind in [first, last), at most a block long, with their
// families prepared; `clear` of numbers next to nothing, as the gradients of losses are.
template <class T, class Visit>
void in_blocks(const Layout& layout, Family<T>* families, bool clear, int64_t first, int64_t last, Visit&& visit) {
    const int64_t together = rows_together(layout.d);
    Family<T> latest = family<T>(alpha_of<T>(layout, first), layout.d, clear);
    for (int k = 0; k < together; k++) families[k] = latest;
    for (int64_t begin = first; begin < last;) {
        int64_t end = smaller(begin + together, last);
        for (int64_t row = begin; layout.alphas && row < end; row++) {
            const double alpha = alpha_of<T>(layout, row);
            if (alpha != latest.alpha) latest = family<T>(alpha, layout.d, clear);
            Family<T>& own = families[row - begin];
            // Alphas come in runs: most rows find their family where the block before left it.
            if (own.alpha != alpha) own = latest;
            const bool same = own.kind == families[0].kind && (layout.d > SHORT || own.n == families[0].n);
            if (!same) end = row;
        }
        visit(families[0].kind, begin, end);
        begin = end;
    }
}

#define BY_KIND(kind, ...)                                     \
    switch (kind) {                                            \
        case SOFTMAX: { constexpr Kind K = SOFTMAX; __VA_ARGS__; break; } \
        case TWO: { constexpr Kind K = TWO; __VA_ARGS__; break; }         \
        case THREE_HALVES: { constexpr Kind K = THREE_HALVES; __VA_ARGS__; break; } \
        case WHOLE: { constexpr Kind K = WHOLE; __VA_ARGS__; break; }     \
        case ANY: { constexpr Kind K = ANY; __VA_ARGS__; break; }         \
    }

template <class T, class O> INLINE void fill_row(O* row, int64_t d, T value) {
    for (int64_t i = 0; i < d; i += LANES<T>) store_row(row, i, d, fill(value));
}

// ---- the maps -------------------------------------------------------------------------------------------------------

// exp(z - shift) and its sum. A shift of infinity or a NaN makes the sum NaN.
template <class T> INLINE T exponentials(const T* z, int64_t d, T shift, T* out) {
    constexpr int N = LANES<T>;
    double total = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Vec<T> part = {};
        int64_t i = first;
        for (; i + N <= smaller(d, first + BLOCK * N); i += N) {
            Vec<T> e = exp_(load(z + i) - shift);
            store(out + i, e);
            part += e;
        }
        if (i < smaller(d, first + BLOCK * N)) {
            Vec<T> e = exp_(load_part(z + i, d - i, (T)-INFINITY) - shift);
            store_part(out + i, d - i, e);
            part += e;
        }
        total += sum<T>(part);
    }
    return (T)total;
}

template <class T> INLINE void scale_row(T* row, int64_t d, T by) {
    for (int64_t i = 0; i < d; i += LANES<T>) store_row(row, i, d, load_row(row, i, d, (T)0) * by);
}

// Entries before the first that begins a vector of memory.
template <class T> INLINE int64_t unaligned(const T* p) {
    return (int64_t)(-(uintptr_t)p % VECTOR_BYTES / sizeof(T));
}

template <Kind K, class T, bool PAST>
INLINE void emit_some(const T* z, int64_t d, T shift, Threshold<T> at, T scale, const Family<T>& f, T* out) {
    constexpr int N = LANES<T>;
    auto put = [&](int64_t i, Vec<T> v) {
        if constexpr (PAST) store_past(out + i, v);
        else store(out + i, v);
    };
    auto value = [&](Vec<T> w) {
        if constexpr (K == SOFTMAX) return exp_(w) * scale;
        else return probability<K>(w * f.eps, at, f) * scale;
    };
    int64_t i = 0;
    if ((K == WHOLE || K == ANY) && d >= 1024) {
        const Vec<T> bound = fill((at.t - 1) * f.b - (T)1e-6 * f.b);
        for (; i + 4 * N <= d; i += 4 * N) {
            Vec<T> w[4];
            uint32_t some = 0;
            for (int k = 0; k < 4; k++) w[k] = load(z + i + k * N) - shift, some |= beyond<T>(w[k], bound);
            for (int k = 0; k < 4; k++) put(i + k * N, some ? value(w[k]) : Vec<T>{});
        }
    }
    for (; i + N <= d; i += N) put(i, value(load(z + i) - shift));
    if (i < d) store_part(out + i, d - i, value(load_part(z + i, d - i, (T)-INFINITY) - shift));
}

// Probabilities times `scale`, from scores and a solved row's threshold; written `past` the caches or not.
template <Kind K, class T>
INLINE void emit(
    const T* z, int64_t d, T shift, Threshold<T> at, T scale, const Family<T>& f, T* out, bool past = false
) {
    if (!past) return emit_some<K, T, false>(z, d, shift, at, scale, f, out);
    const int64_t head = smaller(d, unaligned(out));
    if (head) emit_some<K, T, false>(z, head, shift, at, scale, f, out);
    emit_some<K, T, true>(z + head, d - head, shift, at, scale, f, out + head);
}

// Packed values back to where the candidates were, zeros elsewhere.
template <class T> INLINE void unpack(const T* z, int64_t d, T shift, T above, const T* packed, T scale, T* out) {
    constexpr int N = LANES<T>;
    const Vec<T> bound = fill(above);
    for (int64_t i = 0; i < d; i += N) {
        uint32_t m = beyond<T>(load_row(z, i, d, (T)-INFINITY) - shift, bound);
        store_row(out, i, d, m ? load_packed(packed, m) * scale : Vec<T>{});
        packed += __builtin_popcount(m);
    }
}

// The rows' probabilities, each written where place(row) says and then finish(row)ed.
template <Kind K, class T, class Place, class Finish>
void map_rows(Rows<T>& s, const T* const* z, Place&& place, Finish&& finish) {
    if constexpr (K != SOFTMAX && TURNED<T>)
        if (s.d <= SHORT) return map_short<K>(s, z, place, finish);
    if constexpr (K != SOFTMAX) solve<K>(s, z);
    for (int row = 0; row < s.rows; row++) {
        T* p = place(row);
        if constexpr (K == SOFTMAX) {
            Vec<T> lanes[LANE_VECTORS];
            T top = row_maximum(z[row], s.d, lanes);
            T mass = exponentials(z[row], s.d, top == (T)-INFINITY ? 0 : top, p);
            s.top[row] = top, s.t[row] = s.fine[row] = 0, s.mass[row] = mass == 0 ? 1 : mass;
            scale_row(p, s.d, 1 / s.mass[row]);
        } else {
            T scale = 1 / s.mass[row];
            if (scale != scale) fill_row(p, s.d, (T)NAN);
            else if (K == ANY) unpack(z[row], s.d, s.shift[row], s.above[row], s.p + row * s.stride, scale, p);
            else emit<K>(z[row], s.d, s.shift[row], threshold(s, row), scale, s.family[row], p);
        }
        finish(row);
    }
}

template <class T> INLINE int64_t count_support(const T* p, int64_t d) {
    int64_t count = 0;
    for (int64_t i = 0; i < d; i += LANES<T>) count += __builtin_popcount(bits(load_row(p, i, d, (T)0) > 0));
    return count;
}

// What is to be called into the cache while the rows [begin, end) are at work.
template <class S>
INLINE Around around(const Layout& layout, bool plain, const void* out, const void* in, int64_t begin, int64_t end) {
    const int64_t d = plain ? layout.d : 0, next = 2 * end - begin <= layout.rows ? end : begin;
    return {(const char*)((const S*)out + begin * d), (const char*)((const S*)in + next * d), d * (int64_t)sizeof(S),
            d ? (int64_t)sizeof(S) : 0, d <= 64};
}

template <class T, class S> void map_range(const MapCall& call, int64_t first, int64_t last) {
    Block<T> block(call.layout, 2);
    Rows<T>& s = block.rows;
    Tile<T, S> in(call.layout, block.tile[0], block.stride), out(call.layout, block.tile[1], block.stride);
    in_blocks<T>(call.layout, block.family, false, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        s.rows = (int)(end - begin);
        s.around = around<S>(call.layout, in.plain(), call.probs, call.scores, begin, end);
        auto place = [&](int row) { return out.place(call.probs, begin, begin + row); };
        auto finish = [&](int row) {
            if (call.stats) {
                T* stats = (T*)call.stats + (begin + row) * STATS;
                stats[0] = s.top[row], stats[1] = s.t[row], stats[2] = s.fine[row], stats[3] = 1 / s.mass[row];
                stats[4] = (T)count_support(place(row), s.d);
            }
            out.finish_row(call.probs, begin, begin + row);
        };
        if constexpr (TURNED<T> && !SAME<T, S>) {  // halves are read and written where they lie
            if (kind != SOFTMAX && in.plain() && s.d <= SHORT && !call.stats) {
                const S* z[MOST];
                in.find(call.scores, begin, end, z);
                auto there = [&](int row) { return (S*)call.probs + (begin + row) * s.d; };
                BY_KIND(kind, if constexpr (K != SOFTMAX) map_short<K>(s, z, there, [](int) {}))
                return;
            }
        }
        const T* z[MOST];
        in.read(call.scores, begin, end, z);
        BY_KIND(kind, map_rows<K>(s, z, place, finish))
        out.finish_block(call.probs, begin, end);
    });
}

template <class T, class S> void probs_range(const ProbsCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Tile<T, S> in(call.layout, block.tile[0], block.stride), out(call.layout, block.tile[1], block.stride);
    in_blocks<T>(call.layout, block.family, false, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MOST];
        in.read(call.scores, begin, end, z);
        for (int64_t r = begin; r < end; r++) {
            const T* stats = (const T*)call.stats + r * STATS;
            const T top = stats[0], scale = stats[3];
            T* p = out.place(call.probs, begin, r);
            const Threshold<T> at{stats[1], stats[2]};
            if (scale != scale) fill_row(p, d, (T)NAN);
            else BY_KIND(kind, emit<K>(z[r - begin], d, top == (T)-INFINITY ? 0 : top, at, scale, block.family[r - begin], p))
            out.finish_row(call.probs, begin, r);
        }
        out.finish_block(call.probs, begin, end);
    });
}

// ---- their gradients ------------------------------------------------------------------------------------------------

template <class T> INLINE bool needs_power(Kind kind, const Family<T>& f) { return kind == ANY || (kind == WHOLE && f.n != 4); }

// s = p^(2 - alpha), where p > 0
template <Kind K, class T> INLINE Vec<T> slope(Vec<T> p, const Family<T>& f) {
    if constexpr (K == SOFTMAX) return p;
    if constexpr (K == TWO) return p > 0 ? fill((T)1) : Vec<T>{};
    if constexpr (K == THREE_HALVES) return root(p);
    if (K == WHOLE && f.n == 4) {
        Vec<T> half = root(p);
        return half * root(half);
    }
    return p > 0 ? power(larger(p, fill((T)1.2e-38)), (T)(2 - f.alpha)) : Vec<T>{};
}

constexpr double INVERSE_FACTORIAL[] = {1,
                                        1,
                                        1.0 / 2,
                                        1.0 / 6,
                                        1.0 / 24,
                                        1.0 / 120,
                                        1.0 / 720,
                                        1.0 / 5040,
                                        1.0 / 40320,
                                        1.0 / 362880,
                                        1.0 / 3628800,
                                        1.0 / 39916800,
                                        1.0 / 479001600,
                                        1.0 / 6227020800,
                                        1.0 / 87178291200,
                                        1.0 / 1307674368000,
                                        1.0 / 20922789888000};
template <class T> constexpr int TERMS = sizeof(T) == 4 ? 8 : 15;  // of series in |x| < 1/2

// s = p^(2 - alpha), and p log^2 p phi(eps log p), phi(x) = (e^-x - 1 + x)/x^2: minus dp/d alpha at a fixed threshold.
template <Kind K, class T> INLINE void bend(Vec<T> p, const Family<T>& f, Vec<T>& s, Vec<T>& curvature) {
    const Vec<T> log_p = log_(larger(p, fill((T)1.2e-38)));
    const Ints<T> some = p > 0;
    if constexpr (K == SOFTMAX) {
        s = p;
        curvature = some ? p * log_p * log_p * (T)0.5 : Vec<T>{};
        return;
    }
    const Vec<T> h = log_p * -f.eps, bent = above_tangent(h);  // h >= 0
    if constexpr (K == WHOLE || K == ANY) s = some ? p + p * (h + bent) : Vec<T>{};  // p e^h
    else s = slope<K>(p, f);
    curvature = some ? p * bent * (1 / (f.eps * f.eps)) : Vec<T>{};
}

// Entries called into the second-level cache, `by` ahead: where a gradient is written, and what the next row needs.
constexpr int64_t CALLED = 4096;  // of longer rows the machine itself has learned by then how they go on
template <class S> INLINE void call_ahead(const S* p, int entries, int64_t by = 0) {
    for (int i = 0; i < entries; i += 64 / (int)sizeof(S)) __builtin_prefetch(p + by + i, 0, 2);
}

constexpr int64_t SPARSE_FROM = 4096;  // in rows so long whole groups of zeros are so common that a machine foresees them

// dz = s (g - delta), delta = s.g / sum s, over all entries: for slopes that cost little. `roots` is dz itself, or room
// for a row where dz is not as precise.
template <Kind K, class T, class S, class O>
void gradient_of_all(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* roots) {
    constexpr int N = LANES<T>;
    const bool sparse = K != SOFTMAX && d >= SPARSE_FROM;  // then whole groups are zero, and their gradients need not be read
    constexpr bool WAIT = K == THREE_HALVES || K == WHOLE;  // they are dear: kept for the second pass
    Vec<T> total = {}, weighted = {};
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Vec<T> s0 = {}, s1 = {}, g0 = {}, g1 = {};
        int64_t i = first, stop = smaller(d, first + BLOCK * N);
        for (; i + 2 * N <= stop; i += 2 * N) {
            if (d <= CALLED) call_ahead(dz + i, 2 * N);
            Vec<T> a = load(p + i), b = load(p + i + N);
            if (sparse && !beyond<T>(larger(a, b), Vec<T>{})) continue;
            a = slope<K>(a, f), b = slope<K>(b, f);
            if (WAIT) store(roots + i, a), store(roots + i + N, b);
            s0 += a, s1 += b;
            g0 += a * load(g + i), g1 += b * load(g + i + N);
        }
        for (; i < stop; i += N) {
            Vec<T> a = slope<K>(load_row(p, i, d, (T)0), f);
            if (WAIT) store_row(roots, i, d, a);
            s0 += a;
            g0 += a * load_row(g, i, d, (T)0);
        }
        total += s0 + s1, weighted += g0 + g1;
    }
    T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    int64_t i = 0;
    for (; i + 2 * N <= d; i += 2 * N) {
        if (d <= CALLED) call_ahead(p + i, 2 * N, d), call_ahead(g + i, 2 * N, d);
        Vec<T> a = load(p + i), b = load(p + i + N);
        if (sparse && !beyond<T>(larger(a, b), Vec<T>{})) {
            store(dz + i, Vec<T>{}), store(dz + i + N, Vec<T>{});
            continue;
        }
        a = WAIT ? load(roots + i) : slope<K>(a, f), b = WAIT ? load(roots + i + N) : slope<K>(b, f);
        store(dz + i, a * (load(g + i) - delta));
        store(dz + i + N, b * (load(g + i + N) - delta));
    }
    for (; i < d; i += N) {
        Vec<T> a = WAIT ? load_row(roots, i, d, (T)0) : slope<K>(load_row(p, i, d, (T)0), f);
        store_row(dz, i, d, a * (load_row(g, i, d, (T)0) - delta));
    }
}

// The same over the support alone, packed; and the gradient of alpha, -sum p psi (g - delta), if it is asked for.
template <Kind K, class T, class S, class O>
void gradient_of_support(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* dalpha, T* ps, T* gs, T* ss) {
    constexpr int N = LANES<T>;
    int64_t n = 0;
    for (int64_t i = 0; i < d; i += N) {
        if (d <= CALLED) call_ahead(dz + i, N);
        Vec<T> v = load_row(p, i, d, (T)0);
        uint32_t m = beyond<T>(v, Vec<T>{});
        if (!m) continue;
        store_packed(ps + n, v, m);
        store_packed(gs + n, load_row(g, i, d, (T)0), m);
        n += __builtin_popcount(m);
    }
    store(ps + n, Vec<T>{}), store(gs + n, Vec<T>{});
    Vec<T> total = {}, weighted = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> s0 = {}, g0 = {};
        for (int64_t i = first; i < smaller(n, first + BLOCK * N); i += N) {
            Vec<T> v = load(ps + i), s;
            if (dalpha) {
                Vec<T> curvature;
                bend<K>(v, f, s, curvature);
                store(ps + i, curvature);
            } else {
                s = slope<K>(v, f);
            }
            s0 += s, g0 += s * load(gs + i);
            store(ss + i, s);
        }
        total += s0, weighted += g0;
    }
    T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    Vec<T> moved = {};
    for (int64_t i = 0; i < n; i += N) {
        Vec<T> centred = load(gs + i) - delta;
        if (dalpha) moved -= load(ps + i) * centred;
        store(ss + i, load(ss + i) * centred);
    }
    if (dalpha) *dalpha = sum<T>(moved);
    for (int64_t i = 0; i < d; i += N) {
        if (d <= CALLED) call_ahead(p + i, N, d), call_ahead(g + i, N, d);
        uint32_t m = beyond<T>(load_row(p, i, d, (T)0), Vec<T>{});
        store_row(dz, i, d, load_packed(ss, m));
        ss += __builtin_popcount(m);
    }
}

// The same of a row of M vectors, which never leave the registers.
template <Kind K, int M, class T, class S, class O>
INLINE void gradient_of_few(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* dalpha) {
    constexpr int N = LANES<T>;
    Vec<T> s[M], curvature[M] = {}, upstream[M], total = {}, weighted = {}, moved = {};
    auto read = [&](const S* from, int k) { return k < M - 1 ? load(from + k * N) : load_row(from, k * N, d, (T)0); };
    for (int k = 0; k < M; k++) {
        const Vec<T> v = read(p, k);
        upstream[k] = read(g, k);
        if (dalpha) bend<K>(v, f, s[k], curvature[k]);
        else s[k] = slope<K>(v, f);
        total += s[k], weighted += s[k] * upstream[k];
    }
    const T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    for (int k = 0; k < M; k++) {
        const Vec<T> centred = upstream[k] - delta;
        if (dalpha) moved -= curvature[k] * centred;
        if (k < M - 1) store(dz + k * N, s[k] * centred);
        else store_row(dz, k * N, d, s[k] * centred);
    }
    if (dalpha) *dalpha = sum<T>(moved);
}

// All of a row with a NaN is NaN.
template <class T, class O> __attribute__((noinline)) void break_row(O* dz, int64_t d, T* dalpha) {
    fill_row(dz, d, (T)NAN);
    if (dalpha) *dalpha = (T)NAN;
}

// One row; `scratch` are three rows of room.
template <Kind K, class T, class S, class O>
INLINE void gradient_of_row(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* dalpha, T* const* scratch) {
    if (widen(p[0]) != widen(p[0])) return break_row(dz, d, dalpha);
    switch (padded<T>(d)) {
        case 1: return gradient_of_few<K, 1>(p, g, d, f, dz, dalpha);
        case 2: return gradient_of_few<K, 2>(p, g, d, f, dz, dalpha);
        case 3: return gradient_of_few<K, 3>(p, g, d, f, dz, dalpha);
        case 4: return gradient_of_few<K, 4>(p, g, d, f, dz, dalpha);
    }
    if (dalpha || needs_power(K, f)) gradient_of_support<K>(p, g, d, f, dz, dalpha, scratch[0], scratch[1], scratch[2]);
    else if constexpr (SAME<T, O>) gradient_of_all<K>(p, g, d, f, dz, dz);
    else gradient_of_all<K>(p, g, d, f, dz, scratch[0]);
}

template <class T, class S> void map_gradient_range(const MapGradientCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 3);
    Tile<T, S> p_tile(call.layout, block.tile[0], block.stride), g_tile(call.layout, block.tile[1], block.stride),
        out(call.layout, block.tile[2], block.stride);
    T* const scratch[3] = {block.rows.x, block.rows.p, block.spare};
    in_blocks<T>(call.layout, block.family, false, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        auto compute = [&](auto* const* p, auto* const* g, auto* dz, int64_t stride) {
            for (int64_t row = begin; row < end; row++) {
                const Family<T>& f = block.family[row - begin];
                T* dalpha = call.alpha_grad ? (T*)call.alpha_grad + row : nullptr;
                BY_KIND(kind, gradient_of_row<K>(p[row - begin], g[row - begin], d, f, dz, dalpha, scratch))
                dz += stride;
            }
        };
        if (p_tile.plain()) {  // halves are read and written where they lie
            const S *p[MOST], *g[MOST];
            p_tile.find(call.probs, begin, end, p), g_tile.find(call.grad, begin, end, g);
            compute(p, g, (S*)call.scores_grad + begin * d, d);
        } else {
            const T *p[MOST], *g[MOST];
            p_tile.read(call.probs, begin, end, p), g_tile.read(call.grad, begin, end, g);
            compute(p, g, block.tile[2], block.stride);
            out.finish_block(call.scores_grad, begin, end);
        }
    });
}

// ---- losses ---------------------------------------------------------------------------------------------------------

// dH(p)/d alpha at fixed p, of packed probabilities: sum p L E(x)/alpha^2 - sum p L^2 E'(x)/alpha with L = log p,
// x = eps L and E(x) = (e^x - 1)/x.
template <class T> INLINE T entropy_slope(const T* p, int64_t n, T scale, T eps, T alpha) {
    constexpr int N = LANES<T>;
    Vec<T> first = {}, second = {};
    for (int64_t i = 0; i < n; i += N) {
        Vec<T> v = load_row(p, i, n, (T)0) * scale;
        Vec<T> log_p = log_(larger(v, fill((T)1.2e-38))), x = log_p * eps;
        Vec<T> rise = {}, bend = {};
        for (int k = TERMS<T>; k >= 1; k--) rise = rise * x + (T)INVERSE_FACTORIAL[k];
        for (int k = TERMS<T>; k >= 2; k--) bend = bend * x + (T)((k - 1) * INVERSE_FACTORIAL[k]);
        Vec<T> far = absolute(x) < (T)0.5 ? fill((T)-1) : x, power = exp_(far);
        Vec<T> far_rise = (power - (T)1) / far;
        rise = absolute(x) < (T)0.5 ? rise : far_rise;
        bend = absolute(x) < (T)0.5 ? bend : (power - far_rise) / far;
        Vec<T> term = v * log_p;
        first += v > 0 ? term * rise : Vec<T>{};
        second += v > 0 ? term * log_p * bend : Vec<T>{};
    }
    return sum<T>(first) / (alpha * alpha) - sum<T>(second) / alpha;
}

template <class T> struct RowLoss {
    T loss, scale, count, dalpha;
};

// Of one solved row, in score differences from its maximum: ((c - mean)/alpha + mean) + (max - z_y), c = t b.
// Its support is listed where there is room.
template <Kind K, class T>
INLINE RowLoss<T> loss_of(Rows<T>& s, int row, const T* z, T gold, bool need_alpha, const Support<T>& listed) {
    constexpr int N = LANES<T>;
    const Family<T>& f = s.family[row];
    RowLoss<T> result = {};
    if (listed.room) *listed.count = -1;
    T shift = s.shift[row], alpha = (T)f.alpha, *p = s.p + row * s.stride;
    if constexpr (K == SOFTMAX) {
        T mass = exponentials(z, s.d, shift, p);
        result.loss = s.top[row] - gold + (T)::log(mass);
        result.scale = 1 / mass, result.count = (T)s.d;
        if (need_alpha) result.dalpha = entropy_slope(p, s.d, result.scale, (T)0, alpha);
        return result;
    }
    const Threshold<T> at = threshold(s, row);
    const T scale = 1 / s.mass[row];
    const T* x = s.x + row * s.stride;
    const int32_t* where = s.where + row * s.stride;
    int64_t n = s.count[row], count = 0, known = 0;
    auto finish = [&](T average) {
        const T c = (at.t + at.fine) * f.b, spread = (c - average) / alpha + average;
        result.loss = (spread < 0 ? 0 : spread) + (s.top[row] - gold);
        result.scale = scale, result.count = (T)count;
    };
    if (s.unpacked[row]) {
        count = n;
        finish(s.mean[row] * scale * f.b);
        return result;
    }
    const int64_t room = n <= s.places ? listed.room - N : -1;
    Vec<T> mean = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> part = {};
        for (int64_t i = first; i < smaller(n, first + BLOCK * N); i += N) {
            Vec<T> v = load(x + i), u;
            if constexpr (K == ANY) u = load(p + i);
            else u = probability<K>(v, at, f);
            if (K != ANY && need_alpha) store(p + i, u);
            uint32_t m = bits(u > 0);
            if (known <= room) {
                store_packed(listed.mass + known, u, m);
                pack_places(listed.index + known, where + i, m, (T)0);
            }
            known += __builtin_popcount(m);
            // What a last small step let into the support is in no list, but it is seen from the scores.
            if (K == ANY) count += __builtin_popcount(bits(at.over(v) >= f.least));
            part += u * (m ? larger(v, fill(OUTSIDE<T>)) : Vec<T>{});
        }
        mean += part;
    }
    if (K != ANY) count = known;
    finish(sum<T>(mean) * scale * f.b);
    if (known <= room) *listed.count = (T)known;
    if (need_alpha) result.dalpha = entropy_slope(p, n, scale, f.eps, alpha);
    return result;
}

template <class T, class S> void loss_range(const LossCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Rows<T>& s = block.rows;
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    s.level = !call.alpha_grad;
    if (call.width > STATS) s.where = (int32_t*)block.tile[1], s.places = d / 16;
    in_blocks<T>(call.layout, block.family, true, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MOST];
        in.read(call.scores, begin, end, z);
        s.rows = (int)(end - begin);
        s.around = around<S>(call.layout, in.plain(), call.scores, call.scores, begin, end);
        if (kind == SOFTMAX) {
            for (int row = 0; row < s.rows; row++) {
                Vec<T> lanes[LANE_VECTORS];
                s.top[row] = row_maximum(z[row], d, lanes);
                s.shift[row] = s.top[row] == (T)-INFINITY ? 0 : s.top[row];
            }
        } else {
            BY_KIND(kind, if constexpr (K != SOFTMAX) solve<K>(s, z))
        }
        for (int row = 0; row < s.rows; row++) {
            const int64_t r = begin + row, y = call.target[r];
            const T gold = y < 0 ? s.top[row] : z[row][y];
            T* stats = (T*)call.stats + r * call.width;
            const Support<T> listed(stats, call.width);
            RowLoss<T> found;
            BY_KIND(kind, found = loss_of<K>(s, row, z[row], gold, call.alpha_grad != nullptr, listed))
            const Threshold<T> at = kind == SOFTMAX ? Threshold<T>{0, 0} : threshold(s, row);
            stats[0] = s.top[row], stats[1] = at.t, stats[2] = at.fine, stats[3] = found.scale, stats[4] = found.count;
            // Nothing counts where there is no target or nothing takes part; a NaN makes the scale one.
            const bool counts = y >= 0 && !(s.top[row] == (T)-INFINITY && s.count[row] == 0 && kind != SOFTMAX) &&
                                !(kind == SOFTMAX && s.top[row] == (T)-INFINITY && found.scale == (T)INFINITY);
            ((T*)call.loss)[r] = counts ? found.loss * (found.scale == found.scale ? 1 : (T)NAN) : 0;
            if (call.alpha_grad) ((T*)call.alpha_grad)[r] = counts ? found.dalpha : 0;
            if (!counts) stats[3] = 0, stats[4] = 0;
        }
    });
}

// A listed support times `by`, zeros elsewhere.
template <class T> void spread(const Support<T>& listed, int64_t d, T by, T* out, bool past) {
    constexpr int N = LANES<T>;
    const int64_t n = (int64_t)*listed.count, head = past ? smaller(d, unaligned(out)) : 0;
    int64_t k = 0;
    auto lanes = [&](int64_t first, int64_t end) {
        alignas(VECTOR_BYTES) T found[N] = {};
        for (; k < n && listed.index[k] < end; k++) found[listed.index[k] - first] = listed.mass[k] * by;
        return load(found);
    };
    if (head) store_part(out, head, lanes(0, head));
    int64_t i = head;
    const int64_t whole = head + (d - head) / N * N;
    while (i < whole) {
        const int64_t next = k < n ? smaller(head + (listed.index[k] - head) / N * N, whole) : whole;
        if (past) for (; i < next; i += N) store_past(out + i, Vec<T>{});
        else for (; i < next; i += N) store(out + i, Vec<T>{});
        if (i == whole) break;
        if (past) store_past(out + i, lanes(i, i + N));
        else store(out + i, lanes(i, i + N));
        i += N;
    }
    if (whole < d) store_part(out + whole, d - whole, lanes(whole, d));
}

// A gradient of so many bytes is out of every cache before it is read: it need not be in one.
constexpr int64_t PAST = 16 << 20;

template <class T, class S> void loss_gradient_range(const LossGradientCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Tile<T, S> in(call.layout, block.tile[0], block.stride), out(call.layout, block.tile[1], block.stride);
    const bool past = out.direct() && call.scores_grad != call.scores && call.layout.rows * d * (int64_t)sizeof(T) >= PAST;
    in_blocks<T>(call.layout, block.family, true, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            T* dz = out.place(call.scores_grad, begin, r);
            const T* stats = (const T*)call.stats + r * call.width;
            const Support<T> listed((T*)stats, call.width);
            const T weight = ((const T*)call.grad)[r], scale = stats[3];
            const Threshold<T> at{stats[1], stats[2]};
            const int64_t y = call.target[r];
            if (y < 0 || scale == 0) {
                fill_row(dz, d, (T)0);
            } else if (scale != scale) {
                fill_row(dz, d, (T)NAN);
            } else if (listed.room && *listed.count >= 0) {
                spread(listed, d, scale * weight, dz, past);
                dz[y] -= weight;
            } else {
                const T* z;
                in.read(call.scores, r, r + 1, &z);
                BY_KIND(kind, emit<K>(z, d, stats[0], at, scale * weight, block.family[r - begin], dz, past))
                dz[y] -= weight;
            }
            out.finish_row(call.scores_grad, begin, r);
        }
    });
    if (past) settle();
}

// alpha-ReLU: u = 1 + eps z - t with t = 1 + tau, loss = sum r u / alpha + 1/(alpha eps) + tau/eps - z_y.
template <class T, class S> void relu_loss_range(const ReluLossCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>;
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 1);
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    const T t = (T)(1 + call.tau);
    const Threshold<T> at{t, (T)(1 + call.tau - (double)t)};
    in_blocks<T>(call.layout, block.family, true, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MOST];
        in.read(call.scores, begin, end, z);
        for (int64_t r = begin; r < end; r++) {
            const T* row = z[r - begin];
            const Family<T>& f = block.family[0];
            Vec<T> total = {};
            int64_t count = 0;
            for (int64_t from = 0; from < d; from += BLOCK * N) {
                Vec<T> part = {};
                for (int64_t i = from; i < smaller(d, from + BLOCK * N); i += N) {
                    Vec<T> x = load_row(row, i, d, (T)-INFINITY) * f.eps, u = at.over(x), p = {};
                    BY_KIND(kind, if constexpr (K != SOFTMAX) p = probability<K>(x, at, f))
                    count += __builtin_popcount(bits(p > 0));
                    part += p * u;
                }
                total += part;
            }
            T* stats = (T*)call.stats + r * STATS;
            stats[0] = 0, stats[1] = at.t, stats[2] = at.fine, stats[3] = 1, stats[4] = (T)count;
            const int64_t y = call.target[r];
            const double eps = f.alpha - 1;
            ((T*)call.loss)[r] = y < 0 ? 0 : sum<T>(total) / (T)f.alpha + (T)(1 / (f.alpha * eps) + call.tau / eps) - row[y];
        }
    });
}

// ---- sparse lists ---------------------------------------------------------------------------------------------------

template <class T, class S> void support_range(const SupportCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>;
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 1);
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    in_blocks<T>(call.layout, block.family, true, first, last, [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MOST];
        in.read(call.scores, begin, end, z);
        for (int64_t r = begin; r < end; r++) {
            const T *row = z[r - begin], *stats = (const T*)call.stats + r * STATS;
            const Family<T>& f = block.family[r - begin];
            const T shift = stats[0] == (T)-INFINITY ? 0 : stats[0], scale = stats[3];
            const Threshold<T> at{stats[1], stats[2]};
            int64_t n = call.offsets[r];
            const int64_t end_of_list = call.offsets[r + 1];
            const Vec<T> bound = fill(kind == SOFTMAX ? (T)-INFINITY : (at.t - 1) * f.b - (T)1e-6 * f.b);
            for (int64_t i = 0; i < d && n < end_of_list; i += N) {
                Vec<T> w = load_row(row, i, d, (T)-INFINITY) - shift;
                if (!beyond<T>(w, bound)) continue;
                Vec<T> p = {};
                BY_KIND(kind, if constexpr (K == SOFTMAX) p = exp_(w); else p = probability<K>(w * f.eps, at, f))
                for (uint32_t m = bits(p > 0); m && n < end_of_list; m &= m - 1) {
                    const int lane = __builtin_ctz(m);
                    call.index[n] = (int32_t)(i + lane);
                    ((T*)call.value)[n++] = p[lane] * scale;
                }
            }
            for (; n < end_of_list; n++) call.index[n] = 0, ((T*)call.value)[n] = 0;
        }
    });
}

// ---- sums of table rows -----------------------------------------------------------------------------------------------

template <class T, class S> INLINE Vec<T> table_vector(const S* p) {
    if constexpr (SAME<T, S>) return load((const T*)p);
    Vec<T> v;
    for (int i = 0; i < LANES<T>; i++) v[i] = widen(p[i]);
    return v;
}

template <class T, class S> void gather_range(const GatherCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>, TILE = 8;
    const int64_t m = call.m;
    const S* table = (const S*)call.table;
    for (int64_t r = first; r < last; r++) {
        const int64_t from = call.offsets[r], to = call.offsets[r + 1];
        const T scale = call.scale ? ((const T*)call.scale)[r] : 1;
        const int64_t less = call.minus ? call.minus[r] : -1;
        const T* value = (const T*)call.value;
        S* out = (S*)call.out + r * m;
        int64_t j = 0;
        for (; j + TILE * N <= m; j += TILE * N) {
            Vec<T> total[TILE] = {};
            for (int64_t k = from; k < to; k++) {
                const S* source = table + call.index[k] * m + j;
                if (k + 4 < to) __builtin_prefetch(table + call.index[k + 4] * m + j);
                for (int v = 0; v < TILE; v++) total[v] += value[k] * table_vector<T, S>(source + v * N);
            }
            for (int v = 0; v < TILE; v++) {
                Vec<T> sum = less < 0 ? total[v] : total[v] - table_vector<T, S>(table + less * m + j + v * N);
                sum *= scale;
                for (int i = 0; i < N; i++) narrow(sum[i], out[j + v * N + i]);
            }
        }
        for (; j < m; j++) {
            T total = 0;
            for (int64_t k = from; k < to; k++) total += value[k] * widen(table[call.index[k] * m + j]);
            if (less >= 0) total -= widen(table[less * m + j]);
            narrow(total * scale, out[j]);
        }
        if (call.total) {
            T total = 0;
            for (int64_t k = from; k < to; k++) total += value[k];
            ((T*)call.total)[r] = (total - (less >= 0 ? 1 : 0)) * scale;
        }
    }
}

// ---- dropout --------------------------------------------------------------------------------------------------------

// A bijection of 32 bits in which every bit depends on every other (constants by C. Wellons' search for low bias).
INLINE uint32_t scrambled(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du;
    x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

template <class T> void drop_range(const DropCall& call, int64_t first, int64_t last) {
    const T *in = (const T*)call.in, scale = (T)(1 / call.stays);
    T* out = (T*)call.out;
    const uint32_t low = (uint32_t)call.seed, high = (uint32_t)(call.seed >> 32);
    const double limit = call.stays * 4294967296.0;
    const uint32_t below = limit >= 4294967295.0 ? 4294967295u : (uint32_t)limit;
    const int64_t end = smaller(last * DROP_GROUP, call.n);
    for (int64_t i = first * DROP_GROUP; i < end; i++) {
        const uint32_t draw = scrambled(scrambled((uint32_t)i * 0x9e3779b1u + low) ^ high);
        out[i] = draw < below ? in[i] * scale : (T)0;
    }
}

#define BY_STORAGE(storage, function, ...)                                  switch (storage) {                                                          case STORE_F64: return function<double, double>(__VA_ARGS__);           case STORE_BF16: return function<float, BFloat16>(__VA_ARGS__);         case STORE_F16: return function<float, Float16>(__VA_ARGS__);           default: return function<float, float>(__VA_ARGS__);                }

void map(const MapCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, map_range, *call, first, last)
}
void probs(const ProbsCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, probs_range, *call, first, last)
}
void map_gradient(const MapGradientCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, map_gradient_range, *call, first, last)
}
void loss(const LossCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, loss_range, *call, first, last)
}
void loss_gradient(const LossGradientCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, loss_gradient_range, *call, first, last)
}
void relu_loss(const ReluLossCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, relu_loss_range, *call, first, last)
}
void support(const SupportCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, support_range, *call, first, last)
}
void gather(const GatherCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->storage, gather_range, *call, first, last)
}
void drop(const DropCall* call, int64_t first, int64_t last) {
    if (call->storage == STORE_F64) drop_range<double>(*call, first, last);
    else drop_range<float>(*call, first, last);
}

}  // namespace

#define NAME_OF(isa) #isa
#define NAMED(isa) NAME_OF(isa)
#define JOINED(a, b) a##b
#define TABLE(isa) JOINED(kernels_, isa)

extern const Kernels TABLE(TSALLIS_ISA) = {NAMED(TSALLIS_ISA), rows_together, map,     probs,  map_gradient, loss,
                                           loss_gradient,      relu_loss,     support, gather, drop};
