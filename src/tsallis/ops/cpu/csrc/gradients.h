// Gradients of the mappings, computed from the probabilities without the scores.

#pragma once

#include "row_blocks.h"

namespace {

template <class T> INLINE bool needs_power(Kind kind, const AlphaParams<T>& f) {
    return kind == GENERAL || (kind == INTEGER && f.n != 4);
}

// The diagonal of the Jacobian, s = p^(2 - alpha) where p > 0, else 0.
template <Kind K, class T> INLINE Vec<T> slope(Vec<T> p, const AlphaParams<T>& f) {
    if constexpr (K == SOFTMAX) return p;
    if constexpr (K == TWO) return p > 0 ? fill((T)1) : Vec<T>{};
    if constexpr (K == THREE_HALVES) return square_root(p);
    if (K == INTEGER && f.n == 4) {
        Vec<T> half = square_root(p);
        return half * square_root(half);
    }
    return p > 0 ? power(max(p, fill((T)1.2e-38)), (T)(2 - f.alpha)) : Vec<T>{};
}

// Compute s = p^(2 - alpha), and the curvature p log^2 p phi(eps log p) with phi(x) = (e^-x - 1 +
// x)/x^2, which is -dp/d alpha at a fixed threshold.
template <Kind K, class T>
INLINE void slope_and_curvature(Vec<T> p, const AlphaParams<T>& f, Vec<T>& s, Vec<T>& curvature) {
    const Vec<T> log_p = log_(max(p, fill((T)1.2e-38)));
    const Ints<T> some = p > 0;
    if constexpr (K == SOFTMAX) {
        s = p;
        curvature = some ? p * log_p * log_p * (T)0.5 : Vec<T>{};
        return;
    }
    const Vec<T> h = log_p * -f.eps, bent = exp_minus_tangent(h);  // h >= 0
    if constexpr (K == INTEGER || K == GENERAL)
        s = some ? p + p * (h + bent) : Vec<T>{};  // p e^h
    else
        s = slope<K>(p, f);
    curvature = some ? p * bent * (1 / (f.eps * f.eps)) : Vec<T>{};
}

// Prefetch entries into the second-level cache: where a gradient is written, and the next row's
// input. For rows longer than MAX_PREFETCH_SIZE the processor's own prefetcher suffices.
constexpr int64_t MAX_PREFETCH_SIZE = 4096;
template <class S> INLINE void prefetch_entries(const S* p, int entries, int64_t by = 0) {
    for (int i = 0; i < entries; i += 64 / (int)sizeof(S)) __builtin_prefetch(p + by + i, 0, 2);
}

// From this length on, groups of zeros are so frequent that branches on them are predicted.
constexpr int64_t MIN_SPARSE_SIZE = 4096;

// Write dz = s (g - delta) with delta = s.g / sum s, over all entries. Used if slopes are cheap to
// compute. `roots` is dz itself, or scratch for a row if dz has lower precision.
template <Kind K, class T, class S, class O>
void gradient_of_all(const S* p, const S* g, int64_t d, const AlphaParams<T>& f, O* dz, T* roots) {
    constexpr int N = LANES<T>;
    // In sparse rows whole groups are zero, and their upstream gradients need not be read.
    const bool sparse = K != SOFTMAX && d >= MIN_SPARSE_SIZE;
    // Square roots are expensive, so they are saved for the second pass.
    constexpr bool SAVE_SLOPES = K == THREE_HALVES || K == INTEGER;
    Vec<T> total = {}, weighted = {};
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Vec<T> s0 = {}, s1 = {}, g0 = {}, g1 = {};
        int64_t i = first, stop = min(d, first + BLOCK * N);
        for (; i + 2 * N <= stop; i += 2 * N) {
            if (d <= MAX_PREFETCH_SIZE) prefetch_entries(dz + i, 2 * N);
            Vec<T> a = load(p + i), b = load(p + i + N);
            if (sparse && !not_le<T>(max(a, b), Vec<T>{})) continue;
            a = slope<K>(a, f), b = slope<K>(b, f);
            if (SAVE_SLOPES) store(roots + i, a), store(roots + i + N, b);
            s0 += a, s1 += b;
            g0 += a * load(g + i), g1 += b * load(g + i + N);
        }
        for (; i < stop; i += N) {
            Vec<T> a = slope<K>(load_row(p, i, d, (T)0), f);
            if (SAVE_SLOPES) store_row(roots, i, d, a);
            s0 += a;
            g0 += a * load_row(g, i, d, (T)0);
        }
        total += s0 + s1, weighted += g0 + g1;
    }
    T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    int64_t i = 0;
    for (; i + 2 * N <= d; i += 2 * N) {
        if (d <= MAX_PREFETCH_SIZE)
            prefetch_entries(p + i, 2 * N, d), prefetch_entries(g + i, 2 * N, d);
        Vec<T> a = load(p + i), b = load(p + i + N);
        if (sparse && !not_le<T>(max(a, b), Vec<T>{})) {
            store(dz + i, Vec<T>{}), store(dz + i + N, Vec<T>{});
            continue;
        }
        a = SAVE_SLOPES ? load(roots + i) : slope<K>(a, f),
        b = SAVE_SLOPES ? load(roots + i + N) : slope<K>(b, f);
        store(dz + i, a * (load(g + i) - delta));
        store(dz + i + N, b * (load(g + i + N) - delta));
    }
    for (; i < d; i += N) {
        Vec<T> a = SAVE_SLOPES ? load_row(roots, i, d, (T)0) : slope<K>(load_row(p, i, d, (T)0), f);
        store_row(dz, i, d, a * (load_row(g, i, d, (T)0) - delta));
    }
}

// Compute dz = s (g - delta) over the compressed support. If `dalpha` is given, also compute the
// gradient of alpha, -sum curvature (g - delta).
template <Kind K, class T, class S, class O>
void gradient_of_support(const S* p, const S* g, int64_t d, const AlphaParams<T>& f, O* dz,
                         T* dalpha, T* ps, T* gs, T* ss) {
    constexpr int N = LANES<T>;
    int64_t n = 0;
    for (int64_t i = 0; i < d; i += N) {
        if (d <= MAX_PREFETCH_SIZE) prefetch_entries(dz + i, N);
        Vec<T> v = load_row(p, i, d, (T)0);
        uint32_t m = not_le<T>(v, Vec<T>{});
        if (!m) continue;
        compress_store(ps + n, v, m);
        compress_store(gs + n, load_row(g, i, d, (T)0), m);
        n += __builtin_popcount(m);
    }
    store(ps + n, Vec<T>{}), store(gs + n, Vec<T>{});
    Vec<T> total = {}, weighted = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> s0 = {}, g0 = {};
        for (int64_t i = first; i < min(n, first + BLOCK * N); i += N) {
            Vec<T> v = load(ps + i), s;
            if (dalpha) {
                Vec<T> curvature;
                slope_and_curvature<K>(v, f, s, curvature);
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
    Vec<T> alpha_sum = {};
    for (int64_t i = 0; i < n; i += N) {
        Vec<T> centred = load(gs + i) - delta;
        if (dalpha) alpha_sum -= load(ps + i) * centred;
        store(ss + i, load(ss + i) * centred);
    }
    if (dalpha) *dalpha = sum<T>(alpha_sum);
    for (int64_t i = 0; i < d; i += N) {
        if (d <= MAX_PREFETCH_SIZE) prefetch_entries(p + i, N, d), prefetch_entries(g + i, N, d);
        uint32_t m = not_le<T>(load_row(p, i, d, (T)0), Vec<T>{});
        store_row(dz, i, d, expand_load(ss, m));
        ss += __builtin_popcount(m);
    }
}

// Compute dz = s (g - delta) for a row of M vectors, which stay in registers.
template <Kind K, int M, class T, class S, class O>
INLINE void gradient_of_vectors(const S* p, const S* g, int64_t d, const AlphaParams<T>& f, O* dz,
                                T* dalpha) {
    constexpr int N = LANES<T>;
    Vec<T> s[M], curvature[M] = {}, upstream[M], total = {}, weighted = {}, alpha_sum = {};
    auto read = [&](const S* from, int k) {
        return k < M - 1 ? load(from + k * N) : load_row(from, k * N, d, (T)0);
    };
    for (int k = 0; k < M; k++) {
        const Vec<T> v = read(p, k);
        upstream[k] = read(g, k);
        if (dalpha)
            slope_and_curvature<K>(v, f, s[k], curvature[k]);
        else
            s[k] = slope<K>(v, f);
        total += s[k], weighted += s[k] * upstream[k];
    }
    const T mass = sum<T>(total), delta = mass > 0 ? sum<T>(weighted) / mass : 0;
    for (int k = 0; k < M; k++) {
        const Vec<T> centred = upstream[k] - delta;
        if (dalpha) alpha_sum -= curvature[k] * centred;
        if (k < M - 1)
            store(dz + k * N, s[k] * centred);
        else
            store_row(dz, k * N, d, s[k] * centred);
    }
    if (dalpha) *dalpha = sum<T>(alpha_sum);
}

// Compute dz = s (g - delta) for CSR rows: entries starts[r] to starts[r + 1] (exclusive) belong to
// row r. Rows may be far shorter than a vector, so powers are computed over all entries as if they
// were one row, and sums over many rows at once. Up to a vector after the last entry of `dz` is
// overwritten. `slopes` and `curvatures` are scratch of as many entries.
template <Kind K, class T>
void gradient_of_csr_rows(const T* p, const T* g, const int64_t* starts, int64_t rows,
                          const AlphaParams<T>& f, T* dz, T* dalpha, T* slopes, T* curvatures) {
    constexpr int N = LANES<T>;
    const int64_t end = starts[rows];
    for (int64_t i = starts[0]; i < end; i += N) {
        const Vec<T> v = load_row(p, i, end, (T)0);
        Vec<T> s, curvature = {};
        if (dalpha)
            slope_and_curvature<K>(v, f, s, curvature);
        else
            s = slope<K>(v, f);
        store(slopes + i, v == v ? s : v);  // a NaN makes its whole row NaN
        if (dalpha) store(curvatures + i, curvature);
    }
    for (int64_t first = 0; first < rows; first += N) {
        const int64_t last = min(first + N, rows);
        auto entries = [&](auto&& visit) {
            for (int64_t r = first; r < last; r++)
                for (int64_t i = starts[r], stop = starts[r + 1]; i < stop; i += N)
                    visit(r - first, i, stop, load_row(slopes, i, stop, (T)0),
                          load_row(g, i, stop, (T)0));
        };
        Vec<T> mass[N] = {}, weighted[N] = {}, alpha_sum[N] = {};
        entries([&](int64_t r, int64_t, int64_t, Vec<T> s, Vec<T> upstream) {
            mass[r] += s, weighted[r] += s * upstream;
        });
        const Vec<T> all = lane_sums<T>(mass),
                     delta = all == 0 ? Vec<T>{} : lane_sums<T>(weighted) / all;
        entries([&](int64_t r, int64_t i, int64_t stop, Vec<T> s, Vec<T> upstream) {
            const Vec<T> centred = upstream - delta[r];
            store(dz + i, s * centred);
            if (dalpha) alpha_sum[r] -= load_row(curvatures, i, stop, (T)0) * centred;
        });
        if (dalpha) store_row(dalpha, first, rows, lane_sums<T>(alpha_sum));
    }
}

// Fill the gradient with NaN, for a row that contains a NaN.
template <class T, class O>
__attribute__((noinline)) void fill_row_nan(O* dz, int64_t d, T* dalpha) {
    fill_row(dz, d, (T)NAN);
    if (dalpha) *dalpha = (T)NAN;
}

// Write the gradient of one row; `scratch` holds three rows.
template <Kind K, class T, class S, class O>
INLINE void gradient_of_row(const S* p, const S* g, int64_t d, const AlphaParams<T>& f, O* dz,
                            T* dalpha, T* const* scratch) {
    if (upcast(p[0]) != upcast(p[0])) return fill_row_nan(dz, d, dalpha);
    switch (num_vectors<T>(d)) {
        case 1:
            return gradient_of_vectors<K, 1>(p, g, d, f, dz, dalpha);
        case 2:
            return gradient_of_vectors<K, 2>(p, g, d, f, dz, dalpha);
        case 3:
            return gradient_of_vectors<K, 3>(p, g, d, f, dz, dalpha);
        case 4:
            return gradient_of_vectors<K, 4>(p, g, d, f, dz, dalpha);
    }
    if (dalpha || needs_power(K, f))
        gradient_of_support<K>(p, g, d, f, dz, dalpha, scratch[0], scratch[1], scratch[2]);
    else if constexpr (SAME_SIZE<T, O>)
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
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        auto compute = [&](auto* const* p, auto* const* g, auto* dz, int64_t stride) {
            for (int64_t row = begin; row < end; row++) {
                const AlphaParams<T>& f = block.params[row - begin];
                T* dalpha = call.alpha_grad ? (T*)call.alpha_grad + row : nullptr;
                DISPATCH_KIND(kind, gradient_of_row<K>(p[row - begin], g[row - begin], d, f, dz,
                                                       dalpha, scratch))
                dz += stride;
            }
        };
        if (p_tile.contiguous()) {  // half-precision rows are read and written in place
            const S *p[MAX_ROWS], *g[MAX_ROWS];
            p_tile.row_pointers(call.probs, begin, end, p),
                g_tile.row_pointers(call.grad, begin, end, g);
            compute(p, g, (S*)call.scores_grad + begin * d, d);
        } else {
            const T *p[MAX_ROWS], *g[MAX_ROWS];
            p_tile.read(call.probs, begin, end, p), g_tile.read(call.grad, begin, end, g);
            compute(p, g, block.tile[2], block.stride);
            out.finish_block(call.scores_grad, begin, end);
        }
    };
    for_each_block<T>(call.layout, block.params, MAPS, first, last, compute_block);
}

}  // namespace
