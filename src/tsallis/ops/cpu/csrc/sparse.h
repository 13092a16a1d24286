// Supports as CSR rows, and their products with a table.

#pragma once

#include "row_blocks.h"

namespace {

template <class T, class S>
void support_range(const SupportCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>;
    const int64_t d = call.layout.d;
    Block<T> block(call.layout, 1);
    Tile<T, S> in(call.layout, block.tile[0], block.stride);
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        const T* z[MAX_ROWS];
        in.read(call.scores, begin, end, z);
        for (int64_t r = begin; r < end; r++) {
            const T *row = z[r - begin], *stats = (const T*)call.stats + r * STATS;
            const AlphaParams<T>& f = block.params[r - begin];
            const T shift = stats[0] == (T)-INFINITY ? 0 : stats[0], scale = stats[3];
            const Threshold<T> at{stats[1], stats[2]};
            int64_t n = call.offsets[r];
            const int64_t end_of_list = call.offsets[r + 1];
            const Vec<T> bound =
                fill(kind == SOFTMAX ? (T)-INFINITY : (at.t - 1) * f.b - (T)1e-6 * f.b);
            for (int64_t i = 0; i < d && n < end_of_list; i += N) {
                Vec<T> w = load_row(row, i, d, (T)-INFINITY) - shift;
                if (!not_le<T>(w, bound)) continue;
                Vec<T> p = {};
                // Round as the loss does when it counts the support: otherwise a row might have one
                // entry more than it has room for.
                const Vec<T> x = prevent_fma(w * f.eps);
                DISPATCH_KIND(kind, if constexpr (K == SOFTMAX) p = exp_(w);
                              else p = probability<K>(x, at, f))
                for (uint32_t m = bits(p > 0); m && n < end_of_list; m &= m - 1) {
                    const int lane = __builtin_ctz(m);
                    call.index[n] = (int32_t)(i + lane);
                    ((T*)call.value)[n++] = p[lane] * scale;
                }
            }
            for (; n < end_of_list; n++) call.index[n] = 0, ((T*)call.value)[n] = 0;
        }
    };
    for_each_block<T>(call.layout, block.params, call.relu ? RELU : LOSSES, first, last,
                      compute_block);
}

template <class T, class S> INLINE Vec<T> table_vector(const S* p) {
    if constexpr (SAME_SIZE<T, S>) return load((const T*)p);
    Vec<T> v;
    for (int i = 0; i < LANES<T>; i++) v[i] = upcast(p[i]);
    return v;
}

template <class T, class S> void gather_range(const GatherCall& call, int64_t first, int64_t last) {
    constexpr int N = LANES<T>, TILE = 8;
    const int64_t m = call.m;
    const S* table = (const S*)call.table;
    for (int64_t r = first; r < last; r++) {
        const int64_t from = call.offsets[r], to = call.offsets[r + 1];
        const T scale = call.scale ? ((const T*)call.scale)[r] : 1;
        const int64_t minus_row = call.minus ? call.minus[r] : -1;
        const T* value = (const T*)call.value;
        S* out = (S*)call.out + r * m;
        int64_t j = 0;
        for (; j + TILE * N <= m; j += TILE * N) {
            Vec<T> total[TILE] = {};
            for (int64_t k = from; k < to; k++) {
                const S* source = table + call.index[k] * m + j;
                if (k + 4 < to) __builtin_prefetch(table + call.index[k + 4] * m + j);
                for (int v = 0; v < TILE; v++)
                    total[v] += value[k] * table_vector<T, S>(source + v * N);
            }
            for (int v = 0; v < TILE; v++) {
                Vec<T> sum = minus_row < 0
                                 ? total[v]
                                 : total[v] - table_vector<T, S>(table + minus_row * m + j + v * N);
                sum *= scale;
                for (int i = 0; i < N; i++) downcast(sum[i], out[j + v * N + i]);
            }
        }
        for (; j < m; j++) {
            T total = 0;
            for (int64_t k = from; k < to; k++)
                total += value[k] * upcast(table[call.index[k] * m + j]);
            if (minus_row >= 0) total -= upcast(table[minus_row * m + j]);
            downcast(total * scale, out[j]);
        }
        if (call.total) {
            T total = 0;
            for (int64_t k = from; k < to; k++) total += value[k];
            ((T*)call.total)[r] = (total - (minus_row >= 0 ? 1 : 0)) * scale;
        }
    }
}

}  // namespace
