// Rows as the caller stores them, and as the kernels want them: contiguous floats or doubles.

#pragma once

#include "api.h"
#include "simd.h"

namespace {

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

INLINE float widen(float x) { return x; }
INLINE double widen(double x) { return x; }
INLINE float widen(BFloat16 x) {
    uint32_t wide = (uint32_t)x.bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
INLINE float widen(Float16 x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#else
    // Exponent and mantissa move up; a product with 2^112 puts the exponent right, subnormals included.
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = (uint32_t)(x.bits & 0x7fff) << 13;
    uint32_t magnitude;
    if (rest >= 0x7c00u << 13) {
        magnitude = rest | 0x7f800000;
    } else {
        float value;
        std::memcpy(&value, &rest, 4);
        value *= 0x1p112f;
        std::memcpy(&magnitude, &value, 4);
    }
    uint32_t wide = sign | magnitude;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
#endif
}

INLINE void narrow(float x, float& out) { out = x; }
INLINE void narrow(double x, double& out) { out = x; }
INLINE void narrow(float x, BFloat16& out) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    uint32_t rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    out.bits = (uint16_t)(x == x ? rounded : 0x7fc0);
}
INLINE void narrow(float x, Float16& out) {
#if defined(__F16C__)
    out.bits = (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    uint32_t sign = wide >> 16 & 0x8000, magnitude = wide & 0x7fffffff;
    uint32_t result;
    if (magnitude > 0x7f800000) result = 0x7e00;
    else if (magnitude >= 0x47800000) result = 0x7c00;
    else if (magnitude < 0x38800000) {  // subnormal: an addition rounds at the right digit
        float value;
        std::memcpy(&value, &magnitude, 4);
        value += 0.5f;
        std::memcpy(&result, &value, 4);
        result -= 0x3f000000;
    } else {
        result = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
    out.bits = (uint16_t)(sign | result);
#endif
}

template <class S> void widen_row(const S* from, float* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) to[j] = widen(from[j]);
}
template <class S> void narrow_row(const float* from, S* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) narrow(from[j], to[j]);
}
#if defined(__AVX512F__)
INLINE void widen_row(const Float16* from, float* to, int64_t d) {
    int64_t j = 0;
    for (; j + 16 <= d; j += 16) _mm512_storeu_ps(to + j, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(from + j))));
    for (; j < d; j++) to[j] = widen(from[j]);
}
INLINE void narrow_row(const float* from, Float16* to, int64_t d) {
    int64_t j = 0;
    for (; j + 16 <= d; j += 16)
        _mm256_storeu_si256((__m256i*)(to + j), _mm512_cvtps_ph(_mm512_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT));
    for (; j < d; j++) narrow(from[j], to[j]);
}
#elif defined(__F16C__)
INLINE void widen_row(const Float16* from, float* to, int64_t d) {
    int64_t j = 0;
    for (; j + 8 <= d; j += 8) _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + j))));
    for (; j < d; j++) to[j] = widen(from[j]);
}
INLINE void narrow_row(const float* from, Float16* to, int64_t d) {
    int64_t j = 0;
    for (; j + 8 <= d; j += 8)
        _mm_storeu_si128((__m128i*)(to + j), _mm256_cvtps_ph(_mm256_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT));
    for (; j < d; j++) narrow(from[j], to[j]);
}
#endif

template <class T, class S> constexpr bool SAME = sizeof(T) == sizeof(S);  // halves are narrower than what computes them

// The rows [first, last) of a tensor as contiguous rows; copied to `tile` (stride elements a row) where they aren't.
template <class T, class S> class Tile {
  public:
    Tile(const Layout& layout, T* tile, int64_t stride) : layout(layout), tile(tile), stride(stride) {}

    INLINE bool direct() const { return SAME<T, S> && layout.inner == 1; }

    void read(const void* memory, int64_t first, int64_t last, const T** rows) const {
        const S* base = (const S*)memory;
        const int64_t d = layout.d, inner = layout.inner;
        if (direct()) {
            for (int64_t r = first; r < last; r++) rows[r - first] = (const T*)(base + r * d);
            return;
        }
        for (int64_t r = first; r < last; r++) rows[r - first] = tile + (r - first) * stride;
        if (inner == 1) {
            for (int64_t r = first; r < last; r++) copy_in(base + r * d, tile + (r - first) * stride, d);
            return;
        }
        int64_t start[LANES<float>];
        find_starts(first, last, start);
        for (int64_t j = 0; j < d; j++)
            for (int64_t k = 0; k < last - first; k++) tile[k * stride + j] = widen(base[start[k] + j * inner]);
    }

    // Where row r of a block that begins at `first` shall be written: into the tensor itself, or into the tile.
    INLINE T* place(void* memory, int64_t first, int64_t r) const {
        return direct() ? (T*)memory + r * layout.d : tile + (layout.inner == 1 ? 0 : (r - first) * stride);
    }

    // A row is written: halves leave the tile at once, which so stays in the first-level cache.
    INLINE void finish_row(void* memory, int64_t r) const {
        if (!direct() && layout.inner == 1) copy_out(tile, (S*)memory + r * layout.d, layout.d);
    }

    // The same where another row is not all zero around: the gradient of a sparse row is needed, and not zero, there
    // alone. What is left out in the tile is undefined; in the tensor it is zero.
    const T* read_around(const T* support, const void* memory, int64_t r) const {
        const S* row = (const S*)memory + r * layout.d;
        if (direct()) return (const T*)row;
        in_groups(support, [&](int64_t i, int64_t n, bool some) {
            if (some) copy_in(row + i, tile + i, n);
        });
        return tile;
    }
    void finish_around(const T* support, void* memory, int64_t r) const {
        S* row = (S*)memory + r * layout.d;
        if (direct()) return;
        in_groups(support, [&](int64_t i, int64_t n, bool some) {
            if (some) copy_out(tile + i, row + i, n);
            else std::memset((void*)(row + i), 0, (size_t)n * sizeof(S));
        });
    }

    void finish_block(void* memory, int64_t first, int64_t last) const {
        const int64_t d = layout.d, inner = layout.inner;
        if (inner == 1) return;
        S* base = (S*)memory;
        int64_t start[LANES<float>];
        find_starts(first, last, start);
        for (int64_t j = 0; j < d; j++)
            for (int64_t k = 0; k < last - first; k++) narrow(tile[k * stride + j], base[start[k] + j * inner]);
    }

  private:
    // Where the rows of a block begin in the tensor.
    void find_starts(int64_t first, int64_t last, int64_t* start) const {
        const int64_t inner = layout.inner;
        for (int64_t r = first; r < last; r++) start[r - first] = r / inner * layout.d * inner + r % inner;
    }

    template <class Visit> INLINE void in_groups(const T* support, Visit&& visit) const {
        constexpr int64_t GROUP = 2 * LANES<T>;
        for (int64_t i = 0; i < layout.d; i += GROUP) {
            const int64_t n = smaller(GROUP, layout.d - i);
            bool some = n < GROUP || beyond<T>(larger(load(support + i), load(support + i + LANES<T>)), Vec<T>{});
            visit(i, n, some);
        }
    }

    static INLINE void copy_in(const S* from, T* to, int64_t d) {
        if constexpr (!SAME<T, S>) widen_row(from, to, d);
    }
    static INLINE void copy_out(const T* from, S* to, int64_t d) {
        if constexpr (!SAME<T, S>) narrow_row(from, to, d);
    }

    const Layout& layout;
    T* tile;
    int64_t stride;
};

}  // namespace
