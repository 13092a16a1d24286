// Level rows: long ones nearly all of which are candidates, of which there is nothing to pack.

#pragma once

#include "steps.h"

namespace {

template <Kind K, class T> constexpr bool LEVEL = sizeof(T) == 4 && (K == WHOLE || K == ANY);
constexpr int64_t LEVEL_FROM = 8192;
constexpr int LEVEL_STEP = 16;  // of the lower scores of such a row one vector in so many gives a first threshold

template <class T> struct LevelSums {
    Sums<T> sums;
    double mean;    // sum of p x
    int64_t count;
};

// The sums over a whole row, as it lies, at a threshold t for which t - 1 is exact; how many are in the support, if
// `counted`.
template <Kind K, class T>
LevelSums<T> add_level(const T* z, int64_t d, T shift, T t, Family<T> f, bool counted, Around around, int row) {
    constexpr int N = LANES<T>;
    const Threshold<T> at{t, 0};
    const T below = t - 1;
    LevelSums<T> total{{}, 0, 0};
    double mass = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Sums<T> part;
        Vec<T> mean = {};
        for (int64_t i = first; i < smaller(d, first + BLOCK * N); i += N) {
            if (i * sizeof(T) % 64 == 0) around.call_next(row, i);
            const Vec<T> x = larger(fill(OUTSIDE<T>), (load_row(z, i, d, (T)-INFINITY) - shift) * f.eps), raw = x - below;
            Vec<T> p;
            if constexpr (K == ANY) {
                const Vec<T> u = positive(raw), inside = larger(fill(SMALLEST<T>), u), inv = inverse(inside);
                p = any_power(x, u, inside, at, f, fill(f.b));
                p = u >= SMALLEST<T> ? p : u * (T)0;
                const Vec<T> q = p * inv, r = q * inv;
                part.q += q, part.r += r, part.w += r * inv;
            } else {
                const Vec<T> u = raw < f.least ? Vec<T>{} : raw;
                const Vec<T> w = f.n == 3 ? (u > 0 ? fill((T)1) : Vec<T>{}) : f.n == 4 ? u : whole_power(u, f.n - 3);
                const Vec<T> r = w * u, q = r * u;
                // The digits that u has lost count where it is near 1; where it is small they are noise, but so is p.
                p = q * (f.n <= PLAIN_POWER ? u : u + ((x - t) - (raw - (T)1)) * (T)f.n);
                part.q += q, part.r += r, part.w += w;
            }
            part.p += p;
            mean += p * x;
            if (counted) total.count += __builtin_popcount(bits(p > 0));
        }
        mass += sum<T>(part.p), total.mean += sum<T>(mean);
        total.sums.add(part);
    }
    total.sums.p = Vec<T>{(T)mass};
    return total;
}

// How many of a row are in the support; no fewer, that is.
template <class T> INLINE int64_t count_level(const T* z, int64_t d, T shift, Threshold<T> at, const Family<T>& f) {
    int64_t count = 0;
    for (int64_t i = 0; i < d; i += LANES<T>)
        count += __builtin_popcount(bits(at.over((load_row(z, i, d, (T)-INFINITY) - shift) * f.eps) >= f.least));
    return count;
}

// How far the threshold is from where the sums put the root, if the series that says so is exact enough, else a NaN.
template <class T> INLINE T level_root(const Rows<T>& s, int row, const State<T>& here, Vec<T> last) {
    const int lane = row % LANES<T>;
    const T b = s.b[row], by = root_of_series(here, load(s.b + row - lane), last)[lane], size = by < 0 ? -by : by;
    const T c4 = b * (b - 1) * (b - 2) * (b - 3) / 24, w = last[lane];
    const T next = c4 * size * size * size * size * w * w / here.r[lane];  // the term it leaves out, nearly
    const double entering = (double)s.d * ::pow((double)size, (double)b);  // what no series knows: new in the support
    return size < s.reach[row] && next < (T)1e-7 && entering < 1e-7 ? by : (T)NAN;
}

// The threshold, mass and mean of a row if a look at it finds that most scores are candidates. A first threshold comes
// from its highest scores and a share of the others. One pass over all, to the fourth order in how far that was off,
// then gives the rest.
template <Kind K, class T> bool solve_level(Rows<T>& s, int row, const T* z) {
    constexpr int N = LANES<T>;
    const Family<T>& f = s.family[row];
    const int64_t d = s.d;
    const T shift = s.shift[row];
    const Vec<T> bound = fill(s.above[row]);
    Vec<T> lanes[LANE_VECTORS];
    for (auto& v : lanes) v = bound;
    int64_t looked = 0, found = 0;
    for (int64_t i = 0; i + N <= d; i += 64 * N, looked += N) {
        const Vec<T> w = load(z + i) - shift;
        Vec<T>& most = lanes[looked / N % LANE_VECTORS];
        most = larger(w, most);
        found += __builtin_popcount(beyond<T>(w, bound));
    }
    if (found < looked / 4) return false;
    s.unpacked[row] = true;

    Vec<T> together = {};
    for (auto& v : lanes) together += v;
    const Vec<T> cut = fill(sum<T>(together) / (N * LANE_VECTORS));
    T *x = s.x + row * s.stride, *rest = s.p + row * s.stride;
    int64_t n = 0, others = 0, taken = 0, vectors = 0;
    for (int64_t i = 0; i < d; i += N, vectors++) {
        const Vec<T> w = load_row(z, i, d, (T)-INFINITY) - shift;
        const uint32_t m = beyond<T>(w, cut);
        store_packed(x + n, w * f.eps, m), n += __builtin_popcount(m);
        if (vectors % LEVEL_STEP) continue;
        const uint32_t low = beyond<T>(w, bound) & ~m;
        store_packed(rest + others, w * f.eps, low), others += __builtin_popcount(low), taken++;
    }
    store(x + n, fill(OUTSIDE<T>)), store(rest + others, fill(OUTSIDE<T>));
    const T share = (T)vectors / (T)taken;
    auto both = [&](auto&& add) {
        Sums<T> high = add(x, padded<T>(n)), low = add(rest, padded<T>(others));
        high.p += low.p * share, high.q += low.q * share, high.r += low.r * share;
        keep_sums(s, row, high);
    };
    for (int round = 0; round < 8; round++) {
        both([&](const T* part, int64_t many) {
            if constexpr (K == ANY) return add_roughly(part, many, 1, s.t[row], f);
            else return add_all<K, T, false>(part, many, threshold(s, row), f, nullptr);
        });
        if (!step_roughly<K>(s, 1u << row, (T)0.003)) break;
    }

    const int first = row / N * N, lane = row % N;
    const bool counted = !s.places;  // else there are lists
    for (int round = 0; round < 40; round++) {
        s.t[row] = (s.t[row] + 1) - 1, s.fine[row] = 0;
        const LevelSums<T> now = add_level<K>(z, d, shift, s.t[row], f, counted, s.around, row);
        keep_sums(s, row, now.sums);
        s.sums[3][row] = now.sums.w;
        const State<T> here = state(s, first);
        const T mass = here.mass[lane], excess = here.excess[lane];
        s.mass[row] = mass, s.mean[row] = (T)now.mean, s.count[row] = counted ? now.count : d;
        if (!(excess > Limits<T>::ENOUGH || excess < -Limits<T>::ENOUGH)) break;  // a NaN ends here too
        if (excess > 0) s.low[row] = larger(s.low[row], s.t[row]);
        else s.high[row] = smaller(s.high[row], s.t[row]);
        const Vec<T> last = sums_of<T>(s.sums[3] + first);
        const T by = level_root(s, row, here, last);
        if (by == by) {
            // x = u - 1 + t in the terms that are small anyway
            const T b = f.b, c2 = b * (b - 1) / 2, c3 = c2 * (b - 2) / 3, below = s.t[row] - 1;
            const T q = here.q[lane], r = here.r[lane], w = last[lane];
            s.mean[row] = (T)(now.mean - by * (b * (mass + below * q) - by * (c2 * (q + below * r) - by * c3 * (r + below * w))));
            s.mass[row] = 1;
            s.fine[row] += by;
            if (counted && by < 0) s.count[row] = count_level(z, d, shift, threshold(s, row), f);
            break;
        }
        step_roughly<K>(s, 1u << row, (T)0);
    }
    return true;
}

}  // namespace
