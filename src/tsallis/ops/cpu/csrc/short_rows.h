// Short rows, solved transposed: vector j holds entry j of a whole vector of rows.
//
// A row of a few dozen entries fills its last vector only in part, spends as much time in sums
// across lanes as in arithmetic, and ends in unpredictable branches. One row per lane avoids all of
// that. Each lane takes its own steps, so a row's result does not depend on the other rows.

#pragma once

#include "dtypes.h"
#include "threshold.h"

namespace {

// Transpose LANES rows: entry c of rows[r] goes to lane r of columns[c].
template <class T> INLINE void transpose(const Vec<T>* rows, Vec<T>* columns) {
    constexpr int N = LANES<T>;
    for (int c = 0; c < N; c++)
        for (int r = 0; r < N; r++) columns[c][r] = rows[r][c];
}
#if defined(__AVX512F__)
template <> INLINE void transpose<float>(const F* rows, F* columns) {
    __m512 a[16], b[16];
    for (int i = 0; i < 8; i++) {  // pairs of rows
        a[2 * i] = _mm512_unpacklo_ps((__m512)rows[2 * i], (__m512)rows[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_ps((__m512)rows[2 * i], (__m512)rows[2 * i + 1]);
    }
    // b[4 i + k] has columns k, 4 + k, 8 + k, 12 + k of rows 4 i, ...
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) {
            __m512d low = _mm512_castps_pd(a[4 * i + k]), high = _mm512_castps_pd(a[4 * i + 2 + k]);
            b[4 * i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            b[4 * i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for (int k = 0; k < 4; k++) {
        __m512 even = _mm512_shuffle_f32x4(b[k], b[4 + k], 0x88),
               odd = _mm512_shuffle_f32x4(b[k], b[4 + k], 0xdd);
        __m512 even2 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0x88),
               odd2 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0xdd);
        columns[k] = (F)_mm512_shuffle_f32x4(even, even2, 0x88);
        columns[8 + k] = (F)_mm512_shuffle_f32x4(even, even2, 0xdd);
        columns[4 + k] = (F)_mm512_shuffle_f32x4(odd, odd2, 0x88);
        columns[12 + k] = (F)_mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
}
#elif defined(__AVX2__)
template <> INLINE void transpose<float>(const F* rows, F* columns) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps((__m256)rows[2 * i], (__m256)rows[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps((__m256)rows[2 * i], (__m256)rows[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            __m256d low = _mm256_castps_pd(a[4 * i + k]), high = _mm256_castps_pd(a[4 * i + 2 + k]);
            b[4 * i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            b[4 * i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
    }
    for (int k = 0; k < 4; k++) {
        columns[k] = (F)_mm256_permute2f128_ps(b[k], b[4 + k], 0x20);
        columns[4 + k] = (F)_mm256_permute2f128_ps(b[k], b[4 + k], 0x31);
    }
}
#elif defined(__aarch64__)
template <> INLINE void transpose<float>(const F* rows, F* columns) {
    float64x2_t even[2], odd[2];  // columns 0 and 2, and 1 and 3, of pairs of rows
    for (int i = 0; i < 2; i++) {
        float32x4_t a = (float32x4_t)rows[2 * i], b = (float32x4_t)rows[2 * i + 1];
        even[i] = (float64x2_t)vtrn1q_f32(a, b), odd[i] = (float64x2_t)vtrn2q_f32(a, b);
    }
    columns[0] = (F)vtrn1q_f64(even[0], even[1]), columns[1] = (F)vtrn1q_f64(odd[0], odd[1]);
    columns[2] = (F)vtrn2q_f64(even[0], even[1]), columns[3] = (F)vtrn2q_f64(odd[0], odd[1]);
}
#endif

// Whether a vector has a lane for each row of a block.
template <class T> constexpr bool ROW_PER_LANE = LANES<T> == MAX_ROWS;

// Transpose and scale rows of d scores: vector j of x gets entry j of each row. Lanes without a row
// repeat the first row.
template <class T, class S>
INLINE void transpose_rows(const S* const* z, int rows, int64_t d, Vec<T> shift, Vec<T> eps,
                           Vec<T>* x) {
    constexpr int N = LANES<T>;
    for (int64_t c = 0; c < d; c += N) {
        Vec<T> in[N], out[N] = {};
        for (int r = 0; r < N; r++) in[r] = load_row(z[r < rows ? r : 0], c, d, (T)-INFINITY);
        transpose<T>(in, out);
        // This max keeps NaN.
        for (int k = 0; k < N; k++) x[c + k] = max(fill(OUTSIDE<T>), (out[k] - shift) * eps);
    }
}

// A bit for each entry of each row, set for candidates; and the largest number of candidates in a
// row.
template <class T> struct Candidates {
    uint32_t mask[MAX_ROWS][MAX_SHORT_SIZE / LANES<T>];
    int64_t most;
};

// Compress and transpose the candidates: vector j of x gets the j-th scaled candidate of each row.
// `packed` is scratch.
template <class T, class S>
INLINE void transpose_candidates(const S* const* z, const Rows<T>& s, const T* shift,
                                 const T* above, T* packed, Vec<T>* x, Candidates<T>& candidates) {
    constexpr int N = LANES<T>;
    const RowPrefetch prefetch = s.prefetch;  // a copy: no store below can alias it
    const int64_t d = s.d;
    int64_t count[N];
    candidates.most = 0;
    for (int r = 0; r < s.rows; r++) {
        T* out = packed + r * s.stride;
        const S* row = z[r];
        const Vec<T> bound = fill(above[r]), top = fill(shift[r]);
        int64_t n = 0;
        for (int64_t i = 0, v = 0; i < d; i += N, v++) {
            prefetch.prefetch_out(r, i);
            const Vec<T> w = load_row(row, i, d, (T)-INFINITY) - top;
            const uint32_t m = candidates.mask[r][v] = not_le<T>(w, bound);
            compress_store(out + n, w, m), n += __builtin_popcount(m);
        }
        store(out + n, fill((T)-INFINITY));
        count[r] = n, candidates.most = max(candidates.most, n);
    }
    for (int r = 0; r < s.rows; r++)
        for (int64_t i = count[r] + N; i < candidates.most; i += N)
            store(packed + r * s.stride + i, fill((T)-INFINITY));
    const T* rows[N];
    for (int r = 0; r < s.rows; r++) rows[r] = packed + r * s.stride;
    transpose_rows<T>(rows, s.rows, num_vectors<T>(candidates.most) * N, Vec<T>{}, load(s.eps), x);
}

// Transpose n columns of probabilities back, times `scale`: row r is written to output_row(r).
template <class T, class Output>
INLINE void untranspose_rows(const Vec<T>* p, Vec<T> scale, int rows, int64_t n,
                             Output&& output_row) {
    constexpr int N = LANES<T>;
    for (int64_t c = 0; c < n; c += N) {
        Vec<T> in[N], out[N] = {};
        for (int k = 0; k < N; k++) in[k] = p[c + k] * scale;
        transpose<T>(in, out);
        for (int r = 0; r < rows; r++) store_row(output_row(r), c, n, out[r]);
    }
}

constexpr float APPROX_SLACK =
    1e-3f;  // margin of a bound that was computed from approximate powers

template <class T> struct LaneState {  // one row per lane
    Vec<T> eps, b, reach, t, fine, low, high;
};

// Compute the sums over n columns at the lanes' thresholds; with STORE write the probabilities to
// p.
template <Kind K, bool STORE, class T>
INLINE State<T> column_sums(const Vec<T>* x, int64_t n, const LaneState<T>& a,
                            const AlphaParams<T>& f, Vec<T>* p, Vec<T>* fourth) {
    const Threshold<T, Vec<T>> at{a.t, a.fine};
    Sums<T> total;
    for (int64_t first = 0; first < n; first += 2 * BLOCK) {
        Sums<T> even, odd;
        auto add = [&](int64_t j, Sums<T>& s) {
            add_terms<K, T, STORE>(x[j], at, f, a.b, s, (T*)(p + j));
        };
        const int64_t last = min(n, first + 2 * BLOCK);
        int64_t j = first;
        for (; j + 2 <= last; j += 2) add(j, even), add(j + 1, odd);
        if (j < last) add(j, even);
        even.add(odd);
        total.add(even);
    }
    if (fourth) *fourth = total.w;
    return {total.p, total.q, total.r, total.p - (T)1};
}

// Compute these sums for GENERAL with approximate powers; n is the integer part of every lane's b,
// or 0 for b above 20.
template <class T>
INLINE State<T> approx_column_sums(const Vec<T>* x, int64_t count, const LaneState<T>& a, int n) {
    Vec<T> total = {}, q = {}, r = {};
    const Vec<T> below = a.t - (T)1;
    if (n == 0) {
        for (int64_t j = 0; j < count; j++) {
            Vec<T> u = x[j] - below, inside = max(u, fill((T)1e-20));
            Vec<T> p = approx_power(inside, a.b), inv = approx_reciprocal(inside);
            p = u > (T)1e-20 ? p : Vec<T>{};
            total += p;
            p *= inv, q += p;
            p *= inv, r += p;
        }
    } else {
        const Vec<T> rest = a.b - (T)n, curvature = rest * (rest - (T)1) / (T)2;
        auto add = [&](Vec<T> x, int power) {
            const Vec<T> u = positive_part(x - below), low = u - (T)1,
                         near = (low * curvature + rest) * low + (T)1;
            Vec<T> v;
            if (power == 1) {
                v = u > 0 ? near : Vec<T>{};
            } else {
                Vec<T> w = power == 2 ? (u > 0 ? near : Vec<T>{})
                                      : near * (power == 3 ? u : integer_power(u, power - 2));
                r += w;
                v = w * u;
            }
            q += v;
            total += v * u;
        };
        if (n == 1)
            for (int64_t j = 0; j < count; j++) add(x[j], 1);
        else if (n == 2)
            for (int64_t j = 0; j < count; j++) add(x[j], 2);
        else if (n == 3)
            for (int64_t j = 0; j < count; j++) add(x[j], 3);
        else
            for (int64_t j = 0; j < count; j++) add(x[j], n);
    }
    return {total, q, r, total - (T)1};
}

template <class T> INLINE void move_threshold(LaneState<T>& a, Ints<T> active, Vec<T> step) {
    const Vec<T> by = a.fine + step, target = a.t + by, next = max(min(target, a.high), a.low);
    const Vec<T> rest = next == target ? (a.t - next) + by : Vec<T>{};
    a.t = active ? next : a.t;
    a.fine = active ? rest : a.fine;
}

// Set lower bounds of the thresholds. The threshold of a subset of a row is at most the row's; here
// the subset consists of the row's maximum in each lane.
template <Kind K, class T>
INLINE void bound_thresholds(const Vec<T>* groups, Vec<T> shift, Ints<T> finite, LaneState<T>& a,
                             const AlphaParams<T>& f, Vec<T>* p) {
    constexpr int N = LANES<T> / 2;  // pairs of lanes: half the work for nearly the same bound
    Vec<T> x[N];
    for (int k = 0; k < N; k++)
        x[k] = max((max(groups[2 * k], groups[2 * k + 1]) - shift) * a.eps, fill(OUTSIDE<T>));
    for (int round = 0; round < 2; round++) {
        State<T> now;
        // The last step lands on a lower bound from any start, if its sums are exact everywhere.
        if constexpr (K == GENERAL)
            now = approx_column_sums(x, N, a, round == 0 ? f.n : 0);
        else
            now = column_sums<K, false>(x, N, a, f, p, nullptr);
        move_threshold(a, finite & (round || now.excess > 0),
                       newton_step<K, T, true>(now, a.eps, a.b));
    }
    a.t = max(a.t - (K == GENERAL ? (T)APPROX_SLACK : Limits<T>::SLACK), Vec<T>{});
    a.fine = Vec<T>{};
}

// Write the probabilities of rows with the same kind and the same integer part of b. Scratch: s.x
// and s.p.
template <Kind K, class T, class S, class Output, class Finish>
void map_short(Rows<T>& s, const S* const* z, Output&& output_row, Finish&& finish) {
    constexpr bool FAST = K == GENERAL;
    constexpr int N = LANES<T>;
    const T near_enough = s.params[0].n == 1 ? (T)1 : (T)0.2;
    const AlphaParams<T>& f = s.params[0];
    Vec<T>*x = (Vec<T>*)s.x, *p = (Vec<T>*)s.p, in[N] = {}, groups[N] = {};
    LaneState<T> a;
    for (int r = 0; r < N; r++) {
        const AlphaParams<T>& own = s.params[r < s.rows ? r : 0];
        s.eps[r] = own.eps, s.b[r] = own.b, s.high[r] = own.max_threshold,
        s.reach[r] = f.n == 1 ? own.reach_up : own.reach;
    }
    a.eps = load(s.eps), a.b = load(s.b), a.high = load(s.high), a.reach = load(s.reach);
    for (int r = 0; r < s.rows; r++) {
        in[r] = load_row(z[r], 0, s.d, (T)-INFINITY);
        for (int64_t i = N; i < s.d; i += N)
            in[r] = max(load_row(z[r], i, s.d, (T)-INFINITY), in[r]);
    }
    for (int r = s.rows; r < N; r++) in[r] = in[0];
    transpose<T>(in, groups);
    Vec<T> top = groups[0];
    for (int k = 1; k < N; k++) top = max(groups[k], top);
    const Vec<T> shift = top == (T)-INFINITY ? Vec<T>{} : top;
    const Ints<T> finite = top > (T)-INFINITY;
    a.t = a.fine = a.low = Vec<T>{};
    int64_t d = s.d;
    Candidates<T> candidates;
    const bool packed = d > N;
    if (packed) {
        // With n = 0, approximate powers are not exact enough for a bound.
        if (!(FAST && f.n == 0)) bound_thresholds<K>(groups, shift, finite, a, f, p);
        a.low = a.t;
        store(s.shift, shift), store(s.above, (a.t - (T)1) * a.b);
        transpose_candidates(z, s, s.shift, s.above, s.p, x, candidates);
        d = candidates.most;
    } else {
        s.prefetch.prefetch_all(s.rows);
        transpose_rows<T>(z, s.rows, d, shift, a.eps, x);
    }
    Vec<T> mass = {};
    Ints<T> open = ~Ints<T>{};
    if constexpr (FAST) {
        for (int round = 0; round < 12; round++) {
            const State<T> now = approx_column_sums(x, d, a, f.n);
            move_threshold(a, finite & open, newton_step<GENERAL, T>(now, a.eps, a.b));
            open = finite & open & (absolute(now.excess) > near_enough);
            if (!bits(open)) break;
        }
        // Powers with small b are too curved at 0 for the series. Steps with four-digit powers save
        // one step with exact powers. They stop slightly short, so that the last step goes up.
        for (int round = f.n == 1 ? 0 : 1; round < 2 && (f.n == 1 || f.n == 2); round++) {
            const State<T> now = approx_column_sums(x, d, a, 0);
            const Vec<T> less = round == 1 ? (T)1e-4 / (a.b * now.q) : Vec<T>{};
            move_threshold(a, finite, newton_step<GENERAL, T>(now, a.eps, a.b) - less);
        }
        open = ~Ints<T>{};
    }
    Ints<T> shifted = {};
    Vec<T> delta = {};
    for (int round = 0; round < 40; round++) {
        Vec<T> fourth;
        const State<T> now = column_sums<K, true>(x, d, a, f, p, &fourth);
        mass = open ? now.mass : mass;
        Ints<T> more = finite & open & (absolute(now.excess) > Limits<T>::TOLERANCE);
        if constexpr (FAST) {
            a.low = open & (now.excess > 0) ? max(a.low, a.t) : a.low;
            a.high = open & (now.excess < 0) ? min(a.high, a.t) : a.high;
            Vec<T> root;
            Ints<T> near;
            if (f.n == 1) {
                // Sums of negative powers are useless here, but a small Newton step is exact
                // enough. It may only go up, so that no entry joins the support, and only so far
                // that the entries that leave it are tiny.
                root = newton_step<K, T>(now, a.eps, a.b);
                near = more & (root > 0) & (root < a.reach) & (now.excess < (T)1e-3);
            } else {
                // Use the root of the series of the mass in t, if it is close enough.
                root = series_root(now, a.b, fourth);
                near = more & (a.b >= 2) & (absolute(root) < a.reach);
            }
            delta = near ? root : delta;
            shifted |= near;
            more &= ~near;
        }
        if (!bits(more)) break;
        move_threshold(a, more, round_step<K, T>(now, a.eps, a.b, round));
        open = more;
    }
    if (FAST && bits(shifted)) {
        const Threshold<T, Vec<T>> at{a.t, a.fine};
        Vec<T> total = {};
        for (int64_t first = 0; first < d; first += 2 * BLOCK) {
            Vec<T> even = {}, odd = {};
            for (int64_t j = first; j < min(d, first + 2 * BLOCK); j++) {
                p[j] *= shift_factor<T>(at.base(x[j]), delta, a.b);
                (j & 1 ? odd : even) += p[j];
            }
            total += even + odd;
        }
        mass = shifted ? total : mass;
    }
    mass = finite | (mass != mass) ? mass : Vec<T>{} + (T)1;
    a.fine += delta;
    store(s.top, top), store(s.t, a.t), store(s.fine, a.fine), store(s.mass, mass);
    const Vec<T> scale = (T)1 / mass;
    if (!packed) {
        untranspose_rows<T>(p, scale, s.rows, d, output_row);
        for (int r = 0; r < s.rows; r++) finish(r);
        return;
    }
    untranspose_rows<T>(p, scale, s.rows, num_vectors<T>(d) * N,
                        [&](int r) { return s.x + r * s.stride; });
    const RowPrefetch prefetch = s.prefetch;
    const int64_t whole = s.d;
    for (int r = 0; r < s.rows; r++) {
        const T* from = s.x + r * s.stride;
        auto* out = output_row(r);
        const bool broken = !(scale[r] == scale[r]);
        for (int64_t i = 0, v = 0; i < whole; i += N, v++) {
            const uint32_t m = candidates.mask[r][v];
            prefetch.prefetch_next(r, i);
            store_row(out, i, whole, broken ? fill((T)NAN) : expand_load(from, m));
            from += __builtin_popcount(m);
        }
        finish(r);
    }
}

}  // namespace
