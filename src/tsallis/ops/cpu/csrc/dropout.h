// Dropout: whether an entry is kept is a function of a seed, its row and its column.

#pragma once

#include "api.h"
#include "simd.h"

namespace {

// A bijective hash of 32 bits (constants: C. Wellons' search for low bias).
INLINE uint32_t mix_bits(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du;
    x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// Return the seed of a row's draws.
INLINE uint64_t row_seed(uint64_t seed, int64_t row) {
    uint64_t x = seed + (uint64_t)row * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Return the limit below which a draw keeps its entry.
INLINE uint32_t keep_below(double keep_prob) {
    const double limit = keep_prob * 4294967296.0;
    return limit >= 4294967295.0 ? 4294967295u : (uint32_t)limit;
}

INLINE uint32_t draw(uint64_t seed_of_row, uint32_t column) {
    return mix_bits(mix_bits(column * 0x9e3779b1u + (uint32_t)seed_of_row) ^
                    (uint32_t)(seed_of_row >> 32));
}

template <class T> void drop_range(const DropCall& call, int64_t first, int64_t last) {
    const T *in = (const T*)call.in, scale = (T)(1 / call.keep_prob);
    T* out = (T*)call.out;
    const uint32_t below = keep_below(call.keep_prob);
    for (int64_t row = first; row < last; row++) {
        const uint64_t seed = row_seed(call.seed, row);
        const int64_t start = row * call.d;
        const int64_t some = min(call.d, call.n - start);
        for (int64_t j = 0; j < some; j++)
            out[start + j] = draw(seed, (uint32_t)j) < below ? in[start + j] * scale : (T)0;
    }
}

}  // namespace
