// What thresholds are found with: families of alphas, rows, sums over candidates, and steps.
//
// A row is solved in the scaled scores x = eps (z - max z), eps = alpha - 1, which lie in (-1, 0]
// where they matter: p = u^b with u = 1 + x - t and b = 1/eps, and t >= 0 such that the row sums
// to 1. The threshold is a sum of two numbers, t + fine: rounded to one, it would be off by a digit
// for every entry at once. Only the scores above a lower bound of the threshold are looked at more
// than once: they are packed into a buffer, and Newton's steps read that alone. Up to one vector of
// rows is solved together, so that the steps themselves are vector arithmetic.

#pragma once

#include "simd.h"

namespace {

template <class T> constexpr T SMALLEST = 1e-30;
constexpr int PLAIN_POWER = 8;  // higher powers show the digits of u that near 1 are lost

// What for: losses need no number next to nothing, and alpha-ReLU's u may be beyond 1.
enum Use { MAPS, LOSSES, RELU };

enum Kind { SOFTMAX, TWO, THREE_HALVES, WHOLE, ANY };  // alpha 1, 2, 1.5, 1 + 1/n, the others

// Who counts a support from other sums than list it counts what is a little below its least entries
// too.
template <class T> constexpr T COUNTED = (T)0.99;

template <class T> struct Family {  // one alpha, prepared
    Kind kind;
    double alpha;
    T eps, b, highest;  // highest: an upper bound of t
    int n;              // the whole part of b
    T rest;             // and what is left of it
    // How far the series below may move t: what enters the support there stays below 1e-7.
    T reach;
    T least;  // u^b of a smaller u is zero
    // How far up for b below 2: the series is off by at most 2e-7 where the support ends.
    T climb;
    bool parted;  // whether u^rest is prepared
    RestPower part;
    // Whole powers up to this one are taken as they are, without lost digits or a least u.
    int plain;
};

template <class T> Family<T> family(double alpha, int64_t d, Use use) {
    Family<T> f;
    double eps = alpha - 1, b = 1 / eps;
    f.alpha = alpha;
    f.kind = ANY;
    f.n = 0, f.rest = 0;
    if (alpha == 1) {
        f.kind = SOFTMAX;
        eps = b = 1;
    } else {
        double whole = ::nearbyint(b);
        // A float32 alpha such as 4/3 is as near to 1 + 1/n as float32 can say.
        double near = sizeof(T) == 4 ? 2e-6 : 1e-15;
        if (whole <= 20 && ::fabs(b - whole) <= near * whole) {
            f.n = (int)whole;
            f.kind = f.n == 1 ? TWO : f.n == 2 ? THREE_HALVES : WHOLE;
            b = whole;
            eps = 1 / whole;
        } else if (b <= 20) {
            f.n = (int)b;
            f.rest = (T)(b - f.n);
        }
    }
    f.eps = (T)eps;
    f.b = (T)b;
    f.reach = (T)smaller(0.05 / b, ::exp(-17 / b));
    f.climb = (T)smaller(1e-3, ::pow(4.8e-6 / ::fabs(b * (b - 1) * (b - 2) * (b - 3)), 1 / b));
    // Arithmetic with numbers next to nothing is slow.
    const bool early = use != MAPS && sizeof(T) == 4 && b > 4 && f.n > 0;
    f.least = (T)::exp2((early ? -100 : sizeof(T) == 4 ? -150 : -1075) / b);
    if (f.kind == ANY) f.least = larger(f.least, SMALLEST<T>);
    f.plain = early ? 4 : PLAIN_POWER;
    f.parted = use == LOSSES && sizeof(T) == 4 && f.kind == ANY && f.n > 1;
    if (f.parted) f.part = rest_powers(b - f.n);
    f.highest = (T) - ::expm1(-eps * ::log((double)d));
    return f;
}

constexpr int MOST = LANES<float>;  // rows solved together

// Memory that rows will need soon, called into the cache a little with every step: where this
// block's probabilities are written, and where the next one's scores lie. In the first-level cache
// there is room for it where rows are few dozens.
struct Around {
    const char *out, *next;
    int64_t row, entry;  // bytes
    bool near;

    INLINE void call(const char* p) const {
        if (near)
            __builtin_prefetch(p, 0, 3);
        else
            __builtin_prefetch(p, 0, 2);
    }
    INLINE void call_out(int r, int64_t i) const { call(out + r * row + i * entry); }
    INLINE void call_next(int r, int64_t i) const { call(next + r * row + i * entry); }
    INLINE void call_all(int rows) const {
        for (int64_t at = 0; at < rows * row; at += 64) call(out + at), call(next + at);
    }
};

template <class T> struct Rows {  // up to a vector of rows, and what is known of them
    int rows;
    int64_t d, stride;  // of the buffers, in elements
    const Family<T>* family;
    T *x, *p;       // [rows][stride]: candidates, and for ANY their probabilities
    T above[MOST];  // candidates are the scores above it, less the row's shift
    alignas(64) T top[MOST], t[MOST], fine[MOST], mass[MOST], low[MOST], high[MOST], eps[MOST],
        b[MOST], reach[MOST];
    alignas(64) T shift[MOST];  // the row's maximum, or 0 in a row where nothing takes part
    // Of u^b, u^(b-1), u^(b-2), u^(b-3), not yet added across the lanes.
    alignas(64) Vec<T> sums[4][MOST];
    int64_t count[MOST];
    Around around;
    int32_t* where;  // [rows][stride]: the candidates' places, of the first `places` at least
    int64_t places;
    // Whether a row nearly all of which are candidates may be solved as it lies, unpacked:
    bool level;
    bool unpacked[MOST];
    T mean[MOST];  // then the mean of x, and `count` is of the support or more
};

constexpr int LANE_VECTORS = 4;  // vectors of running maxima

template <class T> INLINE int64_t padded(int64_t n) { return (n + LANES<T> - 1) / LANES<T>; }

template <class T> constexpr T OUTSIDE = -3;  // a scaled score that is in no support

// One pass over a row.

// The maximum of a row, and the maxima of its elements k, k + step, ... : of a subset of it.
template <class T> INLINE T row_maximum(const T* z, int64_t d, Vec<T>* lanes) {
    constexpr int N = LANES<T>;
    Vec<T> m[LANE_VECTORS];
    for (auto& v : m) v = fill((T)-INFINITY);
    int64_t i = 0;
    for (; i + LANE_VECTORS * N <= d; i += LANE_VECTORS * N)
        for (int k = 0; k < LANE_VECTORS; k++) m[k] = larger(load(z + i + k * N), m[k]);
    for (; i < d; i += N) m[0] = larger(load_row(z, i, d, (T)-INFINITY), m[0]);
    for (int k = 0; k < LANE_VECTORS; k++) lanes[k] = m[k];
    return maximum<T>(larger(larger(m[0], m[1]), larger(m[2], m[3])));
}

// first + lane, of the lanes a mask names, pressed together at `out`.
INLINE void store_places(int32_t* out, int32_t first, uint32_t mask, float) {
    FI lane;
    for (int k = 0; k < LANES<float>; k++) lane[k] = k;
    store_packed<float>((float*)out, (F)(lane + first), mask);
}
INLINE void store_places(int32_t* out, int32_t first, uint32_t mask, double) {
    for (; mask; mask &= mask - 1) *out++ = first + __builtin_ctz(mask);
}

// Places that a mask names, the same way.
INLINE void pack_places(int32_t* out, const int32_t* from, uint32_t mask, float) {
    store_packed<float>((float*)out, load((const float*)from), mask);
}
INLINE void pack_places(int32_t* out, const int32_t* from, uint32_t mask, double) {
    for (; mask; mask &= mask - 1) *out++ = from[__builtin_ctz(mask)];
}

// Scaled scores of the entries above the bound (and of every NaN), packed; returns how many. Their
// places too, of the first `places` at least.
template <class T>
INLINE int64_t pack_candidates(const T* z, int64_t d, T shift, T eps, T above, T* out,
                               int32_t* where, int64_t places) {
    constexpr int N = LANES<T>;
    const Vec<T> bound = fill(above);
    int64_t n = 0, i = 0;
    if (d >= 1024) {  // most groups of a long row hold none
        for (; i + 4 * N <= d; i += 4 * N) {
            Vec<T> w0 = load(z + i) - shift, w1 = load(z + i + N) - shift;
            Vec<T> w2 = load(z + i + 2 * N) - shift, w3 = load(z + i + 3 * N) - shift;
            uint32_t m0 = beyond<T>(w0, bound), m1 = beyond<T>(w1, bound);
            uint32_t m2 = beyond<T>(w2, bound), m3 = beyond<T>(w3, bound);
            if (!(m0 | m1 | m2 | m3)) continue;
            if (n < places) {
                const uint32_t m[4] = {m0, m1, m2, m3};
                int64_t at = n;
                for (int k = 0; k < 4; at += __builtin_popcount(m[k++]))
                    store_places(where + at, (int32_t)(i + k * N), m[k], (T)0);
            }
            store_packed(out + n, w0 * eps, m0), n += __builtin_popcount(m0);
            store_packed(out + n, w1 * eps, m1), n += __builtin_popcount(m1);
            store_packed(out + n, w2 * eps, m2), n += __builtin_popcount(m2);
            store_packed(out + n, w3 * eps, m3), n += __builtin_popcount(m3);
        }
    }
    for (; i < d; i += N) {
        Vec<T> w = load_row(z, i, d, (T)-INFINITY) - shift;
        uint32_t m = beyond<T>(w, bound);
        if (n < places) store_places(where + n, (int32_t)i, m, (T)0);
        store_packed(out + n, w * eps, m), n += __builtin_popcount(m);
    }
    store(out + n, fill(OUTSIDE<T>));
    return n;
}

// Sums over candidates.

template <class T> struct Sums {
    Vec<T> p = {}, q = {}, r = {}, w = {};  // of u^b, u^(b-1), u^(b-2), u^(b-3)
    INLINE void add(const Sums& other) { p += other.p, q += other.q, r += other.r, w += other.w; }
};

// Vectors added up before their sum is added to a longer one: equal terms would round to the same
// side every time.
constexpr int64_t BLOCK = 32;

template <class T, class V = T> struct Threshold {  // of a row, or of a row a lane
    V t, fine;

    // u = 1 + x - t, with every digit that it has near 0
    INLINE Vec<T> over(Vec<T> x) const {
        const V below = t - (T)1, rounded = t - (below + (T)1);
        return positive(x - below - (fine + rounded));
    }
    // u - 1, with every digit that it has near 0
    INLINE Vec<T> past(Vec<T> x, Vec<T> u) const { return u > (T)0.5 ? x - t - fine : u - (T)1; }
};
// u^b for ANY, of u > 0; what it is of a NaN is open. Where b is small, no digit that u lacks would
// show.
template <class T, class At>
INLINE Vec<T> any_power(Vec<T> x, Vec<T> u, Vec<T> inside, At at, const Family<T>& f, Vec<T> b) {
    if constexpr (sizeof(T) == 4)
        if (f.n > 0 && f.n < PLAIN_POWER) return power(inside, b);
    return power_of_one_plus(at.past(x, u), inside, b);
}

// Probabilities of W vectors of scaled scores, before they are normalised; p may be x.
template <Kind K, int W, class T>
INLINE void probabilities(const Vec<T>* x, Threshold<T> at, const Family<T>& f, Vec<T>* p) {
    if (K == TWO || K == THREE_HALVES || (K == WHOLE && f.n <= f.plain)) {
        for (int k = 0; k < W; k++) p[k] = at.over(x[k]);
        if (K == THREE_HALVES)
            for (int k = 0; k < W; k++) p[k] *= p[k];
        if (K == WHOLE) whole_powers<W>(p, f.n, p);
    } else if (K == ANY && !f.parted) {
        for (int k = 0; k < W; k++) {
            const Vec<T> u = at.over(x[k]),
                         v = any_power(x[k], u, larger(fill(SMALLEST<T>), u), at, f, fill(f.b));
            p[k] = u >= f.least ? v : u * (T)0;
        }
    } else {
        // The digits that u loses are put back into the power.
        const T coarse = at.t - 1, rest = at.fine + (at.t - (coarse + 1)), below = coarse + rest;
        const T last = (coarse - below) + rest;
        Vec<T> raw[W], u[W], power[W];
        for (int k = 0; k < W; k++) raw[k] = x[k] - below, u[k] = larger(fill(f.least), raw[k]);
        whole_powers<W>(u, f.n - 1, power);
        if constexpr (K == ANY) times_rest_power<W>(u, f.part, power);
        for (int k = 0; k < W; k++) {
            const Vec<T> v = power[k] * (u[k] + (x[k] - (u[k] + below) - last) * f.b);
            p[k] = raw[k] < f.least ? Vec<T>{} : v;
        }
    }
}
template <Kind K, class T>
INLINE Vec<T> probability(Vec<T> x, Threshold<T> at, const Family<T>& f) {
    probabilities<K, 1>(&x, at, f, &x);
    return x;
}

template <Kind K, class T, bool KEEP, class At>
INLINE void add_one(Vec<T> x, At at, const Family<T>& f, Vec<T> b, Sums<T>& s, T* keep) {
    const Vec<T> u = at.over(x);
    Vec<T> p;
    if constexpr (K == ANY) {
        Vec<T> q, r, w;
        if (f.parted) {
            const Vec<T> inside = larger(fill(f.least), u);
            w = f.n > 3 ? whole_power(inside, f.n - 3) : f.n == 3 ? fill((T)1) : inverse(inside);
            times_rest_power<1>(&inside, f.part, &w);
            w = u < f.least ? Vec<T>{} : w;
            r = w * inside, q = r * inside, p = q * (u + (at.past(x, u) - (u - (T)1)) * b);
        } else {
            Vec<T> inside = larger(fill(SMALLEST<T>), u), inv = inverse(inside);
            p = any_power(x, u, inside, at, f, b);
            p = u >= SMALLEST<T> ? p : u * (T)0;
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
        Vec<T> r = f.n == 3 ? u : whole_power(u, f.n - 2), q = r * u;
        p = q * (f.n <= PLAIN_POWER ? u : u + (at.past(x, u) - (u - (T)1)) * (T)f.n);
        s.q += q;
        s.r += r;
    }
    if (KEEP) store(keep, p);
    s.p += p;
}

template <Kind K, class T, bool KEEP>
INLINE Sums<T> add_block(const T* x, int64_t i, int64_t last, Threshold<T> at, const Family<T>& f,
                         T* keep) {
    constexpr int N = LANES<T>;
    const Vec<T> b = fill(f.b);
    Sums<T> even, odd;
    for (; i + 2 <= last; i += 2) {
        add_one<K, T, KEEP>(load(x + i * N), at, f, b, even, keep + i * N);
        add_one<K, T, KEEP>(load(x + i * N + N), at, f, b, odd, keep + i * N + N);
    }
    if (i < last) add_one<K, T, KEEP>(load(x + i * N), at, f, b, even, keep + i * N);
    even.add(odd);
    return even;
}

// Sums over n vectors of candidates; of many in blocks, and their mass in double, so that rounding
// doesn't grow.
template <Kind K, class T, bool KEEP>
INLINE Sums<T> add_all(const T* x, int64_t n, Threshold<T> at, const Family<T>& f, T* keep) {
    if (n <= BLOCK) return add_block<K, T, KEEP>(x, 0, n, at, f, keep);
    Sums<T> total;
    double mass = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        Sums<T> block = add_block<K, T, KEEP>(x, first, smaller(n, first + BLOCK), at, f, keep);
        mass += sum<T>(block.p);
        total.add(block);
    }
    total.p = Vec<T>{(T)mass};
    return total;
}

// Nearly the same for ANY, over every `step`-th vector: u^b = u^n u^rest by a quadratic at 1, or to
// four digits.
template <class T>
INLINE Sums<T> add_roughly(const T* x, int64_t n, int64_t step, T t, const Family<T>& f) {
    constexpr int N = LANES<T>;
    const Vec<T> b = fill(f.b);
    Sums<T> total;
    if (f.n == 0) {
        for (int64_t i = 0; i < n; i += step) {
            Vec<T> u = load(x + i * N) - t + (T)1, inside = larger(u, fill((T)1e-20));
            Vec<T> p = rough_power(inside, b), inv = about_inverse(inside);
            p = u > (T)1e-20 ? p : Vec<T>{};
            total.p += p;
            p *= inv, total.q += p;
            p *= inv, total.r += p;
        }
        return total;
    }
    const T bend = f.rest * (f.rest - 1) / 2;
    for (int64_t i = 0; i < n; i += step) {
        Vec<T> u = positive(load(x + i * N) - (t - 1)), low = u - (T)1,
               rest = (low * bend + f.rest) * low + (T)1, q;
        if (f.n == 1) {
            q = u > 0 ? rest : Vec<T>{};
        } else {
            Vec<T> r = f.n == 2 ? (u > 0 ? rest : Vec<T>{})
                                : rest * (f.n == 3 ? u : whole_power(u, f.n - 2));
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

template <class T> INLINE void keep_sums(Rows<T>& s, int row, const Sums<T>& sums, T times = 1) {
    s.sums[0][row] = sums.p * times, s.sums[1][row] = sums.q * times,
    s.sums[2][row] = sums.r * times;
}

// Steps: one row a lane.

template <class T> struct State {
    Vec<T> mass, q, r, excess;
};
template <class T> INLINE State<T> state(const Rows<T>& s, int first) {
    Vec<T> mass = sums_of<T>(s.sums[0] + first);
    return {mass, sums_of<T>(s.sums[1] + first), sums_of<T>(s.sums[2] + first), mass - (T)1};
}

// The step in t from sums at t. Newton on the b-norm of u, which is convex and nearly linear: from
// either side it lands on a lower bound. For 1.5 the root of the current support's quadratic; for
// large b corrected to third order. With BOUND it never leaves that bound.
template <Kind K, class T, bool BOUND = false>
INLINE Vec<T> newton_step(const State<T>& s, Vec<T> eps, Vec<T> b) {
    if constexpr (K == TWO) return s.excess / s.q;
    if constexpr (K == THREE_HALVES) {
        if (BOUND) return (s.mass - root(s.mass)) / s.q;
        Vec<T> inside = s.q * s.q - s.r * s.excess;
        Vec<T> exact = s.excess / (s.q + root(positive(inside)));
        // Far off the quadratic has no root. A little more than Newton's step saves steps; the next
        // ones come back.
        return inside >= 0 ? exact : (s.mass - root(s.mass)) / s.q * (T)1.15;
    }
    // F (1 - F^-eps) / G, by series where F is near 1
    constexpr bool WIDE = sizeof(T) == 8;
    Vec<T> e = s.excess;
    Vec<T> log_mass = absolute(e) < (T)(WIDE ? 1e-4 : 1e-2)
                          ? e * ((T)1 - e * ((T)0.5 - e * (T)(1.0 / 3)))
                          : log_(larger(s.mass, fill(SMALLEST<T>)));
    Vec<T> l = log_mass * eps;
    Vec<T> g = absolute(l) < (T)(WIDE ? 2e-4 : 2e-2) ? l * ((T)1 - l * ((T)0.5 - l * (T)(1.0 / 6)))
                                                     : (T)1 - exp_(-l);
    Vec<T> step = g * s.mass / s.q;
    if (BOUND) return step;
    Vec<T> bend = (T)1 - (T)0.5 * step * (b - (T)1) * (s.r / s.q - s.q / s.mass);
    return ((b >= 2) & (bend > (T)0.3) & (bend < 3)) ? step / bend : step;
}

// How far t is from the root of the cubic that the sums, the last of them of u^(b-3), are the
// coefficients of.
template <class T> INLINE Vec<T> root_of_series(const State<T>& s, Vec<T> b, Vec<T> last) {
    const Vec<T> c1 = b * s.q, c2 = b * (b - (T)1) * (T)0.5 * s.r;
    const Vec<T> c3 = b * (b - (T)1) * (b - (T)2) * (T)(1.0 / 6) * last;
    Vec<T> root = s.excess / c1;
    for (int k = 0; k < 3; k++) {
        Vec<T> value = s.excess - root * (c1 - root * (c2 - root * c3));
        root += value / (c1 - root * ((T)2 * c2 - (T)3 * root * c3));
    }
    return root;
}

template <class T> struct Limits;
template <> struct Limits<float> {
    static constexpr float ENOUGH = 1e-6f, SLACK = 4e-6f;
};
template <> struct Limits<double> {
    static constexpr double ENOUGH = 1e-13, SLACK = 1e-12;
};

constexpr int32_t ONE_BIT[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
constexpr int64_t ONE_BIT_WIDE[8] = {1, 2, 4, 8, 16, 32, 64, 128};

// A mask of the lanes that hold the rows first, first + 1, ... of a set.
INLINE FI lanes_of(uint32_t rows, int first, float) {
    FI lane;
    std::memcpy(&lane, ONE_BIT, sizeof lane);
    return ((FI{} + (int32_t)(rows >> first)) & lane) != 0;
}
INLINE DI lanes_of(uint32_t rows, int first, double) {
    DI lane;
    std::memcpy(&lane, ONE_BIT_WIDE, sizeof lane);
    return ((DI{} + (int64_t)(rows >> first)) & lane) != 0;
}

// Moves the thresholds of live rows by a step, within their limits; what t rounds off goes into its
// fine part.
template <class T> INLINE void move(Rows<T>& s, int first, Ints<T> live, Vec<T> step) {
    const Vec<T> t = load(s.t + first), fine = load(s.fine + first), by = fine + step;
    const Vec<T> wanted = t + by,
                 next = larger(smaller(wanted, load(s.high + first)), load(s.low + first));
    const Vec<T> rest = next == wanted ? (t - next) + by : Vec<T>{};
    store(s.t + first, live ? next : t);
    store(s.fine + first, live ? rest : fine);
}

// One step of the open rows from their sums. Returns those whose mass is off by more than `off`.
template <Kind K, class T> INLINE uint32_t step_roughly(Rows<T>& s, uint32_t open, T off) {
    uint32_t left = 0;
    for (int first = 0; first < s.rows; first += LANES<T>) {
        const State<T> now = state(s, first);
        const Ints<T> live = lanes_of(open, first, (T)0);
        move(s, first, live, newton_step<K, T>(now, load(s.eps + first), load(s.b + first)));
        left |= bits(live & (absolute(now.excess) > off)) << first;
    }
    return left;
}

}  // namespace
