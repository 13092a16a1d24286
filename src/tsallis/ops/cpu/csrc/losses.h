// Losses and their gradients.

#pragma once

#include "maps.h"

namespace {

// Return dH(p)/d alpha at fixed p, for compressed probabilities: sum p L E(x)/alpha^2 - sum p L^2
// E'(x)/alpha with L = log p, x = eps L and E(x) = (e^x - 1)/x.
template <class T> INLINE T entropy_slope(const T* p, int64_t n, T scale, T eps, T alpha) {
    constexpr int N = LANES<T>;
    const T by_value = 1 / (alpha * alpha), by_slope = 1 / alpha;
    Vec<T> total = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> part = {};
        for (int64_t i = first; i < min(n, first + BLOCK * N); i += N) {
            Vec<T> v = load_row(p, i, n, (T)0) * scale;
            Vec<T> log_p = log_(max(v, fill((T)1.2e-38))), x = log_p * eps;
            Vec<T> value = {}, slope = {};
            for (int k = TERMS<T>; k >= 1; k--) value = value * x + (T)INVERSE_FACTORIAL[k];
            for (int k = TERMS<T>; k >= 2; k--)
                slope = slope * x + (T)((k - 1) * INVERSE_FACTORIAL[k]);
            Vec<T> far = absolute(x) < (T)0.5 ? fill((T)-1) : x, power = exp_(far);
            Vec<T> far_value = (power - (T)1) / far;
            value = absolute(x) < (T)0.5 ? value : far_value;
            slope = absolute(x) < (T)0.5 ? slope : (power - far_value) / far;
            Vec<T> term = v * log_p * (value * by_value - log_p * slope * by_slope);
            part += v > 0 ? term : Vec<T>{};
        }
        total += part;
    }
    return sum<T>(total);
}

template <class T> struct RowLoss {
    T loss, scale, count, dalpha;
};

// Return the loss of a solved row. Relative to the row's maximum it is ((c - mean)/alpha + mean) +
// (max - z_y), where c = t b and mean = sum p (z - max). The support is saved in `list` if it fits.
template <Kind K, class T>
RowLoss<T> loss_of(Rows<T>& s, int row, const T* z, T gold, bool need_alpha,
                   const Support<T>& list) {
    constexpr int N = LANES<T>;
    const AlphaParams<T>& f = s.params[row];
    RowLoss<T> result = {};
    if (list.room) *list.count = -1;
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
    int64_t n = s.count[row], count = 0, list_size = 0;
    auto finish = [&](T average) {
        const T c = (at.t + at.fine) * f.b, spread = (c - average) / alpha + average;
        result.loss = (spread < 0 ? 0 : spread) + (s.top[row] - gold);
        result.scale = scale, result.count = (T)count;
    };
    if (s.dense[row]) {
        count = n;
        finish(s.mean[row] * scale * f.b);
        return result;
    }
    const int64_t room = n <= s.index_room ? list.room - N : -1;
    Vec<T> mean = {};
    for (int64_t first = 0; first < n; first += BLOCK * N) {
        Vec<T> part = {};
        for (int64_t i = first; i < min(n, first + BLOCK * N); i += N) {
            Vec<T> v = load(x + i), u;
            if constexpr (K == GENERAL)
                u = load(p + i);
            else
                u = probability<K>(v, at, f);
            if (K != GENERAL && need_alpha) store(p + i, u);
            uint32_t m = bits(u > 0);
            if (list_size <= room) {
                compress_store(list.mass + list_size, u, m);
                compress_indices(list.index + list_size, where + i, m, (T)0);
            }
            list_size += __builtin_popcount(m);
            // A last small step may have added entries whose values are still missing here. They
            // are counted by their base u.
            if (K == GENERAL)
                count += __builtin_popcount(bits(at.base(v) >= f.least * COUNT_MARGIN<T>));
            part += u * (m ? max(v, fill(OUTSIDE<T>)) : Vec<T>{});
        }
        mean += part;
    }
    if (K != GENERAL) count = list_size;
    finish(sum<T>(mean) * scale * f.b);
    if (list_size <= room) *list.count = (T)list_size;
    if (need_alpha) result.dalpha = entropy_slope(p, n, scale, f.eps, alpha);
    return result;
}

template <class T, class S> void loss_range(const LossCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Rows<T>& s = block.rows;
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    s.allow_dense = !call.alpha_grad;
    if (call.width > STATS) s.where = (int32_t*)block.tile[1], s.index_room = d / 16;
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MAX_ROWS];
        in.read(call.scores, begin, end, z);
        s.rows = (int)(end - begin);
        s.prefetch =
            row_prefetch<S>(call.layout, in.contiguous(), call.scores, call.scores, begin, end);
        if (kind == SOFTMAX) {
            for (int row = 0; row < s.rows; row++) {
                Vec<T> lanes[LANE_VECTORS];
                s.top[row] = row_maximum(z[row], d, lanes);
                s.shift[row] = s.top[row] == (T)-INFINITY ? 0 : s.top[row];
            }
        } else {
            DISPATCH_KIND(kind, if constexpr (K != SOFTMAX) solve<K>(s, z))
        }
        for (int row = 0; row < s.rows; row++) {
            const int64_t r = begin + row, y = call.target[r];
            const T gold = y < 0 ? s.top[row] : z[row][y];
            T* stats = (T*)call.stats + r * call.width;
            const Support<T> list(stats, call.width);
            RowLoss<T> result = {};
            DISPATCH_KIND(
                kind, result = loss_of<K>(s, row, z[row], gold, call.alpha_grad != nullptr, list))
            const Threshold<T> at = kind == SOFTMAX ? Threshold<T>{0, 0} : threshold(s, row);
            stats[0] = s.top[row], stats[1] = at.t, stats[2] = at.fine, stats[3] = result.scale,
            stats[4] = result.count;
            // Rows without a target and rows of -inf have no loss. Rows with a NaN have a scale of
            // NaN.
            const bool counts =
                y >= 0 && !(s.top[row] == (T)-INFINITY && s.count[row] == 0 && kind != SOFTMAX) &&
                !(kind == SOFTMAX && s.top[row] == (T)-INFINITY && result.scale == (T)INFINITY);
            const T number = result.scale == result.scale ? 1 : (T)NAN;
            ((T*)call.loss)[r] = counts ? result.loss * number : 0;
            if (call.alpha_grad) ((T*)call.alpha_grad)[r] = counts ? result.dalpha * number : 0;
            if (!counts) stats[3] = 0, stats[4] = 0;
        }
    };
    for_each_block<T>(call.layout, block.params, LOSSES, first, last, compute_block);
}

// Write a saved support times `by`, and zeros elsewhere.
template <bool STREAM, class T> void write_list(const Support<T>& list, int64_t d, T by, T* out) {
    constexpr int N = LANES<T>;
    const int64_t n = (int64_t)*list.count, head = STREAM ? min(d, unaligned(out)) : 0;
    int64_t k = 0;
    auto vector = [&](int64_t first, int64_t end) {
        alignas(VECTOR_BYTES) T lanes[N] = {};
        for (; k < n && list.index[k] < end; k++) lanes[list.index[k] - first] = list.mass[k] * by;
        return load(lanes);
    };
    if (head) store_part(out, head, vector(0, head));
    int64_t i = head;
    const int64_t whole = head + (d - head) / N * N;
    while (i < whole) {
        const int64_t next = k < n ? min(head + (list.index[k] - head) / N * N, whole) : whole;
        for (; i < next; i += N) store_or_stream<STREAM>(out + i, Vec<T>{});
        if (i == whole) break;
        store_or_stream<STREAM>(out + i, vector(i, i + N));
        i += N;
    }
    if (whole < d) store_part(out + whole, d - whole, vector(whole, d));
}

// A gradient of at least this many bytes leaves every cache before it is read again, so it is
// streamed to memory.
constexpr int64_t MIN_STREAM_BYTES = 16 << 20;

template <class T, class S>
void loss_gradient_range(const LossGradientCall& call, int64_t first, int64_t last) {
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 2);
    Tile<T, S> in(call.layout, block.tile[0], block.stride),
        out(call.layout, block.tile[1], block.stride);
    const bool stream = out.direct() && call.scores_grad != call.scores &&
                        call.layout.rows * d * (int64_t)sizeof(T) >= MIN_STREAM_BYTES;
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            T* dz = out.output_row(call.scores_grad, begin, r);
            const T* stats = (const T*)call.stats + r * call.width;
            const Support<T> list((T*)stats, call.width);
            const T weight = ((const T*)call.grad)[r], scale = stats[3];
            const Threshold<T> at{stats[1], stats[2]};
            const int64_t y = call.target[r];
            if (y < 0 || scale == 0) {
                fill_row(dz, d, (T)0);
            } else if (scale != scale) {
                fill_row(dz, d, (T)NAN);
            } else if (list.room && *list.count >= 0) {
                if (stream)
                    write_list<true>(list, d, scale * weight, dz);
                else
                    write_list<false>(list, d, scale * weight, dz);
                dz[y] -= weight;
            } else {
                const T* z;
                in.read(call.scores, r, r + 1, &z);
                DISPATCH_KIND(kind, write_probabilities<K>(z, d, stats[0], at, scale * weight,
                                                           block.params[r - begin], dz, stream))
                dz[y] -= weight;
            }
            out.finish_row(call.scores_grad, begin, r);
        }
    };
    for_each_block<T>(call.layout, block.params, call.relu ? RELU : LOSSES, first, last,
                      compute_block);
    if (stream) stream_fence();
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
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MAX_ROWS];
        in.read(call.scores, begin, end, z);
        for (int64_t r = begin; r < end; r++) {
            const T* row = z[r - begin];
            const AlphaParams<T>& f = block.params[0];
            Vec<T> total = {};
            int64_t count = 0;
            for (int64_t from = 0; from < d; from += BLOCK * N) {
                Vec<T> part = {};
                for (int64_t i = from; i < min(d, from + BLOCK * N); i += N) {
                    Vec<T> x = prevent_fma(load_row(row, i, d, (T)-INFINITY) * f.eps),
                           u = at.base(x), p = {};
                    DISPATCH_KIND(kind, if constexpr (K != SOFTMAX) p = probability<K>(x, at, f))
                    count += __builtin_popcount(bits(p > 0));
                    part += p * u;
                }
                total += part;
            }
            T* stats = (T*)call.stats + r * STATS;
            stats[0] = 0, stats[1] = at.t, stats[2] = at.fine, stats[3] = 1, stats[4] = (T)count;
            const int64_t y = call.target[r];
            const double eps = f.alpha - 1;
            ((T*)call.loss)[r] = y < 0 ? 0
                                       : sum<T>(total) / (T)f.alpha +
                                             (T)(1 / (f.alpha * eps) + call.tau / eps) - row[y];
        }
    };
    for_each_block<T>(call.layout, block.params, RELU, first, last, compute_block);
}

}  // namespace
