// Thresholds of blocks of rows: maxima, a lower bound, candidates, Newton's steps.

#pragma once

#include "dense_rows.h"
#include "newton.h"

namespace {

constexpr int64_t MIN_SAMPLED_VECTORS =
    64;  // from this many vectors of candidates on, first steps use an eighth of them

// Take Newton's steps on the candidates of TWO, THREE_HALVES and INTEGER; set the threshold and its
// mass.
template <Kind K, class T> INLINE void solve_integer(Rows<T>& s, uint32_t open) {
    constexpr int N = LANES<T>;
    if constexpr (K == INTEGER) {
        uint32_t rough = 0;
        for (int row = 0; row < s.rows; row++)
            rough |= (uint32_t)(num_vectors<T>(s.count[row]) >= MIN_SAMPLED_VECTORS) << row;
        rough &= open;
        for (int round = 0; rough && round < 3; round++) {
            for (uint32_t rest = rough; rest; rest &= rest - 1) {
                const int row = __builtin_ctz(rest);
                set_sums(s, row,
                         approx_sums(s.x + row * s.stride, num_vectors<T>(s.count[row]) / 8 * 8, 8,
                                     s.t[row], s.params[row]),
                         (T)8);
            }
            rough = approx_step<K>(s, rough, (T)0.1);
        }
    }
    for (int round = 0; open && round < 40; round++) {
        for (uint32_t rest = open; rest; rest &= rest - 1) {
            const int row = __builtin_ctz(rest);
            const T* x = s.x + row * s.stride;
            set_sums(s, row,
                     candidate_sums<K, T, false>(x, num_vectors<T>(s.count[row]), threshold(s, row),
                                                 s.params[row], nullptr));
        }
        uint32_t left = 0;
        for (int first = 0; first < s.rows; first += N) {
            const Ints<T> active = row_lanes(open, first, (T)0);
            const State<T> now = state(s, first);
            store(s.mass + first, active ? now.mass : load(s.mass + first));
            const Ints<T> more = active & (absolute(now.excess) > Limits<T>::TOLERANCE);
            move_threshold(s, first, more,
                           round_step<K, T>(now, load(s.eps + first), load(s.b + first), round));
            left |= bits(more) << first;
        }
        open = left;
    }
}

// Move the threshold by delta; return the sum of the candidates' probabilities.
template <class T> INLINE T shift_probabilities(Rows<T>& s, int row, T delta) {
    constexpr int N = LANES<T>;
    const Vec<T> b = fill(s.b[row]), by = fill(delta);
    const Threshold<T> at = threshold(s, row);
    double total = 0;
    int64_t n = num_vectors<T>(s.count[row]);
    for (int64_t first = 0; first < n; first += BLOCK) {
        Vec<T> part = {};
        for (int64_t i = first; i < min(n, first + BLOCK); i++) {
            Vec<T> p = load(s.p + row * s.stride + i * N) *
                       shift_factor<T>(at.base(load(s.x + row * s.stride + i * N)), by, b);
            store(s.p + row * s.stride + i * N, p);
            part += p;
        }
        total += sum<T>(part);
    }
    s.fine[row] += delta;
    return (T)total;
}

// Solve rows of GENERAL: steps with approximate powers (float only), then exact sums, and a series
// instead of the last exact step.
template <class T> INLINE void solve_general(Rows<T>& s, uint32_t open) {
    constexpr bool FAST = sizeof(T) == 4;
    constexpr T NEAR =
        (T)0.2;  // below this excess of mass, one more step is close enough for the series
    auto each = [&](uint32_t some, auto&& visit) {
        for (; some; some &= some - 1) {
            int row = __builtin_ctz(some);
            visit(row, s.x + row * s.stride, num_vectors<T>(s.count[row]), s.params[row]);
        }
    };
    if (FAST) {
        uint32_t rough = 0;
        each(open, [&](int row, const T*, int64_t n, const AlphaParams<T>&) {
            rough |= (uint32_t)(n >= MIN_SAMPLED_VECTORS) << row;
        });
        for (int round = 0; rough && round < 3; round++) {
            each(rough, [&](int row, const T* x, int64_t n, const AlphaParams<T>& f) {
                set_sums(s, row, approx_sums(x, n / 8 * 8, 8, s.t[row], f), (T)8);
            });
            rough = approx_step<GENERAL>(s, rough, NEAR);
        }
        rough = open;
        for (int round = 0; rough && round < 12; round++) {
            each(rough, [&](int row, const T* x, int64_t n, const AlphaParams<T>& f) {
                set_sums(s, row, approx_sums(x, n, 1, s.t[row], f));
            });
            rough = approx_step<GENERAL>(s, rough, NEAR);
        }
    }
    alignas(64) T delta[MAX_ROWS];
    uint32_t shifted = 0;
    for (int round = 0; open && round < 40; round++) {
        each(open, [&](int row, const T* x, int64_t n, const AlphaParams<T>& f) {
            Sums<T> sums =
                candidate_sums<GENERAL, T, true>(x, n, threshold(s, row), f, s.p + row * s.stride);
            set_sums(s, row, sums);
            s.sums[3][row] = sums.w;
        });
        uint32_t left = 0;
        for (int first = 0; first < s.rows; first += LANES<T>) {
            const Ints<T> active = row_lanes(open, first, (T)0);
            const State<T> now = state(s, first);
            const Vec<T> t = load(s.t + first), b = load(s.b + first), low = load(s.low + first),
                         high = load(s.high + first);
            store(s.mass + first, active ? now.mass : load(s.mass + first));
            store(s.low + first, active & (now.excess > 0) ? max(low, t) : low);
            store(s.high + first, active & (now.excess < 0) ? min(high, t) : high);
            Ints<T> more = active & (absolute(now.excess) > Limits<T>::TOLERANCE);
            if (FAST) {
                const Vec<T> last = lane_sums<T>(s.sums[3] + first),
                             root = series_root(now, b, last);
                // The error is about the series' next term.
                const Vec<T> square = root * root * last;
                const Vec<T> next = b * (b - (T)1) * (b - (T)2) * (b - (T)3) * (T)(1.0 / 24) *
                                    square * square / now.r;
                const Ints<T> near = more & (b >= 2) & (absolute(root) < load(s.reach + first)) &
                                     (absolute(next) < (T)3e-7);
                store(delta + first, near ? root : load(delta + first));
                shifted |= bits(near) << first;
                more = more & ~near;
            }
            move_threshold(s, first, more,
                           round_step<GENERAL, T>(now, load(s.eps + first), b, round));
            left |= bits(more) << first;
        }
        open = left;
    }
    each(shifted, [&](int row, const T*, int64_t, const AlphaParams<T>&) {
        s.mass[row] = shift_probabilities(s, row, delta[row]);
    });
}

// Compute maxima, candidates, thresholds and masses of a block's rows, which all have one kind.
template <Kind K, class T> void solve(Rows<T>& s, const T* const* z) {
    constexpr int N = LANES<T>;
    // Number of vectors of lane maxima (each over at least four entries) for a first bound; 0: no
    // bound.
    const int bounds = s.d >= 4 * LANE_VECTORS * N ? LANE_VECTORS : s.d >= 4 * N ? 1 : 0;
    for (int row = 0; row < MAX_ROWS; row++) {
        const AlphaParams<T>& f = s.params[row < s.rows ? row : 0];
        s.t[row] = s.fine[row] = s.low[row] = 0;
        s.mass[row] = 1;
        s.dense[row] = false;
        s.high[row] = f.max_threshold, s.eps[row] = f.eps, s.b[row] = f.b, s.reach[row] = f.reach;
        for (int k = 0; k < 4; k++) s.sums[k][row] = Vec<T>{};
    }
    uint32_t left = 0;  // rows that are not dense
    for (int row = 0; row < s.rows; row++) {
        if constexpr (DENSE_KIND<K, T>)
            if (s.allow_dense && s.d >= MIN_DENSE_SIZE && s.b[row] >= 3 &&
                solve_dense<K>(s, row, z[row]))
                continue;
        left |= 1u << row;
        Vec<T> lanes[LANE_VECTORS];
        T top = row_maximum(z[row], s.d, lanes), shift = top == (T)-INFINITY ? 0 : top;
        s.top[row] = top, s.shift[row] = shift;
        if (bounds == 1) lanes[0] = max(max(lanes[0], lanes[1]), max(lanes[2], lanes[3]));
        for (int k = 0; k < bounds; k++)
            store(s.x + row * s.stride + k * N,
                  max((lanes[k] - shift) * s.eps[row], fill(OUTSIDE<T>)));
    }
    if (bounds) {
        // The threshold of a subset of a row is at most the row's, so the lanes' maxima give a
        // lower bound.
        const int rounds = bounds == 1 ? 2 : 3;
        for (int round = 0; round < rounds; round++) {
            for (uint32_t rest = left; rest; rest &= rest - 1) {
                const int row = __builtin_ctz(rest);
                const T* x = s.x + row * s.stride;
                const AlphaParams<T>& f = s.params[row];
                // The last step lands on a lower bound from any start.
                if (K == GENERAL && sizeof(T) == 4 && round < rounds - 1)
                    set_sums(s, row, approx_sums(x, bounds, 1, s.t[row], f));
                else
                    set_sums(s, row,
                             candidate_sums<K, T, false>(x, bounds, threshold(s, row), f, nullptr));
            }
            for (int first = 0; first < s.rows; first += N) {
                State<T> now = state(s, first);
                Vec<T> t = load(s.t + first);
                Vec<T> step = newton_step<K, T, true>(now, load(s.eps + first), load(s.b + first));
                Vec<T> next = max(min(t + step, load(s.high + first)), Vec<T>{});
                store(s.t + first, row_lanes(left, first, (T)0) ? next : t);
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
        s.count[row] = compress_candidates(z[row], s.d, s.shift[row], s.eps[row], s.above[row],
                                           s.x + at, s.where + at, s.index_room);
        open |= (uint32_t)(s.count[row] > 0) << row;
    }
    if constexpr (K == GENERAL)
        solve_general(s, open);
    else
        solve_integer<K>(s, open);
}

}  // namespace
