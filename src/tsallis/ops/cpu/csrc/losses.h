// Losses and their gradients.

#pragma once

#include "maps.h"

namespace {

// dH(p)/d alpha at fixed p, of packed probabilities: sum p L E(x)/alpha^2 - sum p L^2 E'(x)/alpha
// with L = log p, x = eps L and E(x) = (e^x - 1)/x.
template <class T> INLINE T entropy_slope(const T* p, int64_t n, T scale, T eps, T alpha) {
    constexpr int N = LANES<T>;
    Vec<T> first = {}, second = {};
    for (int64_t i = 0; i < n; i += N) {
        Vec<T> v = load_row(p, i, n, (T)0) * scale;
        Vec<T> log_p = log_(larger(v, fill((T)1.2e-38))), x = log_p * eps;
        Vec<T> rise = {}, bend = {};
        for (int k = TERMS<T>; k >= 1; k--) rise = rise * x + (T)INVERSE_FACTORIAL[k];
        for (int k = TERMS<T>; k >= 2; k--) bend = bend * x + (T)((k - 1) * INVERSE_FACTORIAL[k]);
        Vec<T> far = absolute(x) < (T)0.5 ? fill((T)-1) : x, power = exp_(far);
        Vec<T> far_rise = (power - (T)1) / far;
        rise = absolute(x) < (T)0.5 ? rise : far_rise;
        bend = absolute(x) < (T)0.5 ? bend : (power - far_rise) / far;
        Vec<T> term = v * log_p;
        first += v > 0 ? term * rise : Vec<T>{};
        second += v > 0 ? term * log_p * bend : Vec<T>{};
    }
    return sum<T>(first) / (alpha * alpha) - sum<T>(second) / alpha;
}

template <class T> struct RowLoss {
    T loss, scale, count, dalpha;
};

// Of one solved row, in score differences from its maximum: ((c - mean)/alpha + mean) + (max -
// z_y), c = t b. Its support is listed where there is room.
template <Kind K, class T>
RowLoss<T> loss_of(Rows<T>& s, int row, const T* z, T gold, bool need_alpha,
                   const Support<T>& listed) {
    constexpr int N = LANES<T>;
    const Family<T>& f = s.family[row];
    RowLoss<T> result = {};
    if (listed.room) *listed.count = -1;
    T shift = s.shift[row], alpha = (T)f.alpha, *p = s.p + row * s.stride;
    if constexpr (K == SOFTMAX) {
        T mass = exponentials(z, s.d, shift, p);
        result.loss = s.top[row] - gold + (T)::log(mass);
        result.scale = 1 / mass, result.count = (T)s.d;
        if (need_alpha) result.dalpha = entropy_slope(p, s.d, result.scale, (T)0, alpha);
        return result;
    }
    const Threshold<T> at = threshold(s, row);
    const T scale = 1 / s.mass[row];
    const T* x = s.x + row * s.stride;
    const int32_t* where = s.where + row * s.stride;
    int64_t n = s.count[row], count = 0, known = 0;
    auto finish = [&](T average) {
        const T c = (at.t + at.fine) * f.b, spread = (c - average) / alpha + average;
        result.loss = (spread < 0 ? 0 : spread) + (s.top[row] - gold);
        result.scale = scale, result.count = (T)count;
    };
    if (s.unpacked[row]) {
        count = n;
        finish(s.mean[row] * scale * f.b);
        return result;
    }
    const int64_t room = n <= s.places ? listed.room - N : -1;
    Vec<T> mean = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> part = {};
        for (int64_t i = first; i < smaller(n, first + BLOCK * N); i += N) {
            Vec<T> v = load(x + i), u;
            if constexpr (K == ANY)
                u = load(p + i);
            else
                u = probability<K>(v, at, f);
            if (K != ANY && need_alpha) store(p + i, u);
            uint32_t m = bits(u > 0);
            if (known <= room) {
                store_packed(listed.mass + known, u, m);
                pack_places(listed.index + known, where + i, m, (T)0);
            }
            known += __builtin_popcount(m);
            // What a last small step let into the support is in no list, but it is seen from the
            // scores.
            if (K == ANY) count += __builtin_popcount(bits(at.over(v) >= f.least * COUNTED<T>));
            part += u * (m ? larger(v, fill(OUTSIDE<T>)) : Vec<T>{});
        }
        mean += part;
    }
    if (K != ANY) count = known;
    finish(sum<T>(mean) * scale * f.b);
    if (known <= room) *listed.count = (T)known;
    if (need_alpha) result.dalpha = entropy_slope(p, n, scale, f.eps, alpha);
    return result;
}

template <class T, class S> void loss_range(const LossCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Rows<T>& s = block.rows;
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    s.level = !call.alpha_grad;
    if (call.width > STATS) s.where = (int32_t*)block.tile[1], s.places = d / 16;
    in_blocks<T>(
        call.layout, block.family, LOSSES, first, last, [&](Kind kind, int64_t begin, int64_t end) {
            const T* z[MOST];
            in.read(call.scores, begin, end, z);
            s.rows = (int)(end - begin);
            s.around = around<S>(call.layout, in.plain(), call.scores, call.scores, begin, end);
            if (kind == SOFTMAX) {
                for (int row = 0; row < s.rows; row++) {
                    Vec<T> lanes[LANE_VECTORS];
                    s.top[row] = row_maximum(z[row], d, lanes);
                    s.shift[row] = s.top[row] == (T)-INFINITY ? 0 : s.top[row];
                }
            } else {
                BY_KIND(kind, if constexpr (K != SOFTMAX) solve<K>(s, z))
            }
            for (int row = 0; row < s.rows; row++) {
                const int64_t r = begin + row, y = call.target[r];
                const T gold = y < 0 ? s.top[row] : z[row][y];
                T* stats = (T*)call.stats + r * call.width;
                const Support<T> listed(stats, call.width);
                RowLoss<T> found = {};
                BY_KIND(kind, found = loss_of<K>(s, row, z[row], gold, call.alpha_grad != nullptr,
                                                 listed))
                const Threshold<T> at = kind == SOFTMAX ? Threshold<T>{0, 0} : threshold(s, row);
                stats[0] = s.top[row], stats[1] = at.t, stats[2] = at.fine, stats[3] = found.scale,
                stats[4] = found.count;
                // Nothing counts where there is no target or nothing takes part; a NaN makes the
                // scale one.
                const bool counts =
                    y >= 0 &&
                    !(s.top[row] == (T)-INFINITY && s.count[row] == 0 && kind != SOFTMAX) &&
                    !(kind == SOFTMAX && s.top[row] == (T)-INFINITY && found.scale == (T)INFINITY);
                ((T*)call.loss)[r] =
                    counts ? found.loss * (found.scale == found.scale ? 1 : (T)NAN) : 0;
                if (call.alpha_grad) ((T*)call.alpha_grad)[r] = counts ? found.dalpha : 0;
                if (!counts) stats[3] = 0, stats[4] = 0;
            }
        });
}

// A listed support times `by`, zeros elsewhere.
template <bool PAST, class T> void spread(const Support<T>& listed, int64_t d, T by, T* out) {
    constexpr int N = LANES<T>;
    const int64_t n = (int64_t)*listed.count, head = PAST ? smaller(d, unaligned(out)) : 0;
    int64_t k = 0;
    auto lanes = [&](int64_t first, int64_t end) {
        alignas(VECTOR_BYTES) T found[N] = {};
        for (; k < n && listed.index[k] < end; k++)
            found[listed.index[k] - first] = listed.mass[k] * by;
        return load(found);
    };
    if (head) store_part(out, head, lanes(0, head));
    int64_t i = head;
    const int64_t whole = head + (d - head) / N * N;
    while (i < whole) {
        const int64_t next =
            k < n ? smaller(head + (listed.index[k] - head) / N * N, whole) : whole;
        for (; i < next; i += N) put<PAST>(out + i, Vec<T>{});
        if (i == whole) break;
        put<PAST>(out + i, lanes(i, i + N));
        i += N;
    }
    if (whole < d) store_part(out + whole, d - whole, lanes(whole, d));
}

// A gradient of so many bytes is out of every cache before it is read: it need not be in one.
constexpr int64_t PAST = 16 << 20;

template <class T, class S>
void loss_gradient_range(const LossGradientCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Tile<T, S> in(call.layout, block.tile[0], block.stride),
        out(call.layout, block.tile[1], block.stride);
    const bool past = out.direct() && call.scores_grad != call.scores &&
                      call.layout.rows * d * (int64_t)sizeof(T) >= PAST;
    in_blocks<T>(call.layout, block.family, call.relu ? RELU : LOSSES, first, last,
                 [&](Kind kind, int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; r++) {
                         T* dz = out.place(call.scores_grad, begin, r);
                         const T* stats = (const T*)call.stats + r * call.width;
                         const Support<T> listed((T*)stats, call.width);
                         const T weight = ((const T*)call.grad)[r], scale = stats[3];
                         const Threshold<T> at{stats[1], stats[2]};
                         const int64_t y = call.target[r];
                         if (y < 0 || scale == 0) {
                             fill_row(dz, d, (T)0);
                         } else if (scale != scale) {
                             fill_row(dz, d, (T)NAN);
                         } else if (listed.room && *listed.count >= 0) {
                             if (past)
                                 spread<true>(listed, d, scale * weight, dz);
                             else
                                 spread<false>(listed, d, scale * weight, dz);
                             dz[y] -= weight;
                         } else {
                             const T* z;
                             in.read(call.scores, r, r + 1, &z);
                             BY_KIND(kind, emit<K>(z, d, stats[0], at, scale * weight,
                                                   block.family[r - begin], dz, past))
                             dz[y] -= weight;
                         }
                         out.finish_row(call.scores_grad, begin, r);
                     }
                 });
    if (past) settle();
}

// alpha-ReLU: u = 1 + eps z - t with t = 1 + tau, loss = sum r u / alpha + 1/(alpha eps) + tau/eps
// - z_y.
template <class T, class S>
void relu_loss_range(const ReluLossCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>;
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 1);
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    const T t = (T)(1 + call.tau);
    const Threshold<T> at{t, (T)(1 + call.tau - (double)t)};
    in_blocks<T>(
        call.layout, block.family, RELU, first, last, [&](Kind kind, int64_t begin, int64_t end) {
            const T* z[MOST];
            in.read(call.scores, begin, end, z);
            for (int64_t r = begin; r < end; r++) {
                const T* row = z[r - begin];
                const Family<T>& f = block.family[0];
                Vec<T> total = {};
                int64_t count = 0;
                for (int64_t from = 0; from < d; from += BLOCK * N) {
                    Vec<T> part = {};
                    for (int64_t i = from; i < smaller(d, from + BLOCK * N); i += N) {
                        Vec<T> x = rounded(load_row(row, i, d, (T)-INFINITY) * f.eps),
                               u = at.over(x), p = {};
                        BY_KIND(kind, if constexpr (K != SOFTMAX) p = probability<K>(x, at, f))
                        count += __builtin_popcount(bits(p > 0));
                        part += p * u;
                    }
                    total += part;
                }
                T* stats = (T*)call.stats + r * STATS;
                stats[0] = 0, stats[1] = at.t, stats[2] = at.fine, stats[3] = 1,
                stats[4] = (T)count;
                const int64_t y = call.target[r];
                const double eps = f.alpha - 1;
                ((T*)call.loss)[r] = y < 0 ? 0
                                           : sum<T>(total) / (T)f.alpha +
                                                 (T)(1 / (f.alpha * eps) + call.tau / eps) - row[y];
            }
        });
}

}  // namespace
