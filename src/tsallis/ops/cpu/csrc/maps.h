// Probabilities of rows of scores, and their recomputation from saved statistics.

#pragma once

#include "row_blocks.h"
#include "short_rows.h"
#include "threshold.h"

namespace {

// Write exp(z - shift) and return the sum, which is NaN for an infinite shift or a NaN.
template <class T> INLINE T exponentials(const T* z, int64_t d, T shift, T* out) {
    constexpr int N = LANES<T>;
    double total = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Vec<T> part = {};
        int64_t i = first;
        for (; i + N <= min(d, first + BLOCK * N); i += N) {
            Vec<T> e = exp_(load(z + i) - shift);
            store(out + i, e);
            part += e;
        }
        if (i < min(d, first + BLOCK * N)) {
            Vec<T> e = exp_(load_part(z + i, d - i, (T)-INFINITY) - shift);
            store_part(out + i, d - i, e);
            part += e;
        }
        total += sum<T>(part);
    }
    return (T)total;
}

template <class T> INLINE void scale_row(T* row, int64_t d, T by) {
    for (int64_t i = 0; i < d; i += LANES<T>) store_row(row, i, d, load_row(row, i, d, (T)0) * by);
}

// Return the number of entries before the first one at an aligned address.
template <class T> INLINE int64_t unaligned(const T* p) {
    return (int64_t)(-(uintptr_t)p % VECTOR_BYTES / sizeof(T));
}

// Write probabilities times `scale`. `f` is a copy: no store can alias it, so the compiler keeps it
// in registers.
template <Kind K, class T, bool STREAM>
void write_range(const T* z, int64_t d, T shift, Threshold<T> at, T scale, AlphaParams<T> f,
                 T* out) {
    constexpr int N = LANES<T>;
    auto value = [&](Vec<T> w) {
        if constexpr (K == SOFTMAX)
            return exp_(w) * scale;
        else
            return probability<K>(w * f.eps, at, f) * scale;
    };
    int64_t i = 0;
    if constexpr (K == INTEGER || K == GENERAL) {
        const Vec<T> bound = fill((at.t - 1) * f.b - (T)1e-6 * f.b);
        // General powers cost most: if the support is small, compute only its entries, compressed.
        if (K == GENERAL && d >= 1024) {
            constexpr int STRETCH = 32;
            alignas(VECTOR_BYTES) T packed[(STRETCH + WIDE) * N];
            uint32_t masks[STRETCH];
            for (bool sparse = true; sparse && i + STRETCH * N <= d; i += STRETCH * N) {
                int64_t n = 0;
                for (int k = 0; k < STRETCH; k++) {
                    const Vec<T> w = load(z + i + k * N) - shift;
                    masks[k] = not_le<T>(w, bound);
                    compress_store(packed + n, w * f.eps, masks[k]),
                        n += __builtin_popcount(masks[k]);
                }
                for (int k = 0; k < WIDE; k++) store(packed + n + k * N, fill(OUTSIDE<T>));
                for (int64_t k = 0; k < n; k += WIDE * N) {
                    Vec<T> p[WIDE];
                    for (int j = 0; j < WIDE; j++) p[j] = load(packed + k + j * N);
                    probabilities<K, WIDE>(p, at, f, p);
                    for (int j = 0; j < WIDE; j++) store(packed + k + j * N, p[j] * scale);
                }
                const T* next = packed;
                for (int k = 0; k < STRETCH; next += __builtin_popcount(masks[k++]))
                    store_or_stream<STREAM>(out + i + k * N,
                                            masks[k] ? expand_load(next, masks[k]) : Vec<T>{});
                sparse = n < STRETCH * N / 2;
            }
        }
        if (d >= 1024) {
            for (; i + WIDE * N <= d; i += WIDE * N) {
                Vec<T> w[WIDE];
                uint32_t some = 0;
                for (int k = 0; k < WIDE; k++)
                    w[k] = load(z + i + k * N) - shift, some |= not_le<T>(w[k], bound);
                for (int k = 0; k < WIDE; k++) w[k] *= f.eps;
                if (some) probabilities<K, WIDE>(w, at, f, w);
                for (int k = 0; k < WIDE; k++)
                    store_or_stream<STREAM>(out + i + k * N, some ? w[k] * scale : Vec<T>{});
            }
        }
    }
    for (; i + N <= d; i += N) store_or_stream<STREAM>(out + i, value(load(z + i) - shift));
    if (i < d) store_part(out + i, d - i, value(load_part(z + i, d - i, (T)-INFINITY) - shift));
}

// Write a solved row's probabilities times `scale`, past the caches if `stream` is set.
template <Kind K, class T>
INLINE void write_probabilities(const T* z, int64_t d, T shift, Threshold<T> at, T scale,
                                const AlphaParams<T>& f, T* out, bool stream = false) {
    if (!stream) return write_range<K, T, false>(z, d, shift, at, scale, f, out);
    const int64_t head = min(d, unaligned(out));
    if (head) write_range<K, T, false>(z, head, shift, at, scale, f, out);
    write_range<K, T, true>(z + head, d - head, shift, at, scale, f, out + head);
}

// Write compressed values to the candidates' columns and zeros elsewhere.
template <class T>
INLINE void expand_candidates(const T* z, int64_t d, T shift, T above, const T* packed, T scale,
                              T* out) {
    constexpr int N = LANES<T>;
    const Vec<T> bound = fill(above);
    for (int64_t i = 0; i < d; i += N) {
        uint32_t m = not_le<T>(load_row(z, i, d, (T)-INFINITY) - shift, bound);
        store_row(out, i, d, m ? expand_load(packed, m) * scale : Vec<T>{});
        packed += __builtin_popcount(m);
    }
}

// Write the probabilities of a block's rows to output_row(row), and call finish(row) after each.
template <Kind K, class T, class Output, class Finish>
void map_rows(Rows<T>& s, const T* const* z, Output&& output_row, Finish&& finish) {
    if constexpr (K != SOFTMAX && ROW_PER_LANE<T>)
        if (s.d <= MAX_SHORT_SIZE) return map_short<K>(s, z, output_row, finish);
    if constexpr (K != SOFTMAX) solve<K>(s, z);
    for (int row = 0; row < s.rows; row++) {
        T* p = output_row(row);
        if constexpr (K == SOFTMAX) {
            Vec<T> lanes[LANE_VECTORS];
            T top = row_maximum(z[row], s.d, lanes);
            T mass = exponentials(z[row], s.d, top == (T)-INFINITY ? 0 : top, p);
            s.top[row] = top, s.t[row] = s.fine[row] = 0, s.mass[row] = mass == 0 ? 1 : mass;
            scale_row(p, s.d, 1 / s.mass[row]);
        } else {
            T scale = 1 / s.mass[row];
            if (scale != scale)
                fill_row(p, s.d, (T)NAN);
            else if (K == GENERAL)
                expand_candidates(z[row], s.d, s.shift[row], s.above[row], s.p + row * s.stride,
                                  scale, p);
            else
                write_probabilities<K>(z[row], s.d, s.shift[row], threshold(s, row), scale,
                                       s.params[row], p);
        }
        finish(row);
    }
}

template <class T> INLINE int64_t count_support(const T* p, int64_t d) {
    int64_t count = 0;
    for (int64_t i = 0; i < d; i += LANES<T>)
        count += __builtin_popcount(bits(load_row(p, i, d, (T)0) > 0));
    return count;
}

// Return what to prefetch while the rows [begin, end) are solved.
template <class S>
INLINE RowPrefetch row_prefetch(const Layout& layout, bool plain, const void* out, const void* in,
                                int64_t begin, int64_t end) {
    const int64_t d = plain ? layout.d : 0, next = 2 * end - begin <= layout.rows ? end : begin;
    return {(const char*)((const S*)out + begin * d), (const char*)((const S*)in + next * d),
            d * (int64_t)sizeof(S), d ? (int64_t)sizeof(S) : 0, d <= 64};
}

template <class T, class S> void map_range(const MapCall& call, int64_t first, int64_t last) {
    Block<T> block(call.layout, 2);
    Rows<T>& s = block.rows;
    Tile<T, S> in(call.layout, block.tile[0], block.stride),
        out(call.layout, block.tile[1], block.stride);
    auto compute_block = [&](Kind kind, int64_t begin, int64_t end) {
        s.rows = (int)(end - begin);
        s.prefetch =
            row_prefetch<S>(call.layout, in.contiguous(), call.probs, call.scores, begin, end);
        auto output_row = [&](int row) { return out.output_row(call.probs, begin, begin + row); };
        auto finish = [&](int row) {
            if (call.stats) {
                T* stats = (T*)call.stats + (begin + row) * STATS;
                stats[0] = s.top[row], stats[1] = s.t[row], stats[2] = s.fine[row],
                stats[3] = 1 / s.mass[row];
                stats[4] = (T)count_support(output_row(row), s.d);
            }
            out.finish_row(call.probs, begin, begin + row);
        };
        if constexpr (ROW_PER_LANE<T> &&
                      !SAME_SIZE<T, S>) {  // half-precision rows are read and written in place
            if (kind != SOFTMAX && in.contiguous() && s.d <= MAX_SHORT_SIZE && !call.stats) {
                const S* z[MAX_ROWS];
                in.row_pointers(call.scores, begin, end, z);
                auto output_row = [&](int row) { return (S*)call.probs + (begin + row) * s.d; };
                DISPATCH_KIND(
                    kind, if constexpr (K != SOFTMAX) map_short<K>(s, z, output_row, [](int) {}))
                return;
            }
        }
        const T* z[MAX_ROWS];
        in.read(call.scores, begin, end, z);
        DISPATCH_KIND(kind, map_rows<K>(s, z, output_row, finish))
        out.finish_block(call.probs, begin, end);
    };
    for_each_block<T>(call.layout, block.params, MAPS, first, last, compute_block);
}

// Replace a row of scores by its probabilities, computed from the saved statistics.
template <class T> void entmax_weights(const AlphaParams<T>& f, const T* stats, int64_t d, T* row) {
    const T top = stats[0], scale = stats[3];
    const Threshold<T> at{stats[1], stats[2]};
    if (scale != scale) return fill_row(row, d, (T)NAN);
    DISPATCH_KIND(f.kind,
                  write_probabilities<K>(row, d, top == (T)-INFINITY ? 0 : top, at, scale, f, row))
}

}  // namespace
