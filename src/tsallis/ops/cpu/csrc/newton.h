// How a row's threshold is computed: parameters of alpha, sums over candidates, Newton's steps.
//
// A row is solved in the scaled scores x = eps (z - max z) with eps = alpha - 1. Scores that matter
// lie in (-1, 0]. The probabilities are p = u^b with u = 1 + x - t and b = 1/eps, where t >= 0
// makes the row sum to 1. The threshold is stored as two numbers, t + fine: a single rounded number
// would shift all entries by the same error. Only scores above a lower bound of the threshold can
// be in the support. These candidates are compressed into a buffer, and Newton's steps read only
// that buffer. Up to a vector of rows is solved at once, so that the steps are vector arithmetic,
// too.

#pragma once

#include "simd.h"

namespace {

template <class T> constexpr T TINY = 1e-30;
constexpr int MAX_PLAIN_POWER = 8;  // higher powers amplify the rounding error of u near 1

// The purpose of a computation: losses may round tiny probabilities to zero, and the u of
// alpha-ReLU may exceed 1.
enum Use { MAPS, LOSSES, RELU };

enum Kind { SOFTMAX, TWO, THREE_HALVES, INTEGER, GENERAL };  // alpha 1, 2, 1.5, 1 + 1/n, the others

// Counting a support and listing it round differently. The count includes entries slightly below
// the least one, so that a list never runs out of room.
template <class T> constexpr T COUNT_MARGIN = (T)0.99;

template <class T> struct AlphaParams {  // alpha and the values derived from it
    Kind kind;
    double alpha;
    T eps, b, max_threshold;
    int n;       // the integer part of b
    T fraction;  // b - n
    // The largest move of t by the series: entries that then join the support stay below 1e-7.
    T reach;
    T least;  // a smaller u counts as outside the support
    // For b below 2, the largest upward move of t by the series: its error at the edge of the
    // support is at most 2e-7.
    T reach_up;
    bool has_fraction_power;  // whether fraction_power is filled in
    FractionPower fraction_power;
    // Up to this power, u^n needs no correction for lost digits and no least u.
    int max_plain_power;
};

template <class T> AlphaParams<T> alpha_params(double alpha, int64_t d, Use use) {
    AlphaParams<T> f;
    double eps = alpha - 1, b = 1 / eps;
    f.alpha = alpha;
    f.kind = GENERAL;
    f.n = 0, f.fraction = 0;
    if (alpha == 1) {
        f.kind = SOFTMAX;
        eps = b = 1;
    } else {
        double whole = ::nearbyint(b);
        // A float32 alpha such as 4/3 is as close to 1 + 1/n as float32 allows.
        double near = sizeof(T) == 4 ? 2e-6 : 1e-15;
        if (whole <= 20 && ::fabs(b - whole) <= near * whole) {
            f.n = (int)whole;
            f.kind = f.n == 1 ? TWO : f.n == 2 ? THREE_HALVES : INTEGER;
            b = whole;
            eps = 1 / whole;
        } else if (b <= 20) {
            f.n = (int)b;
            f.fraction = (T)(b - f.n);
        }
    }
    f.eps = (T)eps;
    f.b = (T)b;
    f.reach = (T)min(0.05 / b, ::exp(-17 / b));
    f.reach_up = (T)min(1e-3, ::pow(4.8e-6 / ::fabs(b * (b - 1) * (b - 2) * (b - 3)), 1 / b));
    // Arithmetic with subnormal numbers is slow: stop before them.
    const bool early = use != MAPS && sizeof(T) == 4 && b > 4 && f.n > 0;
    f.least = (T)::exp2((early ? -100 : sizeof(T) == 4 ? -150 : -1075) / b);
    if (f.kind == GENERAL) f.least = max(f.least, TINY<T>);
    f.max_plain_power = early ? 4 : MAX_PLAIN_POWER;
    f.has_fraction_power = use == LOSSES && sizeof(T) == 4 && f.kind == GENERAL && f.n > 1;
    if (f.has_fraction_power) f.fraction_power = fraction_power(b - f.n);
    f.max_threshold = (T) - ::expm1(-eps * ::log((double)d));
    return f;
}

constexpr int MAX_ROWS = LANES<float>;  // rows solved together

// Prefetches memory that a block of rows needs soon, a cache line at every step: where its
// probabilities are written, and the scores of the next block. Rows of a few dozen entries fit into
// the first-level cache.
struct RowPrefetch {
    const char *out, *next;
    int64_t row, entry;  // bytes
    bool near;

    INLINE void call(const char* p) const {
        if (near)
            __builtin_prefetch(p, 0, 3);
        else
            __builtin_prefetch(p, 0, 2);
    }
    INLINE void prefetch_out(int r, int64_t i) const { call(out + r * row + i * entry); }
    INLINE void prefetch_next(int r, int64_t i) const { call(next + r * row + i * entry); }
    INLINE void prefetch_all(int rows) const {
        for (int64_t at = 0; at < rows * row; at += 64) call(out + at), call(next + at);
    }
};

template <class T> struct Rows {  // a block of up to MAX_ROWS rows while it is solved
    int rows;
    int64_t d, stride;  // stride: of the buffers, in elements
    const AlphaParams<T>* params;
    T *x, *p;           // [rows][stride]: candidates, and for GENERAL their probabilities
    T above[MAX_ROWS];  // a candidate's score minus the row's shift exceeds this
    alignas(64) T top[MAX_ROWS], t[MAX_ROWS], fine[MAX_ROWS], mass[MAX_ROWS], low[MAX_ROWS],
        high[MAX_ROWS], eps[MAX_ROWS], b[MAX_ROWS], reach[MAX_ROWS];
    alignas(64) T shift[MAX_ROWS];  // the row's maximum, or 0 if all scores are -inf
    // Sums of u^b, u^(b-1), u^(b-2), u^(b-3), not yet added across the lanes.
    alignas(64) Vec<T> sums[4][MAX_ROWS];
    int64_t count[MAX_ROWS];
    RowPrefetch prefetch;
    int32_t* where;  // [rows][stride]: columns of the candidates, at least of the first index_room
    int64_t index_room;
    // Whether rows that are nearly all candidates may be solved in place, uncompressed
    // (dense_rows.h).
    bool allow_dense;
    bool dense[MAX_ROWS];
    T mean[MAX_ROWS];  // of dense rows: the mean of x; their count may exceed the support
};

constexpr int LANE_VECTORS = 4;  // vectors of running maxima

template <class T> INLINE int64_t num_vectors(int64_t n) { return (n + LANES<T> - 1) / LANES<T>; }

template <class T> constexpr T OUTSIDE = -3;  // a scaled score outside every support

// Return the maximum of a row. Each lane of `lanes` gets the maximum of a subset of the row, its
// elements k, k + step, ...
template <class T> INLINE T row_maximum(const T* z, int64_t d, Vec<T>* lanes) {
    constexpr int N = LANES<T>;
    Vec<T> m[LANE_VECTORS];
    for (auto& v : m) v = fill((T)-INFINITY);
    int64_t i = 0;
    for (; i + LANE_VECTORS * N <= d; i += LANE_VECTORS * N)
        for (int k = 0; k < LANE_VECTORS; k++) m[k] = max(load(z + i + k * N), m[k]);
    for (; i < d; i += N) m[0] = max(load_row(z, i, d, (T)-INFINITY), m[0]);
    for (int k = 0; k < LANE_VECTORS; k++) lanes[k] = m[k];
    return maximum<T>(max(max(m[0], m[1]), max(m[2], m[3])));
}

// Write first + lane for each lane of a mask, without gaps.
INLINE void compress_lane_indices(int32_t* out, int32_t first, uint32_t mask, float) {
    FI lane;
    for (int k = 0; k < LANES<float>; k++) lane[k] = k;
    compress_store<float>((float*)out, (F)(lane + first), mask);
}
INLINE void compress_lane_indices(int32_t* out, int32_t first, uint32_t mask, double) {
    for (; mask; mask &= mask - 1) *out++ = first + __builtin_ctz(mask);
}

// Write from[lane] for each lane of a mask, without gaps.
INLINE void compress_indices(int32_t* out, const int32_t* from, uint32_t mask, float) {
    compress_store<float>((float*)out, load((const float*)from), mask);
}
INLINE void compress_indices(int32_t* out, const int32_t* from, uint32_t mask, double) {
    for (; mask; mask &= mask - 1) *out++ = from[__builtin_ctz(mask)];
}

// Compress the scaled scores above the bound (and every NaN) into `out`; return how many there are.
// Their columns are written to `where`, at least those of the first index_room candidates.
template <class T>
INLINE int64_t compress_candidates(const T* z, int64_t d, T shift, T eps, T above, T* out,
                                   int32_t* where, int64_t index_room) {
    constexpr int N = LANES<T>;
    const Vec<T> bound = fill(above);
    int64_t n = 0, i = 0;
    if (d >= 1024) {  // most groups of a long row hold no candidate
        for (; i + 4 * N <= d; i += 4 * N) {
            Vec<T> w0 = load(z + i) - shift, w1 = load(z + i + N) - shift;
            Vec<T> w2 = load(z + i + 2 * N) - shift, w3 = load(z + i + 3 * N) - shift;
            uint32_t m0 = not_le<T>(w0, bound), m1 = not_le<T>(w1, bound);
            uint32_t m2 = not_le<T>(w2, bound), m3 = not_le<T>(w3, bound);
            if (!(m0 | m1 | m2 | m3)) continue;
            if (n < index_room) {
                const uint32_t m[4] = {m0, m1, m2, m3};
                int64_t at = n;
                for (int k = 0; k < 4; at += __builtin_popcount(m[k++]))
                    compress_lane_indices(where + at, (int32_t)(i + k * N), m[k], (T)0);
            }
            compress_store(out + n, w0 * eps, m0), n += __builtin_popcount(m0);
            compress_store(out + n, w1 * eps, m1), n += __builtin_popcount(m1);
            compress_store(out + n, w2 * eps, m2), n += __builtin_popcount(m2);
            compress_store(out + n, w3 * eps, m3), n += __builtin_popcount(m3);
        }
    }
    for (; i < d; i += N) {
        Vec<T> w = load_row(z, i, d, (T)-INFINITY) - shift;
        uint32_t m = not_le<T>(w, bound);
        if (n < index_room) compress_lane_indices(where + n, (int32_t)i, m, (T)0);
        compress_store(out + n, w * eps, m), n += __builtin_popcount(m);
    }
    store(out + n, fill(OUTSIDE<T>));
    return n;
}

template <class T> struct Sums {
    Vec<T> p = {}, q = {}, r = {}, w = {};  // sums of u^b, u^(b-1), u^(b-2), u^(b-3)
    INLINE void add(const Sums& other) { p += other.p, q += other.q, r += other.r, w += other.w; }
};

// Number of vectors that are summed before their sum is added to a longer one. In one long sum,
// equal terms would round in the same direction every time.
constexpr int64_t BLOCK = 32;

template <class T, class V = T> struct Threshold {  // of one row, or of one row per lane
    V t, fine;

    // Return the base u = 1 + x - t, exact to its last digit near 0.
    INLINE Vec<T> base(Vec<T> x) const {
        const V below = t - (T)1, rounding = t - (below + (T)1);
        return positive_part(x - below - (fine + rounding));
    }
    // Return u - 1, exact to its last digit near 0.
    INLINE Vec<T> base_minus_one(Vec<T> x, Vec<T> u) const {
        return u > (T)0.5 ? x - t - fine : u - (T)1;
    }
};
// Return u^b for GENERAL and u > 0; undefined for a NaN. With a small b the rounding error of u is
// negligible.
template <class T, class At>
INLINE Vec<T> general_power(Vec<T> x, Vec<T> u, Vec<T> inside, At at, const AlphaParams<T>& f,
                            Vec<T> b) {
    if constexpr (sizeof(T) == 4)
        if (f.n > 0 && f.n < MAX_PLAIN_POWER) return power(inside, b);
    return power_of_one_plus(at.base_minus_one(x, u), inside, b);
}

// Compute the unnormalised probabilities of W vectors of scaled scores; p may be x.
template <Kind K, int W, class T>
INLINE void probabilities(const Vec<T>* x, Threshold<T> at, const AlphaParams<T>& f, Vec<T>* p) {
    if (K == TWO || K == THREE_HALVES || (K == INTEGER && f.n <= f.max_plain_power)) {
        for (int k = 0; k < W; k++) p[k] = at.base(x[k]);
        if (K == THREE_HALVES)
            for (int k = 0; k < W; k++) p[k] *= p[k];
        if (K == INTEGER) integer_powers<W>(p, f.n, p);
    } else if (K == GENERAL && !f.has_fraction_power) {
        for (int k = 0; k < W; k++) {
            const Vec<T> u = at.base(x[k]),
                         v = general_power(x[k], u, max(fill(TINY<T>), u), at, f, fill(f.b));
            p[k] = u >= f.least ? v : u * (T)0;
        }
    } else {
        // Correct the power to first order for the digits that u lost to rounding.
        const T coarse = at.t - 1, rest = at.fine + (at.t - (coarse + 1)), below = coarse + rest;
        const T last = (coarse - below) + rest;
        Vec<T> raw[W], u[W], power[W];
        for (int k = 0; k < W; k++) raw[k] = x[k] - below, u[k] = max(fill(f.least), raw[k]);
        integer_powers<W>(u, f.n - 1, power);
        if constexpr (K == GENERAL) multiply_fraction_power<W>(u, f.fraction_power, power);
        for (int k = 0; k < W; k++) {
            const Vec<T> v = power[k] * (u[k] + (x[k] - (u[k] + below) - last) * f.b);
            p[k] = raw[k] < f.least ? Vec<T>{} : v;
        }
    }
}
template <Kind K, class T>
INLINE Vec<T> probability(Vec<T> x, Threshold<T> at, const AlphaParams<T>& f) {
    probabilities<K, 1>(&x, at, f, &x);
    return x;
}

template <Kind K, class T, bool STORE, class At>
INLINE void add_terms(Vec<T> x, At at, const AlphaParams<T>& f, Vec<T> b, Sums<T>& s, T* out) {
    const Vec<T> u = at.base(x);
    Vec<T> p;
    if constexpr (K == GENERAL) {
        Vec<T> q, r, w;
        if (f.has_fraction_power) {
            const Vec<T> inside = max(fill(f.least), u);
            w = f.n > 3    ? integer_power(inside, f.n - 3)
                : f.n == 3 ? fill((T)1)
                           : reciprocal(inside);
            multiply_fraction_power<1>(&inside, f.fraction_power, &w);
            w = u < f.least ? Vec<T>{} : w;
            r = w * inside, q = r * inside,
            p = q * (u + (at.base_minus_one(x, u) - (u - (T)1)) * b);
        } else {
            Vec<T> inside = max(fill(TINY<T>), u), inv = reciprocal(inside);
            p = general_power(x, u, inside, at, f, b);
            p = u >= TINY<T> ? p : u * (T)0;
            q = p * inv, r = q * inv, w = r * inv;
        }
        s.q += q;
        s.r += r;
        s.w += w;
    } else if constexpr (K == TWO) {
        p = u;
        s.q += u > 0 ? fill((T)1) : Vec<T>{};
    } else if constexpr (K == THREE_HALVES) {
        p = u * u;
        s.q += u;
        s.r += u > 0 ? fill((T)1) : Vec<T>{};
    } else {
        Vec<T> r = f.n == 3 ? u : integer_power(u, f.n - 2), q = r * u;
        p = q * (f.n <= MAX_PLAIN_POWER ? u : u + (at.base_minus_one(x, u) - (u - (T)1)) * (T)f.n);
        s.q += q;
        s.r += r;
    }
    if (STORE) store(out, p);
    s.p += p;
}

template <Kind K, class T, bool STORE>
INLINE Sums<T> block_sums(const T* x, int64_t i, int64_t last, Threshold<T> at,
                          const AlphaParams<T>& f, T* out) {
    constexpr int N = LANES<T>;
    const Vec<T> b = fill(f.b);
    Sums<T> even, odd;
    for (; i + 2 <= last; i += 2) {
        add_terms<K, T, STORE>(load(x + i * N), at, f, b, even, out + i * N);
        add_terms<K, T, STORE>(load(x + i * N + N), at, f, b, odd, out + i * N + N);
    }
    if (i < last) add_terms<K, T, STORE>(load(x + i * N), at, f, b, even, out + i * N);
    even.add(odd);
    return even;
}

// Compute the sums over n vectors of candidates, in blocks and with the mass in double, so that
// rounding errors don't grow.
template <Kind K, class T, bool STORE>
INLINE Sums<T> candidate_sums(const T* x, int64_t n, Threshold<T> at, const AlphaParams<T>& f,
                              T* out) {
    if (n <= BLOCK) return block_sums<K, T, STORE>(x, 0, n, at, f, out);
    Sums<T> total;
    double mass = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        Sums<T> block = block_sums<K, T, STORE>(x, first, min(n, first + BLOCK), at, f, out);
        mass += sum<T>(block.p);
        total.add(block);
    }
    total.p = Vec<T>{(T)mass};
    return total;
}

// Approximate the sums for GENERAL over every `step`-th vector. u^b = u^n u^rest is computed with a
// quadratic at 1 for u^rest, or to four digits if n is 0.
template <class T>
INLINE Sums<T> approx_sums(const T* x, int64_t n, int64_t step, T t, const AlphaParams<T>& f) {
    constexpr int N = LANES<T>;
    const Vec<T> b = fill(f.b);
    Sums<T> total;
    if (f.n == 0) {
        for (int64_t i = 0; i < n; i += step) {
            Vec<T> u = load(x + i * N) - t + (T)1, inside = max(u, fill((T)1e-20));
            Vec<T> p = approx_power(inside, b), inv = approx_reciprocal(inside);
            p = u > (T)1e-20 ? p : Vec<T>{};
            total.p += p;
            p *= inv, total.q += p;
            p *= inv, total.r += p;
        }
        return total;
    }
    const T quadratic = f.fraction * (f.fraction - 1) / 2;
    for (int64_t i = 0; i < n; i += step) {
        Vec<T> u = positive_part(load(x + i * N) - (t - 1)), low = u - (T)1,
               rest = (low * quadratic + f.fraction) * low + (T)1, q;
        if (f.n == 1) {
            q = u > 0 ? rest : Vec<T>{};
        } else {
            Vec<T> r = f.n == 2 ? (u > 0 ? rest : Vec<T>{})
                                : rest * (f.n == 3 ? u : integer_power(u, f.n - 2));
            total.r += r;
            q = r * u;
        }
        total.q += q;
        total.p += q * u;
    }
    return total;
}

template <class T> INLINE Threshold<T> threshold(const Rows<T>& s, int row) {
    return {s.t[row], s.fine[row]};
}

template <class T> INLINE void set_sums(Rows<T>& s, int row, const Sums<T>& sums, T times = 1) {
    s.sums[0][row] = sums.p * times, s.sums[1][row] = sums.q * times,
    s.sums[2][row] = sums.r * times;
}

// The steps have one row per lane.

template <class T> struct State {
    Vec<T> mass, q, r, excess;
};
template <class T> INLINE State<T> state(const Rows<T>& s, int first) {
    Vec<T> mass = lane_sums<T>(s.sums[0] + first);
    return {mass, lane_sums<T>(s.sums[1] + first), lane_sums<T>(s.sums[2] + first), mass - (T)1};
}

// Return the step in t from sums at t. It is Newton's step on the b-norm of u, which is convex and
// nearly linear, so that the step lands on a lower bound from either side. For alpha 1.5 it is the
// step to the root of the current support's quadratic, for large b a step corrected to third order.
// With BOUND it is always Newton's own step, for callers that need the lower bound.
template <Kind K, class T, bool BOUND = false>
INLINE Vec<T> newton_step(const State<T>& s, Vec<T> eps, Vec<T> b) {
    if constexpr (K == TWO) return s.excess / s.q;
    if constexpr (K == THREE_HALVES) {
        if (BOUND) return (s.mass - square_root(s.mass)) / s.q;
        Vec<T> inside = s.q * s.q - s.r * s.excess;
        Vec<T> exact = s.excess / (s.q + square_root(positive_part(inside)));
        // Too far from the solution, the quadratic has no root.
        return inside >= 0 ? exact : (s.mass - square_root(s.mass)) / s.q;
    }
    // F (1 - F^-eps) / G, by series if F is near 1
    constexpr bool WIDE = sizeof(T) == 8;
    Vec<T> e = s.excess;
    Vec<T> log_mass = absolute(e) < (T)(WIDE ? 1e-4 : 1e-2)
                          ? e * ((T)1 - e * ((T)0.5 - e * (T)(1.0 / 3)))
                          : log_(max(s.mass, fill(TINY<T>)));
    Vec<T> l = log_mass * eps;
    Vec<T> g = absolute(l) < (T)(WIDE ? 2e-4 : 2e-2) ? l * ((T)1 - l * ((T)0.5 - l * (T)(1.0 / 6)))
                                                     : (T)1 - exp_(-l);
    Vec<T> step = g * s.mass / s.q;
    if (BOUND) return step;
    Vec<T> curvature = (T)1 - (T)0.5 * step * (b - (T)1) * (s.r / s.q - s.q / s.mass);
    return ((b >= 2) & (curvature > (T)0.3) & (curvature < 3)) ? step / curvature : step;
}

// Return the step of a round. The steps of `newton_step` may alternate between two thresholds, but
// Newton's own steps always converge.
template <Kind K, class T>
INLINE Vec<T> round_step(const State<T>& s, Vec<T> eps, Vec<T> b, int round) {
    return round < 8 ? newton_step<K, T>(s, eps, b) : newton_step<K, T, true>(s, eps, b);
}

// Return the distance from t to the root of a cubic whose coefficients are the sums; `last` is the
// sum of u^(b-3).
template <class T> INLINE Vec<T> series_root(const State<T>& s, Vec<T> b, Vec<T> last) {
    const Vec<T> c1 = b * s.q, c2 = b * (b - (T)1) * (T)0.5 * s.r;
    const Vec<T> c3 = b * (b - (T)1) * (b - (T)2) * (T)(1.0 / 6) * last;
    Vec<T> root = s.excess / c1;
    for (int k = 0; k < 3; k++) {
        Vec<T> value = s.excess - root * (c1 - root * (c2 - root * c3));
        root += value / (c1 - root * ((T)2 * c2 - (T)3 * root * c3));
    }
    return root;
}

// Return the factor of u^b if the threshold rises by delta: (1 - delta/u)^b to third order, and 0
// for entries that leave the support.
template <class T> INLINE Vec<T> shift_factor(Vec<T> u, Vec<T> delta, Vec<T> b) {
    const Vec<T> c2 = b * (b - (T)1) / (T)2, c3 = c2 * (b - (T)2) / (T)3;
    const Vec<T> r = delta * reciprocal(max(u, fill((T)1e-6)));
    return u > delta ? positive_part((T)1 - r * (b - r * (c2 - r * c3))) : Vec<T>{};
}

template <class T> struct Limits;
template <> struct Limits<float> {
    static constexpr float TOLERANCE = 1e-6f, SLACK = 4e-6f;
};
template <> struct Limits<double> {
    static constexpr double TOLERANCE = 1e-13, SLACK = 1e-12;
};

constexpr int32_t ONE_BIT[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
constexpr int64_t ONE_BIT_WIDE[8] = {1, 2, 4, 8, 16, 32, 64, 128};

// Return a mask of lanes; lane k is set if row first + k is in the set `rows`.
INLINE FI row_lanes(uint32_t rows, int first, float) {
    FI lane;
    std::memcpy(&lane, ONE_BIT, sizeof lane);
    return ((FI{} + (int32_t)(rows >> first)) & lane) != 0;
}
INLINE DI row_lanes(uint32_t rows, int first, double) {
    DI lane;
    std::memcpy(&lane, ONE_BIT_WIDE, sizeof lane);
    return ((DI{} + (int64_t)(rows >> first)) & lane) != 0;
}

// Move the thresholds of active rows by a step, within their limits. The digits that t rounds off
// go into the fine part.
template <class T> INLINE void move_threshold(Rows<T>& s, int first, Ints<T> active, Vec<T> step) {
    const Vec<T> t = load(s.t + first), fine = load(s.fine + first), by = fine + step;
    const Vec<T> target = t + by,
                 next = max(min(target, load(s.high + first)), load(s.low + first));
    const Vec<T> rest = next == target ? (t - next) + by : Vec<T>{};
    store(s.t + first, active ? next : t);
    store(s.fine + first, active ? rest : fine);
}

// Take one step on the open rows from their sums. Return the rows whose mass differs from 1 by more
// than `off`.
template <Kind K, class T> INLINE uint32_t approx_step(Rows<T>& s, uint32_t open, T off) {
    uint32_t left = 0;
    for (int first = 0; first < s.rows; first += LANES<T>) {
        const State<T> now = state(s, first);
        const Ints<T> active = row_lanes(open, first, (T)0);
        move_threshold(s, first, active,
                       newton_step<K, T>(now, load(s.eps + first), load(s.b + first)));
        left |= bits(active & (absolute(now.excess) > off)) << first;
    }
    return left;
}

}  // namespace
