// Thresholds: rows of scores in, thresholds and probabilities out.

#pragma once

#include "dense_rows.h"
#include "newton.h"

namespace {

constexpr int64_t LONG = 64;  // vectors: an eighth of so many candidates already tells much

// Newton's steps on the candidates of TWO, THREE_HALVES and WHOLE; leaves the threshold and the
// mass there.
template <Kind K, class T> INLINE void solve_whole(Rows<T>& s, uint32_t open) {
    constexpr int N = LANES<T>;
    if constexpr (K == WHOLE) {
        uint32_t rough = 0;
        for (int row = 0; row < s.rows; row++)
            rough |= (uint32_t)(padded<T>(s.count[row]) >= LONG) << row;
        rough &= open;
        for (int round = 0; rough && round < 3; round++) {
            for (uint32_t rest = rough; rest; rest &= rest - 1) {
                const int row = __builtin_ctz(rest);
                keep_sums(s, row,
                          add_roughly(s.x + row * s.stride, padded<T>(s.count[row]) / 8 * 8, 8,
                                      s.t[row], s.family[row]),
                          (T)8);
            }
            rough = step_roughly<K>(s, rough, (T)0.1);
        }
    }
    for (int round = 0; open && round < 40; round++) {
        for (uint32_t rest = open; rest; rest &= rest - 1) {
            const int row = __builtin_ctz(rest);
            const T* x = s.x + row * s.stride;
            keep_sums(s, row,
                      add_all<K, T, false>(x, padded<T>(s.count[row]), threshold(s, row),
                                           s.family[row], nullptr));
        }
        uint32_t left = 0;
        for (int first = 0; first < s.rows; first += N) {
            const Ints<T> live = lanes_of(open, first, (T)0);
            const State<T> now = state(s, first);
            store(s.mass + first, live ? now.mass : load(s.mass + first));
            const Ints<T> more = live & (absolute(now.excess) > Limits<T>::ENOUGH);
            move(s, first, more, newton_step<K, T>(now, load(s.eps + first), load(s.b + first)));
            left |= bits(more) << first;
        }
        open = left;
    }
}

// p (1 - delta/u)^b, to third order: the candidates' probabilities delta further on; returns their
// sum.
template <class T> INLINE T shift_probabilities(Rows<T>& s, int row, T delta) {
    constexpr int N = LANES<T>;
    const T b = s.b[row], c2 = b * (b - 1) / 2, c3 = c2 * (b - 2) / 3;
    const Threshold<T> at = threshold(s, row);
    double total = 0;
    int64_t n = padded<T>(s.count[row]);
    for (int64_t first = 0; first < n; first += BLOCK) {
        Vec<T> part = {};
        for (int64_t i = first; i < smaller(n, first + BLOCK); i++) {
            Vec<T> u = larger(at.over(load(s.x + row * s.stride + i * N)), fill((T)1e-6));
            Vec<T> r = smaller(delta * inverse(u), fill((T)1));
            Vec<T> p =
                load(s.p + row * s.stride + i * N) * positive((T)1 - r * (b - r * (c2 - r * c3)));
            store(s.p + row * s.stride + i * N, p);
            part += p;
        }
        total += sum<T>(part);
    }
    s.fine[row] += delta;
    return (T)total;
}

// ANY: rough steps first (float only), then sums with every digit, and a series instead of the last
// of them.
template <class T> INLINE void solve_any(Rows<T>& s, uint32_t open) {
    constexpr bool FAST = sizeof(T) == 4;
    constexpr T NEAR = (T)0.2;  // from here one more step is as good as the series needs
    auto each = [&](uint32_t some, auto&& visit) {
        for (; some; some &= some - 1) {
            int row = __builtin_ctz(some);
            visit(row, s.x + row * s.stride, padded<T>(s.count[row]), s.family[row]);
        }
    };
    if (FAST) {
        uint32_t rough = 0;
        each(open, [&](int row, const T*, int64_t n, const Family<T>&) {
            rough |= (uint32_t)(n >= LONG) << row;
        });
        for (int round = 0; rough && round < 3; round++) {
            each(rough, [&](int row, const T* x, int64_t n, const Family<T>& f) {
                keep_sums(s, row, add_roughly(x, n / 8 * 8, 8, s.t[row], f), (T)8);
            });
            rough = step_roughly<ANY>(s, rough, NEAR);
        }
        rough = open;
        for (int round = 0; rough && round < 12; round++) {
            each(rough, [&](int row, const T* x, int64_t n, const Family<T>& f) {
                keep_sums(s, row, add_roughly(x, n, 1, s.t[row], f));
            });
            rough = step_roughly<ANY>(s, rough, NEAR);
        }
    }
    alignas(64) T delta[MOST];
    uint32_t shifted = 0;
    for (int round = 0; open && round < 40; round++) {
        each(open, [&](int row, const T* x, int64_t n, const Family<T>& f) {
            Sums<T> sums = add_all<ANY, T, true>(x, n, threshold(s, row), f, s.p + row * s.stride);
            keep_sums(s, row, sums);
            s.sums[3][row] = sums.w;
        });
        uint32_t left = 0;
        for (int first = 0; first < s.rows; first += LANES<T>) {
            const Ints<T> live = lanes_of(open, first, (T)0);
            const State<T> now = state(s, first);
            const Vec<T> t = load(s.t + first), b = load(s.b + first), low = load(s.low + first),
                         high = load(s.high + first);
            store(s.mass + first, live ? now.mass : load(s.mass + first));
            store(s.low + first, live & (now.excess > 0) ? larger(low, t) : low);
            store(s.high + first, live & (now.excess < 0) ? smaller(high, t) : high);
            Ints<T> more = live & (absolute(now.excess) > Limits<T>::ENOUGH);
            if (FAST) {
                const Vec<T> last = sums_of<T>(s.sums[3] + first),
                             root = root_of_series(now, b, last);
                // What it leaves out is nearly the next term:
                const Vec<T> square = root * root * last;
                const Vec<T> next = b * (b - (T)1) * (b - (T)2) * (b - (T)3) * (T)(1.0 / 24) *
                                    square * square / now.r;
                const Ints<T> near = more & (b >= 2) & (absolute(root) < load(s.reach + first)) &
                                     (absolute(next) < (T)3e-7);
                store(delta + first, near ? root : load(delta + first));
                shifted |= bits(near) << first;
                more = more & ~near;
            }
            move(s, first, more, newton_step<ANY, T>(now, load(s.eps + first), b));
            left |= bits(more) << first;
        }
        open = left;
    }
    each(shifted, [&](int row, const T*, int64_t, const Family<T>&) {
        s.mass[row] = shift_probabilities(s, row, delta[row]);
    });
}

// The maxima, thresholds, masses and candidates of rows of one kind.
template <Kind K, class T> void solve(Rows<T>& s, const T* const* z) {
    constexpr int N = LANES<T>;
    // Vectors of maxima, each of at least four entries of the row, that give a first bound.
    const int bounds = s.d >= 4 * LANE_VECTORS * N ? LANE_VECTORS : s.d >= 4 * N ? 1 : 0;
    for (int row = 0; row < MOST; row++) {
        const Family<T>& f = s.family[row < s.rows ? row : 0];
        s.t[row] = s.fine[row] = s.low[row] = 0;
        s.mass[row] = 1;
        s.unpacked[row] = false;
        s.high[row] = f.highest, s.eps[row] = f.eps, s.b[row] = f.b, s.reach[row] = f.reach;
        for (int k = 0; k < 4; k++) s.sums[k][row] = Vec<T>{};
    }
    uint32_t left = 0;  // rows that are not level
    for (int row = 0; row < s.rows; row++) {
        if constexpr (LEVEL<K, T>)
            if (s.level && s.d >= LEVEL_FROM && s.b[row] >= 3 && solve_level<K>(s, row, z[row]))
                continue;
        left |= 1u << row;
        Vec<T> lanes[LANE_VECTORS];
        T top = row_maximum(z[row], s.d, lanes), shift = top == (T)-INFINITY ? 0 : top;
        s.top[row] = top, s.shift[row] = shift;
        if (bounds == 1) lanes[0] = larger(larger(lanes[0], lanes[1]), larger(lanes[2], lanes[3]));
        for (int k = 0; k < bounds; k++)
            store(s.x + row * s.stride + k * N,
                  larger((lanes[k] - shift) * s.eps[row], fill(OUTSIDE<T>)));
    }
    if (bounds) {
        // The threshold of any subset of a row is at most the row's: the lanes' maxima give a first
        // bound.
        const int rounds = bounds == 1 ? 2 : 3;
        for (int round = 0; round < rounds; round++) {
            for (uint32_t rest = left; rest; rest &= rest - 1) {
                const int row = __builtin_ctz(rest);
                const T* x = s.x + row * s.stride;
                const Family<T>& f = s.family[row];
                // From wherever it starts, the last step lands on a bound.
                if (K == ANY && sizeof(T) == 4 && round < rounds - 1)
                    keep_sums(s, row, add_roughly(x, bounds, 1, s.t[row], f));
                else
                    keep_sums(s, row,
                              add_all<K, T, false>(x, bounds, threshold(s, row), f, nullptr));
            }
            for (int first = 0; first < s.rows; first += N) {
                State<T> now = state(s, first);
                Vec<T> t = load(s.t + first);
                Vec<T> step = newton_step<K, T, true>(now, load(s.eps + first), load(s.b + first));
                Vec<T> next = larger(smaller(t + step, load(s.high + first)), Vec<T>{});
                store(s.t + first, lanes_of(left, first, (T)0) ? next : t);
            }
        }
        for (uint32_t rest = left; rest; rest &= rest - 1) {
            const int row = __builtin_ctz(rest);
            T t = s.t[row] - Limits<T>::SLACK;
            s.t[row] = s.low[row] = t > 0 ? t : 0;
        }
    }
    uint32_t open = 0;
    for (uint32_t rest = left; rest; rest &= rest - 1) {
        const int row = __builtin_ctz(rest);
        s.above[row] = (s.t[row] - 1) * s.b[row];
        const int64_t at = row * s.stride;
        s.count[row] = pack_candidates(z[row], s.d, s.shift[row], s.eps[row], s.above[row],
                                       s.x + at, s.where + at, s.places);
        open |= (uint32_t)(s.count[row] > 0) << row;
    }
    if constexpr (K == ANY)
        solve_any(s, open);
    else
        solve_whole<K>(s, open);
}

}  // namespace
