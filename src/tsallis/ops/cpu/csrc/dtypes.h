// Conversion of rows between the caller's storage and the format of the kernels, contiguous floats
// or doubles.

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

INLINE float upcast(float x) { return x; }
INLINE double upcast(double x) { return x; }
INLINE float upcast(BFloat16 x) {
    uint32_t wide = (uint32_t)x.bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
INLINE float upcast(Float16 x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    __fp16 half;
    std::memcpy(&half, &x, 2);
    return half;
#else
    // Shift exponent and mantissa up. Multiplying by 2^112 then corrects the exponent, also of
    // subnormals.
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

INLINE void downcast(float x, float& out) { out = x; }
INLINE void downcast(double x, double& out) { out = x; }
INLINE void downcast(float x, BFloat16& out) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    uint32_t rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    out.bits = (uint16_t)(x == x ? rounded : 0x7fc0);
}
INLINE void downcast(float x, Float16& out) {
#if defined(__F16C__)
    out.bits = (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
    const __fp16 half = (__fp16)x;
    std::memcpy(&out, &half, 2);
#else
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    uint32_t sign = wide >> 16 & 0x8000, magnitude = wide & 0x7fffffff;
    uint32_t result;
    if (magnitude > 0x7f800000)
        result = 0x7e00;
    else if (magnitude >= 0x47800000)
        result = 0x7c00;
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

#if defined(__AVX512F__)
INLINE __m512 upcast_vector(__m256i v, Float16) { return _mm512_cvtph_ps(v); }
INLINE __m512 upcast_vector(__m256i v, BFloat16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
INLINE __m256i downcast_vector(__m512 v, Float16) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
INLINE __m256i downcast_vector(__m512 v, BFloat16) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(v);
#endif
    const __m512i wide = _mm512_castps_si512(v),
                  last = _mm512_and_si512(_mm512_srli_epi32(wide, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(wide, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
}
template <class S> INLINE F load_half(const S* row, int64_t i) {
    return (F)upcast_vector(_mm256_loadu_si256((const __m256i*)(row + i)), S{});
}
template <class S> INLINE F load_half_part(const S* row, int64_t n, float rest) {
    const __mmask16 some = (__mmask16)((1u << n) - 1);
    return (F)_mm512_mask_mov_ps(_mm512_set1_ps(rest), some,
                                 upcast_vector(_mm256_maskz_loadu_epi16(some, row), S{}));
}
template <class S> INLINE void store_half(S* row, F v) {
    _mm256_storeu_si256((__m256i*)row, downcast_vector((__m512)v, S{}));
}
template <class S> INLINE void store_half_part(S* row, int64_t n, F v) {
    _mm256_mask_storeu_epi16(row, (__mmask16)((1u << n) - 1), downcast_vector((__m512)v, S{}));
}
template <class S> INLINE void upcast_vectors(const S* from, float* to, int64_t d) {
    for (int64_t j = 0; j < d; j += 16) {
        const __mmask16 some = (__mmask16)(d - j < 16 ? (1u << (d - j)) - 1 : 0xffff);
        _mm512_mask_storeu_ps(to + j, some,
                              upcast_vector(_mm256_maskz_loadu_epi16(some, from + j), S{}));
    }
}
template <class S> INLINE void downcast_vectors(const float* from, S* to, int64_t d) {
    for (int64_t j = 0; j < d; j += 16) {
        const __mmask16 some = (__mmask16)(d - j < 16 ? (1u << (d - j)) - 1 : 0xffff);
        _mm256_mask_storeu_epi16(to + j, some,
                                 downcast_vector(_mm512_maskz_loadu_ps(some, from + j), S{}));
    }
}
#elif defined(__AVX2__)
INLINE __m256 upcast_vector(__m128i v, Float16) { return _mm256_cvtph_ps(v); }
INLINE __m256 upcast_vector(__m128i v, BFloat16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
INLINE __m128i downcast_vector(__m256 v, Float16) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
INLINE __m128i downcast_vector(__m256 v, BFloat16) {
    const __m256i wide = _mm256_castps_si256(v),
                  last = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(wide, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}
template <class S> INLINE F load_half(const S* row, int64_t i) {
    return (F)upcast_vector(_mm_loadu_si128((const __m128i*)(row + i)), S{});
}
template <class S> INLINE void store_half(S* row, F v) {
    _mm_storeu_si128((__m128i*)row, downcast_vector((__m256)v, S{}));
}
template <class S> INLINE void upcast_vectors(const S* from, float* to, int64_t d) {
    int64_t j = 0;
    for (; j + 8 <= d; j += 8)
        _mm256_storeu_ps(to + j, upcast_vector(_mm_loadu_si128((const __m128i*)(from + j)), S{}));
    for (; j < d; j++) to[j] = upcast(from[j]);
}
template <class S> INLINE void downcast_vectors(const float* from, S* to, int64_t d) {
    int64_t j = 0;
    for (; j + 8 <= d; j += 8)
        _mm_storeu_si128((__m128i*)(to + j), downcast_vector(_mm256_loadu_ps(from + j), S{}));
    for (; j < d; j++) downcast(from[j], to[j]);
}
#elif defined(__aarch64__)
INLINE float32x4_t upcast_vector(uint16x4_t v, Float16) { return vcvt_f32_f16((float16x4_t)v); }
INLINE float32x4_t upcast_vector(uint16x4_t v, BFloat16) { return (float32x4_t)vshll_n_u16(v, 16); }
INLINE uint16x4_t downcast_vector(float32x4_t v, Float16) { return (uint16x4_t)vcvt_f16_f32(v); }
INLINE uint16x4_t downcast_vector(float32x4_t v, BFloat16) {
    const uint32x4_t wide = (uint32x4_t)v, last = vandq_u32(vshrq_n_u32(wide, 16), vdupq_n_u32(1));
    // vaddhn takes the upper half of the sum.
    const uint16x4_t rounded = vaddhn_u32(wide, vaddq_u32(last, vdupq_n_u32(0x7fff)));
    return vbsl_u16(vmovn_u32(vceqq_f32(v, v)), rounded, vdup_n_u16(0x7fc0));
}
template <class S> INLINE F load_half(const S* row, int64_t i) {
    return (F)upcast_vector(vld1_u16((const uint16_t*)(row + i)), S{});
}
template <class S> INLINE F load_half_part(const S* row, int64_t n, float rest) {
    uint64_t some = 0;  // n is less than a whole vector
    if (n & 2) std::memcpy(&some, row, 4);
    if (n & 1) some |= (uint64_t)row[n & 2].bits << 16 * (n & 2);
    return FI{0, 1, 2, 3} < (int32_t)n ? (F)upcast_vector(vcreate_u16(some), S{}) : fill(rest);
}
template <class S> INLINE void store_half(S* row, F v) {
    vst1_u16((uint16_t*)row, downcast_vector((float32x4_t)v, S{}));
}
template <class S> INLINE void store_half_part(S* row, int64_t n, F v) {
    const uint16x4_t half = downcast_vector((float32x4_t)v, S{});
    if (n & 2) std::memcpy(row, &half, 4);
    if (n & 1) row[n & 2].bits = n & 2 ? half[2] : half[0];
}
// Compilers vectorise these loops, but not the one that rounds to float16.
template <class S> INLINE void upcast_vectors(const S* from, float* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) to[j] = upcast(from[j]);
}
INLINE void downcast_vectors(const float* from, BFloat16* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) downcast(from[j], to[j]);
}
INLINE void downcast_vectors(const float* from, Float16* to, int64_t d) {
    int64_t j = 0;
    for (; j + 4 <= d; j += 4) store_half(to + j, load(from + j));
    for (; j < d; j++) downcast(from[j], to[j]);
}
#else
template <class S> INLINE F load_half(const S* row, int64_t i) {
    F v;
    for (int k = 0; k < LANES<float>; k++) v[k] = upcast(row[i + k]);
    return v;
}
template <class S> INLINE void store_half(S* row, F v) {
    for (int k = 0; k < LANES<float>; k++) downcast(v[k], row[k]);
}
template <class S> INLINE void upcast_vectors(const S* from, float* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) to[j] = upcast(from[j]);
}
template <class S> INLINE void downcast_vectors(const float* from, S* to, int64_t d) {
    for (int64_t j = 0; j < d; j++) downcast(from[j], to[j]);
}
#endif

#if !defined(__AVX512F__) && !defined(__aarch64__)
template <class S> INLINE F load_half_part(const S* row, int64_t n, float rest) {
    alignas(VECTOR_BYTES) float lanes[LANES<float>];
    for (int i = 0; i < LANES<float>; i++) lanes[i] = i < n ? upcast(row[i]) : rest;
    return load(lanes);
}
template <class S> INLINE void store_half_part(S* row, int64_t n, F v) {
    for (int i = 0; i < n; i++) downcast(v[i], row[i]);
}
#endif
// Overloads with the names of the functions for floats, so that templates read and write
// half-precision rows in place.
template <class S> INLINE F load_half_row(const S* row, int64_t i, int64_t d, float rest) {
    return i + LANES<float> <= d ? load_half(row, i) : load_half_part(row + i, d - i, rest);
}
INLINE F load(const BFloat16* p) { return load_half(p, 0); }
INLINE F load(const Float16* p) { return load_half(p, 0); }
template <class S> INLINE void store_half_row(S* row, int64_t i, int64_t d, F v) {
    if (i + LANES<float> <= d)
        store_half(row + i, v);
    else
        store_half_part(row + i, d - i, v);
}
INLINE void store(BFloat16* p, F v) { store_half(p, v); }
INLINE void store(Float16* p, F v) { store_half(p, v); }
INLINE void store_row(BFloat16* row, int64_t i, int64_t d, F v) { store_half_row(row, i, d, v); }
INLINE void store_row(Float16* row, int64_t i, int64_t d, F v) { store_half_row(row, i, d, v); }
INLINE F load_row(const BFloat16* row, int64_t i, int64_t d, float rest) {
    return load_half_row(row, i, d, rest);
}
INLINE F load_row(const Float16* row, int64_t i, int64_t d, float rest) {
    return load_half_row(row, i, d, rest);
}

// Rows up to this length are solved transposed, one row per lane.
constexpr int64_t MAX_SHORT_SIZE = 512;
constexpr int64_t MAX_SEPARATE_SIZE = 64;  // each row up to this length has its own row in a tile

// False for half precision, which is computed in float.
template <class T, class S> constexpr bool SAME_SIZE = sizeof(T) == sizeof(S);

// Access to blocks of rows of a tensor as contiguous rows of T. If the tensor has no such rows,
// they are copied to `tile`, whose rows are `stride` elements apart.
template <class T, class S> class Tile {
  public:
    Tile(const Layout& layout, T* tile, int64_t stride)
        : layout(layout), tile(tile), stride(stride) {}

    INLINE bool direct() const { return SAME_SIZE<T, S> && layout.inner == 1; }

    // Point rows[r - first] to row r, for the rows [first, last).
    void read(const void* memory, int64_t first, int64_t last, const T** rows) const {
        const S* base = (const S*)memory;
        const int64_t d = layout.d, inner = layout.inner;
        if (direct()) {
            for (int64_t r = first; r < last; r++) rows[r - first] = (const T*)(base + r * d);
            return;
        }
        for (int64_t r = first; r < last; r++) rows[r - first] = tile + (r - first) * stride;
        if (inner == 1) {
            for (int64_t r = first; r < last; r++)
                copy_in(base + r * d, tile + (r - first) * stride, d);
            return;
        }
        int64_t start[LANES<float>];
        find_starts(first, last, start);
        for (int64_t j = 0; j < d; j++)
            for (int64_t k = 0; k < last - first; k++)
                tile[k * stride + j] = upcast(base[start[k] + j * inner]);
    }

    // Return whether rows are contiguous, in any dtype.
    INLINE bool contiguous() const { return layout.inner == 1; }
    void row_pointers(const void* memory, int64_t first, int64_t last, const S** rows) const {
        for (int64_t r = first; r < last; r++) rows[r - first] = (const S*)memory + r * layout.d;
    }

    // Return where to write row r of a block that begins at `first`: in the tensor itself or in the
    // tile.
    INLINE T* output_row(void* memory, int64_t first, int64_t r) const {
        return direct() ? (T*)memory + r * layout.d
                        : tile + (reuses_first_row() ? 0 : (r - first) * stride);
    }

    // Call this when row r is complete. It copies a half-precision row out while the row is in the
    // first-level cache.
    INLINE void finish_row(void* memory, int64_t first, int64_t r) const {
        if (!direct() && layout.inner == 1)
            copy_out(output_row(memory, first, r), (S*)memory + r * layout.d, layout.d);
    }

    // Call this when all rows of a block are complete. It copies strided rows out.
    void finish_block(void* memory, int64_t first, int64_t last) const {
        const int64_t d = layout.d, inner = layout.inner;
        if (inner == 1) return;
        S* base = (S*)memory;
        int64_t start[LANES<float>];
        find_starts(first, last, start);
        for (int64_t j = 0; j < d; j++)
            for (int64_t k = 0; k < last - first; k++)
                downcast(tile[k * stride + j], base[start[k] + j * inner]);
    }

  private:
    // Return whether each row of a block is copied out before the next one, so that all rows use
    // the tile's first row.
    INLINE bool reuses_first_row() const {
        return layout.inner == 1 && layout.d > MAX_SEPARATE_SIZE;
    }

    // Find where the rows of a block begin in the tensor.
    void find_starts(int64_t first, int64_t last, int64_t* start) const {
        const int64_t inner = layout.inner;
        for (int64_t r = first; r < last; r++)
            start[r - first] = r / inner * layout.d * inner + r % inner;
    }

    static INLINE void copy_in(const S* from, T* to, int64_t d) {
        if constexpr (!SAME_SIZE<T, S>) upcast_vectors(from, to, d);
    }
    static INLINE void copy_out(const T* from, S* to, int64_t d) {
        if constexpr (!SAME_SIZE<T, S>) downcast_vectors(from, to, d);
    }

    const Layout& layout;
    T* tile;
    int64_t stride;
};

}  // namespace
