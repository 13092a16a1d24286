// Dense rows: long rows in which most entries are candidates. Compressing them would not pay off,
// so each pass reads the whole row.

#pragma once

#include "newton.h"

namespace {

template <Kind K, class T>
constexpr bool DENSE_KIND = sizeof(T) == 4 && (K == INTEGER || K == GENERAL);
constexpr int64_t MIN_DENSE_SIZE = 8192;
constexpr int SAMPLE_LINE = 16;  // entries of a cache line: a sample consists of whole lines
constexpr int SAMPLE_STEP = 16;  // a sample takes every SAMPLE_STEP-th line

template <class T> struct DenseSums {
    Sums<T> sums;
    Vec<T> v = {}, mean = {};  // sums of u^(b-4) and of p x
    int64_t count = 0;
};

// How powers are computed: with logarithms for b above 20, with products for b from 3 to 5 (LOW)
// and from 5 on (HIGH).
enum Form { LOGARITHMS, LOW, HIGH };

// Add W vectors of scores to the sums. An entry outside the support is treated as the least entry
// inside, which is negligible.
template <Kind K, Form FORM, int W, class T>
INLINE void add_vectors(DenseSums<T>& total, const Vec<T>* z, T shift, T t,
                        const AlphaParams<T>& f) {
    const T below = t - 1, least = below + f.least, counted = below + f.least * COUNT_MARGIN<T>;
    Vec<T> x[W], u[W], p[W], q[W], r[W], w[W], v[W];
    for (int k = 0; k < W; k++) {
        x[k] = (z[k] - shift) * f.eps;
        total.count += __builtin_popcount(not_le<T>(x[k], fill(counted)));
        x[k] = max(fill(least), x[k]);
        u[k] = x[k] - below;
    }
    if constexpr (FORM == LOGARITHMS) {
        for (int k = 0; k < W; k++) {
            const Vec<T> inside = max(fill(TINY<T>), u[k]), inv = reciprocal(inside);
            p[k] = general_power(x[k], u[k], inside, Threshold<T>{t, 0}, f, fill(f.b));
            q[k] = p[k] * inv, r[k] = q[k] * inv, w[k] = r[k] * inv, v[k] = w[k] * inv;
        }
    } else {
        if constexpr (FORM == HIGH)
            integer_powers<W>(u, f.n - 4, v);
        else
            for (int k = 0; k < W; k++) v[k] = fill((T)1);
        if constexpr (K == GENERAL) multiply_fraction_power<W>(u, f.fraction_power, v);
        if constexpr (FORM == LOW) {  // entries outside the support are not negligible
            const bool four = f.n == 4;
            for (int k = 0; k < W; k++) {
                const Vec<T> low = x[k] > least ? v[k] : Vec<T>{};
                w[k] = four ? low * u[k] : low;
                if (K == GENERAL)
                    v[k] = four ? low : low * reciprocal(max(fill(TINY<T>), u[k]));
                else
                    v[k] = four ? low : Vec<T>{};
            }
        } else {
            for (int k = 0; k < W; k++) w[k] = v[k] * u[k];
        }
        for (int k = 0; k < W; k++) r[k] = w[k] * u[k];
        for (int k = 0; k < W; k++) q[k] = r[k] * u[k];
        for (int k = 0; k < W; k++) p[k] = q[k] * (u[k] + (x[k] - (u[k] + below)) * f.b);
    }
    for (int k = 0; k < W; k++) {
        total.sums.p += p[k], total.sums.q += q[k], total.sums.r += r[k], total.sums.w += w[k],
            total.v += v[k];
        total.mean += p[k] * x[k];
    }
}

// Return the sums over a whole row at a threshold t for which t - 1 is exact, and the size of the
// support.
template <Kind K, Form FORM, class T>
DenseSums<T> dense_sums(const T* z, int64_t d, T shift, T t, AlphaParams<T> f, RowPrefetch prefetch,
                        int row) {
    constexpr int N = LANES<T>;
    DenseSums<T> total;
    double mass = 0, mean = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        DenseSums<T> part;
        const int64_t last = min(d, first + BLOCK * N);
        int64_t i = first;
        for (; i + WIDE * N <= last; i += WIDE * N) {
            Vec<T> some[WIDE];
            for (int k = 0; k < WIDE; k++) {
                if ((i + k * N) * sizeof(T) % 64 == 0) prefetch.prefetch_next(row, i + k * N);
                some[k] = load(z + i + k * N);
            }
            add_vectors<K, FORM, WIDE>(part, some, shift, t, f);
        }
        for (; i < last; i += N) {
            const Vec<T> some = load_row(z, i, d, (T)-INFINITY);
            add_vectors<K, FORM, 1>(part, &some, shift, t, f);
        }
        mass += sum<T>(part.sums.p), mean += sum<T>(part.mean);
        total.sums.add(part.sums);
        total.v += part.v, total.count += part.count;
    }
    total.sums.p = Vec<T>{(T)mass}, total.mean = Vec<T>{(T)mean};
    return total;
}

// Return a tight upper bound of the size of a row's support.
template <class T>
INLINE int64_t count_dense_support(const T* z, int64_t d, T shift, Threshold<T> at,
                                   const AlphaParams<T>& f) {
    int64_t count = 0;
    for (int64_t i = 0; i < d; i += LANES<T>)
        count += __builtin_popcount(bits(at.base((load_row(z, i, d, (T)-INFINITY) - shift) *
                                                 f.eps) >= f.least * COUNT_MARGIN<T>));
    return count;
}

// Fourth-order series of a row's mass as a function of the threshold around t. It gives the
// threshold at which the mass is 1, and the mean there.
struct RootSeries {
    double b, excess, sums[5], c[6];

    template <class T> RootSeries(double power, const DenseSums<T>& of) : b(power) {
        sums[0] = of.sums.p[0], sums[1] = sum<T>(of.sums.q), sums[2] = sum<T>(of.sums.r),
        sums[3] = sum<T>(of.sums.w);
        sums[4] = sum<T>(of.v);
        excess = sums[0] - 1;
        c[0] = 1;
        for (int k = 1; k < 6; k++) c[k] = c[k - 1] * (b - k + 1) / k;
    }

    // Return how far above t the root is, or NaN if the series is not exact enough.
    double root(int64_t d) const {
        double by = 0;
        for (int round = 0; round < 6; round++) {
            double value = 0, slope = 0;
            for (int k = 4; k > 0; k--) value = c[k] * sums[k] - by * value;
            for (int k = 4; k > 0; k--) slope = k * c[k] * sums[k] - by * slope;
            by += (excess - by * value) / slope;
        }
        const double size = ::fabs(by), next = c[5] * ::pow(size, 5) * sums[4] * sums[4] / sums[3];
        // Entries that join the support are not in the series.
        const double entering = (double)d * ::pow(size, b);
        return ::fabs(next) < 1e-7 && entering < 1e-7 ? by : NAN;
    }

    // Return the mean of x at the root; below = t - 1, and x = u + below.
    double mean(double at, double by, double below) const {
        double terms = 0;
        for (int k = 4; k > 0; k--) terms = c[k] * (sums[k - 1] + below * sums[k]) - by * terms;
        return at - by * terms;
    }
};

// A sample of a row's cache lines, and the maxima of its lanes.
template <class T> struct RowSample {
    static constexpr int LINE = SAMPLE_LINE / LANES<T>;
    const T* scores;
    int64_t n = 0;
    Vec<T> most[LINE];
    T peak, cut;  // the largest score, and the mean of the lanes' maxima, which few scores exceed

    RowSample(const T* z, int64_t d, T* out) : scores(out) {
        constexpr int N = LANES<T>;
        for (auto& v : most) v = fill((T)-INFINITY);
        for (int64_t i = 0; i + SAMPLE_LINE <= d; i += SAMPLE_LINE * SAMPLE_STEP)
            for (int k = 0; k < LINE; k++, n += N) {
                const Vec<T> v = load(z + i + k * N);
                store(out + n, v);
                most[k] = max(v, most[k]);
            }
        peak = maximum<T>(most[0]), cut = sum<T>(most[0]);
        for (int k = 1; k < LINE; k++)
            peak = max(maximum<T>(most[k]), peak), cut += sum<T>(most[k]);
        cut /= SAMPLE_LINE;
    }

    bool finite() const { return cut - cut == 0 && peak - peak == 0; }
    bool half_above(T bound) const {
        int64_t found = 0;
        for (int64_t i = 0; i < n; i += LANES<T>)
            found += __builtin_popcount(not_le<T>(load(scores + i), fill(bound)));
        return found >= n / 2;
    }
};

// Return a lower bound of a row's threshold, relative to the sample's peak: the threshold of the
// lanes' maxima.
template <Kind K, class T> T sample_lower_bound(Rows<T>& s, int row, const RowSample<T>& sample) {
    constexpr int N = LANES<T>, LINE = RowSample<T>::LINE;
    const int first = row / N * N, lane = row % N;
    T x[SAMPLE_LINE];
    for (int k = 0; k < LINE; k++)
        store(x + k * N, max((sample.most[k] - sample.peak) * s.eps[row], fill(OUTSIDE<T>)));
    T t = 0;
    for (int round = 0; round < 2; round++) {
        set_sums(s, row,
                 candidate_sums<K, T, false>(x, LINE, Threshold<T>{t, 0}, s.params[row], nullptr));
        t += newton_step<K, T, true>(state(s, first), load(s.eps + first), load(s.b + first))[lane];
        t = max(min(t, s.high[row]), (T)0);
    }
    return t;
}

// Compress a row's scores above the cut, set `top` to the row's maximum, and return the number of
// compressed scores. Vectors that contain such scores are noted without a branch, which could not
// be predicted.
template <class T>
int64_t compress_highest(const T* z, int64_t d, T cut, T* out, int32_t* holds, T& top) {
    constexpr int N = LANES<T>;
    Vec<T> tops = fill((T)-INFINITY);
    int64_t n = 0, i = 0, many = 0;
    for (; i + N <= d; i += N) {
        const Vec<T> v = load(z + i);
        tops = max(v, tops);
        holds[many] = (int32_t)i, many += not_le<T>(v, fill(cut)) != 0;
    }
    if (i < d) holds[many++] = (int32_t)i, tops = max(load_part(z + i, d - i, (T)-INFINITY), tops);
    for (int64_t k = 0; k < many; k++) {
        const Vec<T> v = load_row(z, holds[k], d, (T)-INFINITY);
        const uint32_t m = not_le<T>(v, fill(cut));
        compress_store(out + n, v, m), n += __builtin_popcount(m);
    }
    top = maximum<T>(tops);
    return n;
}

// Take Newton's steps from s.t on a row's highest scores and a sample of the others, whose sums are
// multiplied by `share`. Both are scaled and compressed.
template <Kind K, class T>
void approximate_dense(Rows<T>& s, int row, const T* high, int64_t n, const T* low, int64_t others,
                       T share) {
    for (int round = 0; round < 8; round++) {
        Sums<T> sums, rest;
        if constexpr (K == GENERAL) {
            sums = approx_sums(high, num_vectors<T>(n), 1, s.t[row], s.params[row]);
            rest = approx_sums(low, num_vectors<T>(others), 1, s.t[row], s.params[row]);
        } else {
            sums = candidate_sums<K, T, false>(high, num_vectors<T>(n), threshold(s, row),
                                               s.params[row], nullptr);
            rest = candidate_sums<K, T, false>(low, num_vectors<T>(others), threshold(s, row),
                                               s.params[row], nullptr);
        }
        sums.p += rest.p * share, sums.q += rest.q * share, sums.r += rest.r * share;
        set_sums(s, row, sums);
        if (!approx_step<K>(s, 1u << row, (T)0.03)) break;
    }
}

// Compute the threshold, mass and mean of a row from a good approximation of the threshold: one
// pass over the row and a fourth-order series. More passes follow if the series is not exact
// enough.
template <Kind K, class T> void refine_dense(Rows<T>& s, int row, const T* z) {
    const AlphaParams<T>& f = s.params[row];
    const int64_t d = s.d;
    const T top = s.top[row];
    const bool counted = !s.index_room;  // otherwise the support is listed
    for (int round = 0; round < 40; round++) {
        s.t[row] = (s.t[row] + 1) - 1, s.fine[row] = 0;
        const DenseSums<T> now =
            f.n > 4   ? dense_sums<K, HIGH>(z, d, top, s.t[row], f, s.prefetch, row)
            : f.n > 0 ? dense_sums<K, LOW>(z, d, top, s.t[row], f, s.prefetch, row)
                      : dense_sums<K, LOGARITHMS>(z, d, top, s.t[row], f, s.prefetch, row);
        const RootSeries series(f.b, now);
        s.mass[row] = now.sums.p[0], s.mean[row] = now.mean[0],
        s.count[row] = counted ? now.count : d;
        if (!(::fabs(series.excess) > Limits<T>::TOLERANCE)) break;  // also ends for NaN
        if (series.excess > 0)
            s.low[row] = max(s.low[row], s.t[row]);
        else
            s.high[row] = min(s.high[row], s.t[row]);
        const double by = series.root(d);
        if (by == by) {
            s.mean[row] = (T)series.mean(s.mean[row], by, s.t[row] - 1);
            s.mass[row] = 1;
            s.fine[row] += (T)by;
            if (counted && by < 0)
                s.count[row] = count_dense_support(z, d, top, threshold(s, row), f);
            break;
        }
        set_sums(s, row, now.sums);
        approx_step<K>(s, 1u << row, (T)0);
    }
}

// Solve a row if a sample shows that most of its scores are candidates; return whether it did. The
// first threshold comes from the sample and the highest scores, which the pass for the maximum
// collects.
template <Kind K, class T> bool solve_dense(Rows<T>& s, int row, const T* z) {
    constexpr int N = LANES<T>;
    const int64_t d = s.d;
    const T eps = s.eps[row], b = s.b[row];
    T *high = s.x + row * s.stride, *low = s.p + row * s.stride, top;
    const RowSample<T> sample(z, d, low);
    if (!sample.finite() || !sample.half_above(sample.peak - b)) return false;
    const T bound = sample_lower_bound<K>(s, row, sample);
    if (!sample.half_above(sample.peak + (bound - 1) * b)) return false;

    s.dense[row] = true;
    const int64_t n = compress_highest(z, d, sample.cut, high, (int32_t*)(low + d / 2), top);
    s.top[row] = s.shift[row] = top;
    s.t[row] = max(bound - eps * (top - sample.peak), (T)0);
    for (int64_t k = 0; k < n; k += N) store(high + k, (load(high + k) - top) * eps);
    store(high + n, fill(OUTSIDE<T>));
    for (int64_t k = 0; k < sample.n; k += N) {
        const Vec<T> v = load(low + k);
        store(low + k, v > sample.cut ? fill(OUTSIDE<T>) : (v - top) * eps);
    }
    approximate_dense<K>(s, row, high, n, low, sample.n, (T)d / (T)sample.n);
    refine_dense<K>(s, row, z);
    return true;
}

}  // namespace
