// The gradients of the maps, from the probabilities alone.

#pragma once

#include "row_blocks.h"

namespace {

template <class T> INLINE bool needs_power(Kind kind, const Family<T>& f) {
    return kind == ANY || (kind == WHOLE && f.n != 4);
}

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

// s = p^(2 - alpha), and p log^2 p phi(eps log p), phi(x) = (e^-x - 1 + x)/x^2: minus dp/d alpha at
// a fixed threshold.
template <Kind K, class T>
INLINE void bend(Vec<T> p, const Family<T>& f, Vec<T>& s, Vec<T>& curvature) {
    const Vec<T> log_p = log_(larger(p, fill((T)1.2e-38)));
    const Ints<T> some = p > 0;
    if constexpr (K == SOFTMAX) {
        s = p;
        curvature = some ? p * log_p * log_p * (T)0.5 : Vec<T>{};
        return;
    }
    const Vec<T> h = log_p * -f.eps, bent = above_tangent(h);  // h >= 0
    if constexpr (K == WHOLE || K == ANY)
        s = some ? p + p * (h + bent) : Vec<T>{};  // p e^h
    else
        s = slope<K>(p, f);
    curvature = some ? p * bent * (1 / (f.eps * f.eps)) : Vec<T>{};
}

// Entries called into the second-level cache, `by` ahead: where a gradient is written, and what the
// next row needs. Of longer rows the machine itself has learned by then how they go on.
constexpr int64_t CALLED = 4096;
template <class S> INLINE void call_ahead(const S* p, int entries, int64_t by = 0) {
    for (int i = 0; i < entries; i += 64 / (int)sizeof(S)) __builtin_prefetch(p + by + i, 0, 2);
}

// In rows so long whole groups of zeros are so common that a machine foresees them.
constexpr int64_t SPARSE_FROM = 4096;

// dz = s (g - delta), delta = s.g / sum s, over all entries: for slopes that cost little. `roots`
// is dz itself, or room for a row where dz is not as precise.
template <Kind K, class T, class S, class O>
void gradient_of_all(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* roots) {
    constexpr int N = LANES<T>;
    // Then whole groups are zero, and their gradients need not be read.
    const bool sparse = K != SOFTMAX && d >= SPARSE_FROM;
    // They are dear: kept for the second pass.
    constexpr bool WAIT = K == THREE_HALVES || K == WHOLE;
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
        a = WAIT ? load(roots + i) : slope<K>(a, f),
        b = WAIT ? load(roots + i + N) : slope<K>(b, f);
        store(dz + i, a * (load(g + i) - delta));
        store(dz + i + N, b * (load(g + i + N) - delta));
    }
    for (; i < d; i += N) {
        Vec<T> a = WAIT ? load_row(roots, i, d, (T)0) : slope<K>(load_row(p, i, d, (T)0), f);
        store_row(dz, i, d, a * (load_row(g, i, d, (T)0) - delta));
    }
}

// The same over the support alone, packed; and the gradient of alpha, -sum p psi (g - delta), if it
// is asked for.
template <Kind K, class T, class S, class O>
void gradient_of_support(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* dalpha,
                         T* ps, T* gs, T* ss) {
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
INLINE void gradient_of_few(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz,
                            T* dalpha) {
    constexpr int N = LANES<T>;
    Vec<T> s[M], curvature[M] = {}, upstream[M], total = {}, weighted = {}, moved = {};
    auto read = [&](const S* from, int k) {
        return k < M - 1 ? load(from + k * N) : load_row(from, k * N, d, (T)0);
    };
    for (int k = 0; k < M; k++) {
        const Vec<T> v = read(p, k);
        upstream[k] = read(g, k);
        if (dalpha)
            bend<K>(v, f, s[k], curvature[k]);
        else
            s[k] = slope<K>(v, f);
        total += s[k], weighted += s[k] * upstream[k];
    }
    const T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    for (int k = 0; k < M; k++) {
        const Vec<T> centred = upstream[k] - delta;
        if (dalpha) moved -= curvature[k] * centred;
        if (k < M - 1)
            store(dz + k * N, s[k] * centred);
        else
            store_row(dz, k * N, d, s[k] * centred);
    }
    if (dalpha) *dalpha = sum<T>(moved);
}

// The same of lists: entries [starts[r], starts[r + 1]) are row r's. They may be far shorter than a
// vector: what costs most is computed of all of them as of one, and sums of many at a time. Up to a
// vector behind the last of `dz` is overwritten. `slopes` and `curvatures` are room for lists.
template <Kind K, class T>
void gradient_of_lists(const T* p, const T* g, const int64_t* starts, int64_t rows,
                       const Family<T>& f, T* dz, T* dalpha, T* slopes, T* curvatures) {
    constexpr int N = LANES<T>;
    const int64_t end = starts[rows];
    for (int64_t i = starts[0]; i < end; i += N) {
        const Vec<T> v = load_row(p, i, end, (T)0);
        Vec<T> s, curvature = {};
        if (dalpha)
            bend<K>(v, f, s, curvature);
        else
            s = slope<K>(v, f);
        store(slopes + i, v == v ? s : v);  // all of a row with a NaN is NaN
        if (dalpha) store(curvatures + i, curvature);
    }
    for (int64_t first = 0; first < rows; first += N) {
        const int64_t last = smaller(first + N, rows);
        auto entries = [&](auto&& visit) {
            for (int64_t r = first; r < last; r++)
                for (int64_t i = starts[r], stop = starts[r + 1]; i < stop; i += N)
                    visit(r - first, i, stop, load_row(slopes, i, stop, (T)0),
                          load_row(g, i, stop, (T)0));
        };
        Vec<T> mass[N] = {}, weighted[N] = {}, moved[N] = {};
        entries([&](int64_t r, int64_t, int64_t, Vec<T> s, Vec<T> upstream) {
            mass[r] += s, weighted[r] += s * upstream;
        });
        const Vec<T> all = sums_of<T>(mass),
                     delta = all == 0 ? Vec<T>{} : sums_of<T>(weighted) / all;
        entries([&](int64_t r, int64_t i, int64_t stop, Vec<T> s, Vec<T> upstream) {
            const Vec<T> centred = upstream - delta[r];
            store(dz + i, s * centred);
            if (dalpha) moved[r] -= load_row(curvatures, i, stop, (T)0) * centred;
        });
        if (dalpha) store_row(dalpha, first, rows, sums_of<T>(moved));
    }
}

// All of a row with a NaN is NaN.
template <class T, class O> __attribute__((noinline)) void break_row(O* dz, int64_t d, T* dalpha) {
    fill_row(dz, d, (T)NAN);
    if (dalpha) *dalpha = (T)NAN;
}

// One row; `scratch` are three rows of room.
template <Kind K, class T, class S, class O>
INLINE void gradient_of_row(const S* p, const S* g, int64_t d, const Family<T>& f, O* dz, T* dalpha,
                            T* const* scratch) {
    if (widen(p[0]) != widen(p[0])) return break_row(dz, d, dalpha);
    switch (padded<T>(d)) {
        case 1:
            return gradient_of_few<K, 1>(p, g, d, f, dz, dalpha);
        case 2:
            return gradient_of_few<K, 2>(p, g, d, f, dz, dalpha);
        case 3:
            return gradient_of_few<K, 3>(p, g, d, f, dz, dalpha);
        case 4:
            return gradient_of_few<K, 4>(p, g, d, f, dz, dalpha);
    }
    if (dalpha || needs_power(K, f))
        gradient_of_support<K>(p, g, d, f, dz, dalpha, scratch[0], scratch[1], scratch[2]);
    else if constexpr (SAME<T, O>)
        gradient_of_all<K>(p, g, d, f, dz, dz);
    else
        gradient_of_all<K>(p, g, d, f, dz, scratch[0]);
}

template <class T, class S>
void map_gradient_range(const MapGradientCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 3);
    Tile<T, S> p_tile(call.layout, block.tile[0], block.stride),
        g_tile(call.layout, block.tile[1], block.stride),
        out(call.layout, block.tile[2], block.stride);
    T* const scratch[3] = {block.rows.x, block.rows.p, block.spare};
    in_blocks<T>(
        call.layout, block.family, MAPS, first, last, [&](Kind kind, int64_t begin, int64_t end) {
            auto compute = [&](auto* const* p, auto* const* g, auto* dz, int64_t stride) {
                for (int64_t row = begin; row < end; row++) {
                    const Family<T>& f = block.family[row - begin];
                    T* dalpha = call.alpha_grad ? (T*)call.alpha_grad + row : nullptr;
                    BY_KIND(kind, gradient_of_row<K>(p[row - begin], g[row - begin], d, f, dz,
                                                     dalpha, scratch))
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

}  // namespace
