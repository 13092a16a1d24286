// The maps, and a row's probabilities once more.

#pragma once

#include "row_blocks.h"
#include "short_rows.h"
#include "threshold.h"

namespace {

// exp(z - shift) and its sum. A shift of infinity or a NaN makes the sum NaN.
template <class T> INLINE T exponentials(const T* z, int64_t d, T shift, T* out) {
    constexpr int N = LANES<T>;
    double total = 0;
    for (int64_t first = 0; first < d; first += BLOCK * N) {
        Vec<T> part = {};
        int64_t i = first;
        for (; i + N <= smaller(d, first + BLOCK * N); i += N) {
            Vec<T> e = exp_(load(z + i) - shift);
            store(out + i, e);
            part += e;
        }
        if (i < smaller(d, first + BLOCK * N)) {
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

// Entries before the first that begins a vector of memory.
template <class T> INLINE int64_t unaligned(const T* p) {
    return (int64_t)(-(uintptr_t)p % VECTOR_BYTES / sizeof(T));
}

// The family is a copy, which no store can change.
template <Kind K, class T, bool PAST>
void emit_some(const T* z, int64_t d, T shift, Threshold<T> at, T scale, Family<T> f, T* out) {
    constexpr int N = LANES<T>;
    auto value = [&](Vec<T> w) {
        if constexpr (K == SOFTMAX)
            return exp_(w) * scale;
        else
            return probability<K>(w * f.eps, at, f) * scale;
    };
    int64_t i = 0;
    if constexpr (K == WHOLE || K == ANY) {
        const Vec<T> bound = fill((at.t - 1) * f.b - (T)1e-6 * f.b);
        // What costs most: where little is in the support, only that, packed.
        if (K == ANY && d >= 1024) {
            constexpr int STRETCH = 32;
            alignas(VECTOR_BYTES) T packed[(STRETCH + WIDE) * N];
            uint32_t masks[STRETCH];
            for (bool sparse = true; sparse && i + STRETCH * N <= d; i += STRETCH * N) {
                int64_t n = 0;
                for (int k = 0; k < STRETCH; k++) {
                    const Vec<T> w = load(z + i + k * N) - shift;
                    masks[k] = beyond<T>(w, bound);
                    store_packed(packed + n, w * f.eps, masks[k]),
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
                    put<PAST>(out + i + k * N, masks[k] ? load_packed(next, masks[k]) : Vec<T>{});
                sparse = n < STRETCH * N / 2;
            }
        }
        if (d >= 1024) {
            for (; i + WIDE * N <= d; i += WIDE * N) {
                Vec<T> w[WIDE];
                uint32_t some = 0;
                for (int k = 0; k < WIDE; k++)
                    w[k] = load(z + i + k * N) - shift, some |= beyond<T>(w[k], bound);
                for (int k = 0; k < WIDE; k++) w[k] *= f.eps;
                if (some) probabilities<K, WIDE>(w, at, f, w);
                for (int k = 0; k < WIDE; k++)
                    put<PAST>(out + i + k * N, some ? w[k] * scale : Vec<T>{});
            }
        }
    }
    for (; i + N <= d; i += N) put<PAST>(out + i, value(load(z + i) - shift));
    if (i < d) store_part(out + i, d - i, value(load_part(z + i, d - i, (T)-INFINITY) - shift));
}

// Probabilities times `scale`, from scores and a solved row's threshold; written `past` the caches
// or not.
template <Kind K, class T>
INLINE void emit(const T* z, int64_t d, T shift, Threshold<T> at, T scale, const Family<T>& f,
                 T* out, bool past = false) {
    if (!past) return emit_some<K, T, false>(z, d, shift, at, scale, f, out);
    const int64_t head = smaller(d, unaligned(out));
    if (head) emit_some<K, T, false>(z, head, shift, at, scale, f, out);
    emit_some<K, T, true>(z + head, d - head, shift, at, scale, f, out + head);
}

// Packed values back to where the candidates were, zeros elsewhere.
template <class T>
INLINE void unpack(const T* z, int64_t d, T shift, T above, const T* packed, T scale, T* out) {
    constexpr int N = LANES<T>;
    const Vec<T> bound = fill(above);
    for (int64_t i = 0; i < d; i += N) {
        uint32_t m = beyond<T>(load_row(z, i, d, (T)-INFINITY) - shift, bound);
        store_row(out, i, d, m ? load_packed(packed, m) * scale : Vec<T>{});
        packed += __builtin_popcount(m);
    }
}

// The rows' probabilities, each written where place(row) says and then finish(row)ed.
template <Kind K, class T, class Place, class Finish>
void map_rows(Rows<T>& s, const T* const* z, Place&& place, Finish&& finish) {
    if constexpr (K != SOFTMAX && TURNED<T>)
        if (s.d <= SHORT) return map_short<K>(s, z, place, finish);
    if constexpr (K != SOFTMAX) solve<K>(s, z);
    for (int row = 0; row < s.rows; row++) {
        T* p = place(row);
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
            else if (K == ANY)
                unpack(z[row], s.d, s.shift[row], s.above[row], s.p + row * s.stride, scale, p);
            else
                emit<K>(z[row], s.d, s.shift[row], threshold(s, row), scale, s.family[row], p);
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

// What is to be called into the cache while the rows [begin, end) are at work.
template <class S>
INLINE Around around(const Layout& layout, bool plain, const void* out, const void* in,
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
    in_blocks<T>(
        call.layout, block.family, MAPS, first, last, [&](Kind kind, int64_t begin, int64_t end) {
            s.rows = (int)(end - begin);
            s.around = around<S>(call.layout, in.plain(), call.probs, call.scores, begin, end);
            auto place = [&](int row) { return out.place(call.probs, begin, begin + row); };
            auto finish = [&](int row) {
                if (call.stats) {
                    T* stats = (T*)call.stats + (begin + row) * STATS;
                    stats[0] = s.top[row], stats[1] = s.t[row], stats[2] = s.fine[row],
                    stats[3] = 1 / s.mass[row];
                    stats[4] = (T)count_support(place(row), s.d);
                }
                out.finish_row(call.probs, begin, begin + row);
            };
            if constexpr (TURNED<T> && !SAME<T, S>) {  // halves are read and written where they lie
                if (kind != SOFTMAX && in.plain() && s.d <= SHORT && !call.stats) {
                    const S* z[MOST];
                    in.find(call.scores, begin, end, z);
                    auto there = [&](int row) { return (S*)call.probs + (begin + row) * s.d; };
                    BY_KIND(kind, if constexpr (K != SOFTMAX) map_short<K>(s, z, there, [](int) {}))
                    return;
                }
            }
            const T* z[MOST];
            in.read(call.scores, begin, end, z);
            BY_KIND(kind, map_rows<K>(s, z, place, finish))
            out.finish_block(call.probs, begin, end);
        });
}

// A row's probabilities once more, in place of its scores, by the stats that were kept of it.
template <class T> void weigh_row(const Family<T>& f, const T* stats, int64_t d, T* row) {
    const T top = stats[0], scale = stats[3];
    const Threshold<T> at{stats[1], stats[2]};
    if (scale != scale) return fill_row(row, d, (T)NAN);
    BY_KIND(f.kind, emit<K>(row, d, top == (T)-INFINITY ? 0 : top, at, scale, f, row))
}

}  // namespace
