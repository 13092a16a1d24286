// Level rows: long ones nearly all of which are candidates, of which there is nothing to pack.

#pragma once

#include "newton.h"

namespace {

template <Kind K, class T> constexpr bool LEVEL = sizeof(T) == 4 && (K == WHOLE || K == ANY);
constexpr int64_t LEVEL_FROM = 8192;
constexpr int LEVEL_LINE = 16;  // entries in a line of memory: a sample is of whole ones
constexpr int LEVEL_STEP = 16;  // and of one line in so many

template <class T> struct LevelSums {
    Sums<T> sums;
    Vec<T> v = {}, mean = {};  // of u^(b-4), and of p x
    int64_t count = 0;
};

// How the powers are found: by logarithms for b above 20, by products for b of 3 to 5, and of 5 and
// more.
enum Form { LOGARITHMS, LOW, HIGH };

// What W vectors of scores add to the sums. An entry outside the support counts as the least one
// inside, which is next to nothing.
template <Kind K, Form FORM, int W, class T>
INLINE void add_some(LevelSums<T>& total, const Vec<T>* z, T shift, T t, const Family<T>& f) {
    const T below = t - 1, least = below + f.least, counted = below + f.least * COUNTED<T>;
    Vec<T> x[W], u[W], p[W], q[W], r[W], w[W], v[W];
    for (int k = 0; k < W; k++) {
        x[k] = (z[k] - shift) * f.eps;
        total.count += __builtin_popcount(beyond<T>(x[k], fill(counted)));
        x[k] = larger(fill(least), x[k]);
        u[k] = x[k] - below;
    }
    if constexpr (FORM == LOGARITHMS) {
        for (int k = 0; k < W; k++) {
            const Vec<T> inside = larger(fill(SMALLEST<T>), u[k]), inv = inverse(inside);
            p[k] = any_power(x[k], u[k], inside, Threshold<T>{t, 0}, f, fill(f.b));
            q[k] = p[k] * inv, r[k] = q[k] * inv, w[k] = r[k] * inv, v[k] = w[k] * inv;
        }
    } else {
        if constexpr (FORM == HIGH)
            whole_powers<W>(u, f.n - 4, v);
        else
            for (int k = 0; k < W; k++) v[k] = fill((T)1);
        if constexpr (K == ANY) times_rest_power<W>(u, f.part, v);
        if constexpr (FORM == LOW) {  // not next to nothing outside the support
            const bool four = f.n == 4;
            for (int k = 0; k < W; k++) {
                const Vec<T> low = x[k] > least ? v[k] : Vec<T>{};
                w[k] = four ? low * u[k] : low;
                if (K == ANY)
                    v[k] = four ? low : low * inverse(larger(fill(SMALLEST<T>), u[k]));
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

// The sums over a whole row, as it lies, at a threshold t for which t - 1 is exact, and how many
// are in the support.
template <Kind K, Form FORM, class T>
LevelSums<T> add_level(const T* z, int64_t d, T shift, T t, Family<T> f, Around around, int row) {
    constexpr int N = LANES<T>;
    LevelSums<T> total;
    double mass = 0, mean = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        LevelSums<T> part;
        const int64_t last = smaller(d, first + BLOCK * N);
        int64_t i = first;
        for (; i + WIDE * N <= last; i += WIDE * N) {
            Vec<T> some[WIDE];
            for (int k = 0; k < WIDE; k++) {
                if ((i + k * N) * sizeof(T) % 64 == 0) around.call_next(row, i + k * N);
                some[k] = load(z + i + k * N);
            }
            add_some<K, FORM, WIDE>(part, some, shift, t, f);
        }
        for (; i < last; i += N) {
            const Vec<T> some = load_row(z, i, d, (T)-INFINITY);
            add_some<K, FORM, 1>(part, &some, shift, t, f);
        }
        mass += sum<T>(part.sums.p), mean += sum<T>(part.mean);
        total.sums.add(part.sums);
        total.v += part.v, total.count += part.count;
    }
    total.sums.p = Vec<T>{(T)mass}, total.mean = Vec<T>{(T)mean};
    return total;
}

// How many of a row are in the support; no fewer, that is.
template <class T>
INLINE int64_t count_level(const T* z, int64_t d, T shift, Threshold<T> at, const Family<T>& f) {
    int64_t count = 0;
    for (int64_t i = 0; i < d; i += LANES<T>)
        count += __builtin_popcount(bits(
            at.over((load_row(z, i, d, (T)-INFINITY) - shift) * f.eps) >= f.least * COUNTED<T>));
    return count;
}

// What a row's sums at t say of its root, to the fourth order in how far off it is.
struct LevelSeries {
    double b, excess, sums[5], c[6];

    template <class T> LevelSeries(double power, const LevelSums<T>& of) : b(power) {
        sums[0] = of.sums.p[0], sums[1] = sum<T>(of.sums.q), sums[2] = sum<T>(of.sums.r),
        sums[3] = sum<T>(of.sums.w);
        sums[4] = sum<T>(of.v);
        excess = sums[0] - 1;
        c[0] = 1;
        for (int k = 1; k < 6; k++) c[k] = c[k - 1] * (b - k + 1) / k;
    }

    // How far the root is, or a NaN where the series is not exact enough.
    double root(int64_t d) const {
        double by = 0;
        for (int round = 0; round < 6; round++) {
            double value = 0, slope = 0;
            for (int k = 4; k > 0; k--) value = c[k] * sums[k] - by * value;
            for (int k = 4; k > 0; k--) slope = k * c[k] * sums[k] - by * slope;
            by += (excess - by * value) / slope;
        }
        const double size = ::fabs(by), next = c[5] * ::pow(size, 5) * sums[4] * sums[4] / sums[3];
        // What no series knows: new in the support.
        const double entering = (double)d * ::pow(size, b);
        return ::fabs(next) < 1e-7 && entering < 1e-7 ? by : NAN;
    }

    // The mean of x there; below = t - 1, and x = u + below.
    double mean(double at, double by, double below) const {
        double terms = 0;
        for (int k = 4; k > 0; k--) terms = c[k] * (sums[k - 1] + below * sums[k]) - by * terms;
        return at - by * terms;
    }
};

// Every so many lines of a row, as they lie, and their lanes' maxima.
template <class T> struct LevelSample {
    static constexpr int LINE = LEVEL_LINE / LANES<T>;
    const T* scores;
    int64_t n = 0;
    Vec<T> most[LINE];
    T peak, cut;  // the largest, and what few are above: the mean of the maxima

    LevelSample(const T* z, int64_t d, T* out) : scores(out) {
        constexpr int N = LANES<T>;
        for (auto& v : most) v = fill((T)-INFINITY);
        for (int64_t i = 0; i + LEVEL_LINE <= d; i += LEVEL_LINE * LEVEL_STEP)
            for (int k = 0; k < LINE; k++, n += N) {
                const Vec<T> v = load(z + i + k * N);
                store(out + n, v);
                most[k] = larger(v, most[k]);
            }
        peak = maximum<T>(most[0]), cut = sum<T>(most[0]);
        for (int k = 1; k < LINE; k++)
            peak = larger(maximum<T>(most[k]), peak), cut += sum<T>(most[k]);
        cut /= LEVEL_LINE;
    }

    bool finite() const { return cut - cut == 0 && peak - peak == 0; }
    bool mostly_above(T bound) const {
        int64_t found = 0;
        for (int64_t i = 0; i < n; i += LANES<T>)
            found += __builtin_popcount(beyond<T>(load(scores + i), fill(bound)));
        return found >= n / 2;
    }
};

// A lower bound of a row's threshold, in differences from the sample's peak: that of its lanes'
// maxima.
template <Kind K, class T> T bound_level(Rows<T>& s, int row, const LevelSample<T>& sample) {
    constexpr int N = LANES<T>, LINE = LevelSample<T>::LINE;
    const int first = row / N * N, lane = row % N;
    T x[LEVEL_LINE];
    for (int k = 0; k < LINE; k++)
        store(x + k * N, larger((sample.most[k] - sample.peak) * s.eps[row], fill(OUTSIDE<T>)));
    T t = 0;
    for (int round = 0; round < 2; round++) {
        keep_sums(s, row,
                  add_all<K, T, false>(x, LINE, Threshold<T>{t, 0}, s.family[row], nullptr));
        t += newton_step<K, T, true>(state(s, first), load(s.eps + first), load(s.b + first))[lane];
        t = larger(smaller(t, s.high[row]), (T)0);
    }
    return t;
}

// The maximum of a row, and its scores above the cut, packed; returns how many. Which vectors hold
// any is noted without a branch: it could not be foretold.
template <class T>
int64_t pack_highest(const T* z, int64_t d, T cut, T* out, int32_t* holds, T& top) {
    constexpr int N = LANES<T>;
    Vec<T> tops = fill((T)-INFINITY);
    int64_t n = 0, i = 0, many = 0;
    for (; i + N <= d; i += N) {
        const Vec<T> v = load(z + i);
        tops = larger(v, tops);
        holds[many] = (int32_t)i, many += beyond<T>(v, fill(cut)) != 0;
    }
    if (i < d)
        holds[many++] = (int32_t)i, tops = larger(load_part(z + i, d - i, (T)-INFINITY), tops);
    for (int64_t k = 0; k < many; k++) {
        const Vec<T> v = load_row(z, holds[k], d, (T)-INFINITY);
        const uint32_t m = beyond<T>(v, fill(cut));
        store_packed(out + n, v, m), n += __builtin_popcount(m);
    }
    top = maximum<T>(tops);
    return n;
}

// Newton's steps from s.t on a row's highest scores and a share of the others, both scaled and
// packed.
template <Kind K, class T>
void approach_level(Rows<T>& s, int row, const T* high, int64_t n, const T* low, int64_t others,
                    T share) {
    for (int round = 0; round < 8; round++) {
        Sums<T> sums, rest;
        if constexpr (K == ANY) {
            sums = add_roughly(high, padded<T>(n), 1, s.t[row], s.family[row]);
            rest = add_roughly(low, padded<T>(others), 1, s.t[row], s.family[row]);
        } else {
            sums =
                add_all<K, T, false>(high, padded<T>(n), threshold(s, row), s.family[row], nullptr);
            rest = add_all<K, T, false>(low, padded<T>(others), threshold(s, row), s.family[row],
                                        nullptr);
        }
        sums.p += rest.p * share, sums.q += rest.q * share, sums.r += rest.r * share;
        keep_sums(s, row, sums);
        if (!step_roughly<K>(s, 1u << row, (T)0.03)) break;
    }
}

// The threshold, mass and mean of a row from a threshold that is nearly right: by one pass over
// all, to the fourth order in how far that was off. If it was too far, once more.
template <Kind K, class T> void settle_level(Rows<T>& s, int row, const T* z) {
    const Family<T>& f = s.family[row];
    const int64_t d = s.d;
    const T top = s.top[row];
    const bool counted = !s.places;  // else there are lists
    for (int round = 0; round < 40; round++) {
        s.t[row] = (s.t[row] + 1) - 1, s.fine[row] = 0;
        const LevelSums<T> now =
            f.n > 4   ? add_level<K, HIGH>(z, d, top, s.t[row], f, s.around, row)
            : f.n > 0 ? add_level<K, LOW>(z, d, top, s.t[row], f, s.around, row)
                      : add_level<K, LOGARITHMS>(z, d, top, s.t[row], f, s.around, row);
        const LevelSeries series(f.b, now);
        s.mass[row] = now.sums.p[0], s.mean[row] = now.mean[0],
        s.count[row] = counted ? now.count : d;
        if (!(::fabs(series.excess) > Limits<T>::ENOUGH)) break;  // a NaN ends here too
        if (series.excess > 0)
            s.low[row] = larger(s.low[row], s.t[row]);
        else
            s.high[row] = smaller(s.high[row], s.t[row]);
        const double by = series.root(d);
        if (by == by) {
            s.mean[row] = (T)series.mean(s.mean[row], by, s.t[row] - 1);
            s.mass[row] = 1;
            s.fine[row] += (T)by;
            if (counted && by < 0) s.count[row] = count_level(z, d, top, threshold(s, row), f);
            break;
        }
        keep_sums(s, row, now.sums);
        step_roughly<K>(s, 1u << row, (T)0);
    }
}

// The maximum, threshold, mass and mean of a row if a sample of it says that most scores are
// candidates. A first threshold comes from the sample and the highest scores, which are found on
// the way to the maximum.
template <Kind K, class T> bool solve_level(Rows<T>& s, int row, const T* z) {
    constexpr int N = LANES<T>;
    const int64_t d = s.d;
    const T eps = s.eps[row], b = s.b[row];
    T *high = s.x + row * s.stride, *low = s.p + row * s.stride, top;
    const LevelSample<T> sample(z, d, low);
    if (!sample.finite() || !sample.mostly_above(sample.peak - b)) return false;
    const T bound = bound_level<K>(s, row, sample);
    if (!sample.mostly_above(sample.peak + (bound - 1) * b)) return false;

    s.unpacked[row] = true;
    const int64_t n = pack_highest(z, d, sample.cut, high, (int32_t*)(low + d / 2), top);
    s.top[row] = s.shift[row] = top;
    s.t[row] = larger(bound - eps * (top - sample.peak), (T)0);
    for (int64_t k = 0; k < n; k += N) store(high + k, (load(high + k) - top) * eps);
    store(high + n, fill(OUTSIDE<T>));
    for (int64_t k = 0; k < sample.n; k += N) {
        const Vec<T> v = load(low + k);
        store(low + k, v > sample.cut ? fill(OUTSIDE<T>) : (v - top) * eps);
    }
    approach_level<K>(s, row, high, n, low, sample.n, (T)d / (T)sample.n);
    settle_level<K>(s, row, z);
    return true;
}

}  // namespace
