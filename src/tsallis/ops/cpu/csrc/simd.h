// Vectors of floats and doubles, as wide as the instruction set this file is compiled for.
//
// Arithmetic uses the vector extension of GCC and Clang, which every target has. Operations that it
// lacks (square roots, packing the lanes of a mask, partial loads) use intrinsics if there are any,
// and plain loops otherwise. NaN follows the comparisons: `max(a, b)` is b unless a > b.
//
// Everything is in an anonymous namespace, and nothing of the standard library is instantiated. The
// same code is compiled once per instruction set: a function that the linker took from the wrong
// one would crash old machines.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define INLINE inline __attribute__((always_inline))

typedef float F __attribute__((vector_size(VECTOR_BYTES)));
typedef double D __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t FI __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t DI __attribute__((vector_size(VECTOR_BYTES)));

template <class T> struct Simd;
template <> struct Simd<float> {
    typedef F V;
    typedef FI I;
    static constexpr int N = VECTOR_BYTES / 4;
};
template <> struct Simd<double> {
    typedef D V;
    typedef DI I;
    static constexpr int N = VECTOR_BYTES / 8;
};
template <class T> using Vec = typename Simd<T>::V;
template <class T> using Ints = typename Simd<T>::I;
template <class T> constexpr int LANES = Simd<T>::N;

// x - 0 instead of 0 + x: a compiler may contract the sum with a product.
template <class T> INLINE Vec<T> fill(T x) { return x - Vec<T>{}; }
template <class T> INLINE T min(T a, T b) { return a < b ? a : b; }
template <class T> INLINE T max(T a, T b) { return a > b ? a : b; }
template <class V> INLINE V positive_part(V v) { return max(V{}, v); }  // keeps NaN
INLINE F absolute(F v) { return (F)((FI)v & 0x7fffffff); }
INLINE D absolute(D v) { return (D)((DI)v & 0x7fffffffffffffff); }

template <class T> INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T, class V> INLINE void store(T* p, V v) { std::memcpy(p, &v, sizeof v); }

// Load n lanes and set the others to `rest`; no byte after the n-th number is read.
template <class T> INLINE Vec<T> load_part(const T* p, int64_t n, T rest) {
    alignas(VECTOR_BYTES) T lanes[LANES<T>];
    for (int i = 0; i < LANES<T>; i++) lanes[i] = i < n ? p[i] : rest;
    return load(lanes);
}
template <class T> INLINE void store_part(T* p, int64_t n, Vec<T> v) {
    for (int i = 0; i < n; i++) p[i] = v[i];
}

template <class T> INLINE Vec<T> load_row(const T* row, int64_t i, int64_t d, T rest) {
    return i + LANES<T> <= d ? load(row + i) : load_part(row + i, d - i, rest);
}
template <class T> INLINE void store_row(T* row, int64_t i, int64_t d, Vec<T> v) {
    if (i + LANES<T> <= d)
        store(row + i, v);
    else
        store_part(row + i, d - i, v);
}

// Return the same number, rounded: the compiler can't contract it with a sum into an FMA.
template <class V> INLINE V prevent_fma(V v) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#elif defined(__x86_64__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}

// One bit per lane. not_le is "not less or equal", so that a NaN always passes.
template <class I> INLINE uint32_t bits(I mask) {
    uint32_t result = 0;
    for (unsigned i = 0; i < sizeof(I) / sizeof(mask[0]); i++)
        result |= (uint32_t)(mask[i] != 0) << i;
    return result;
}
template <class T> INLINE uint32_t not_le(Vec<T> a, Vec<T> b) { return bits(~(a <= b)); }

// Store the lanes of a mask without gaps; up to a full vector may be overwritten.
template <class T> INLINE void compress_store(T* out, Vec<T> v, uint32_t mask) {
    for (; mask; mask &= mask - 1) *out++ = v[__builtin_ctz(mask)];
}
// Load consecutive numbers into the lanes of a mask, zeros into the others; up to a full vector may
// be read.
template <class T> INLINE Vec<T> expand_load(const T* p, uint32_t mask) {
    Vec<T> v = {};
    for (; mask; mask &= mask - 1) v[__builtin_ctz(mask)] = *p++;
    return v;
}

// Store a vector to aligned memory past the caches, which then need not read the line first.
// stream_fence orders such stores.
template <class T> INLINE void stream_store(T* p, Vec<T> v) {
#if defined(__AVX512F__)
    _mm512_stream_ps((float*)p, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps((float*)p, (__m256)v);
#else
    store(p, v);
#endif
}
// Store past the caches, or normally.
template <bool STREAM, class T> INLINE void store_or_stream(T* p, Vec<T> v) {
    if constexpr (STREAM)
        stream_store(p, v);
    else
        store(p, v);
}
INLINE void stream_fence() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

template <class T> INLINE T sum(Vec<T> v) {
    T total = v[0];
    for (int i = 1; i < LANES<T>; i++) total += v[i];
    return total;
}
template <class T> INLINE T maximum(Vec<T> v) {
    T most = v[0];
    for (int i = 1; i < LANES<T>; i++) most = max(v[i], most);
    return most;
}
// Return a vector whose lane i is the sum of the lanes of v[i].
template <class T> INLINE Vec<T> lane_sums(const Vec<T>* v) {
    Vec<T> sums;
    for (int i = 0; i < LANES<T>; i++) sums[i] = sum<T>(v[i]);
    return sums;
}
INLINE D square_root(D v) {
    for (int i = 0; i < LANES<double>; i++) v[i] = __builtin_sqrt(v[i]);
    return v;
}

#if defined(__AVX512F__)

template <> INLINE F load_part(const float* p, int64_t n, float rest) {
    return (F)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), (__mmask16)((1u << n) - 1), p);
}
template <> INLINE void store_part(float* p, int64_t n, F v) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
template <> INLINE uint32_t bits(FI m) { return _mm512_movepi32_mask((__m512i)m); }
template <> INLINE uint32_t bits(DI m) { return _mm512_movepi64_mask((__m512i)m); }
template <> INLINE uint32_t not_le<float>(F a, F b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLE_UQ);
}
// Compress in a register and store the whole vector: the instruction that compresses into memory is
// slow on many machines.
template <> INLINE void compress_store(float* out, F v, uint32_t mask) {
    _mm512_storeu_ps(out, _mm512_maskz_compress_ps((__mmask16)mask, (__m512)v));
}
template <> INLINE F expand_load(const float* p, uint32_t mask) {
    return (F)_mm512_maskz_expand_ps((__mmask16)mask, _mm512_loadu_ps(p));
}
template <> INLINE float sum<float>(F v) { return _mm512_reduce_add_ps((__m512)v); }
template <> INLINE float maximum<float>(F v) { return _mm512_reduce_max_ps((__m512)v); }
template <> INLINE F lane_sums<float>(const F* v) {
    __m512 pairs[8], quads[4], halves[2];
    for (int i = 0; i < 8; i++) {
        __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++)
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                                  _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
    return (F)_mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                            _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}
INLINE F square_root(F v) { return (F)_mm512_sqrt_ps((__m512)v); }
INLINE F approx_reciprocal(F v) { return (F)_mm512_rcp14_ps((__m512)v); }

#elif defined(__AVX2__)

struct CompressTable {
    alignas(32) int32_t from[256][8] = {}, to[256][8] = {};  // -1 in `to`: a lane that gets zero
    constexpr CompressTable() {
        for (int mask = 0; mask < 256; mask++)
            for (int lane = 0, k = 0; lane < 8; lane++) {
                const bool selected = mask >> lane & 1;
                to[mask][lane] = selected ? k : -1;
                from[mask][selected ? k : 7 - (lane - k)] = lane;
                k += selected;
            }
    }
};
// constexpr: no code of this file may run when the library is loaded.
constexpr CompressTable COMPRESS;

INLINE __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
template <> INLINE F load_part(const float* p, int64_t n, float rest) {
    __m256i mask = first_lanes(n);
    return (F)_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(p, mask),
                               _mm256_castsi256_ps(mask));
}
template <> INLINE void store_part(float* p, int64_t n, F v) {
    _mm256_maskstore_ps(p, first_lanes(n), (__m256)v);
}
template <> INLINE uint32_t bits(FI m) { return (uint32_t)_mm256_movemask_ps((__m256)m); }
template <> INLINE uint32_t bits(DI m) { return (uint32_t)_mm256_movemask_pd((__m256d)m); }
template <> INLINE uint32_t not_le<float>(F a, F b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLE_UQ));
}
template <> INLINE void compress_store(float* out, F v, uint32_t mask) {
    __m256i from = _mm256_load_si256((const __m256i*)COMPRESS.from[mask]);
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps((__m256)v, from));
}
template <> INLINE F expand_load(const float* p, uint32_t mask) {
    __m256i to = _mm256_load_si256((const __m256i*)COMPRESS.to[mask]),
            none = _mm256_srai_epi32(to, 31);
    return (F)_mm256_andnot_ps(_mm256_castsi256_ps(none),
                               _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), to));
}
template <> INLINE float sum<float>(F v) {
    __m128 half =
        _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
template <> INLINE float maximum<float>(F v) {
    __m128 half =
        _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
template <> INLINE F lane_sums<float>(const F* v) {
    __m256 pairs[4], quads[2];
    for (int i = 0; i < 4; i++) {
        __m256 a = (__m256)v[2 * i], b = (__m256)v[2 * i + 1];
        pairs[i] = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 2; i++) {
        __m256d a = _mm256_castps_pd(pairs[2 * i]), b = _mm256_castps_pd(pairs[2 * i + 1]);
        quads[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                                 _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return (F)_mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                            _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
}
INLINE F square_root(F v) { return (F)_mm256_sqrt_ps((__m256)v); }
INLINE F approx_reciprocal(F v) { return (F)_mm256_rcp_ps((__m256)v); }

#elif defined(__aarch64__)

struct CompressTable {
    // Indices of bytes; 255 in `to`: a byte that gets zero.
    alignas(16) uint8_t from[16][16] = {}, to[16][16] = {};
    constexpr CompressTable() {
        for (int mask = 0; mask < 16; mask++)
            for (int byte = 0, k = 0; byte < 16; byte++) {
                const bool selected = mask >> byte / 4 & 1;
                to[mask][byte] = (uint8_t)(selected ? k : 255);
                if (selected) from[mask][k++] = (uint8_t)byte;
            }
    }
};
// constexpr: no code of this file may run when the library is loaded.
constexpr CompressTable COMPRESS;

// n is less than a whole vector.
template <> INLINE F load_part(const float* p, int64_t n, float rest) {
    float32x4_t v = vdupq_n_f32(rest);
    if (n & 2) {
        v = vcombine_f32(vld1_f32(p), vget_high_f32(v));
        return (F)(n & 1 ? vld1q_lane_f32(p + 2, v, 2) : v);
    }
    return (F)(n & 1 ? vld1q_lane_f32(p, v, 0) : v);
}
template <> INLINE void store_part(float* p, int64_t n, F v) {
    if (n & 2) vst1_f32(p, vget_low_f32((float32x4_t)v));
    if (n & 1) p[n & 2] = n & 2 ? v[2] : v[0];
}
template <> INLINE uint32_t bits(FI m) { return vaddvq_u32((uint32x4_t)(m & FI{1, 2, 4, 8})); }
template <> INLINE uint32_t bits(DI m) { return (uint32_t)vaddvq_u64((uint64x2_t)(m & DI{1, 2})); }
template <> INLINE uint32_t not_le<float>(F a, F b) { return bits(~(a <= b)); }
template <> INLINE void compress_store(float* out, F v, uint32_t mask) {
    store(out, vqtbl1q_u8((uint8x16_t)v, vld1q_u8(COMPRESS.from[mask])));
}
template <> INLINE F expand_load(const float* p, uint32_t mask) {
    return (F)vqtbl1q_u8((uint8x16_t)load(p), vld1q_u8(COMPRESS.to[mask]));
}
// Add in pairs: GCC turns vaddvq_f32(v + 8) into vaddvq_f32(v) + 32, which rounds differently.
template <> INLINE float sum<float>(F v) {
    return vpadds_f32(vget_low_f32(vpaddq_f32((float32x4_t)v, (float32x4_t)v)));
}
// Used on running maxima, which hold no NaN.
template <> INLINE float maximum<float>(F v) { return vmaxvq_f32((float32x4_t)v); }
template <> INLINE F lane_sums<float>(const F* v) {
    float32x4_t low = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]);
    return (F)vpaddq_f32(low, vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}
template <> INLINE D lane_sums<double>(const D* v) {
    return (D)vpaddq_f64((float64x2_t)v[0], (float64x2_t)v[1]);
}
INLINE F square_root(F v) { return (F)vsqrtq_f32((float32x4_t)v); }
INLINE F approx_reciprocal(F v) { return 1.0f / v; }

#else

INLINE F square_root(F v) {
    for (int i = 0; i < LANES<float>; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
}
INLINE F approx_reciprocal(F v) { return 1.0f / v; }

#endif

INLINE D approx_reciprocal(D v) { return 1.0 / v; }
INLINE F reciprocal(F v) {
    F r = approx_reciprocal(v);
    return r * (2.0f - v * r);
}
INLINE D reciprocal(D v) { return 1.0 / v; }

constexpr double INVERSE_FACTORIAL[] = {
    1,
    1,
    1.0 / 2,
    1.0 / 6,
    1.0 / 24,
    1.0 / 120,
    1.0 / 720,
    1.0 / 5040,
    1.0 / 40320,
    1.0 / 362880,
    1.0 / 3628800,
    1.0 / 39916800,
    1.0 / 479001600,
    1.0 / 6227020800,
    1.0 / 87178291200,
    1.0 / 1307674368000,
    1.0 / 20922789888000,
};
template <class T> constexpr int TERMS = sizeof(T) == 4 ? 8 : 15;  // terms of series for |x| < 1/2

constexpr float LOG2_E = 1.44269504f;

// Split u into 2^exponent * m with m in [sqrt(1/2), sqrt(2)); return log(m) with a relative error
// of 3e-8. u must be positive and normal.
INLINE F log_mantissa(F u, F& exponent) {
    FI k = ((FI)u - 0x3f3504f3) >> 23;
    F f = (F)((FI)u - (k << 23)) - 1.0f;
    exponent = __builtin_convertvector(k, F);
    F y = 8.7004722e-2f * f - 1.42675437e-1f;
    y = y * f + 1.49147809e-1f;
    y = y * f - 1.65775786e-1f;
    y = y * f + 1.99630622e-1f;
    y = y * f - 2.50013372e-1f;
    y = y * f + 3.33339108e-1f;
    F square = f * f;
    return f + (y * f * square - 0.5f * square);
}
// Return k, the integer nearest to t.
INLINE F nearest(F t) {
#if defined(__AVX512F__)
    return (F)_mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (F)_mm256_round_ps((__m256)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (F)vrndnq_f32((float32x4_t)t);
#else
    return (t + 12582912.0f) - 12582912.0f;
#endif
}
// Return y 2^k for integers k up to 127. If t, from which k was rounded, is below -125, the result
// may be zero.
INLINE F times_power_of_two(F y, F k, F t) {
#if defined(__AVX512F__)
    (void)t;
    return (F)_mm512_scalef_ps((__m512)y, (__m512)k);
#else
    FI scale = (__builtin_convertvector(k, FI) + 127) << 23;
    return t < -125.0f ? F{} : y * (F)scale;
#endif
}
// Return 2^t for t up to 127; it is zero far below -125.
INLINE F exp2_(F t) {
    F clamped = max(fill(-150.0f), t), k = nearest(clamped), r = clamped - k;
    F y = 1.535336188e-4f * r + 1.339887440e-3f;
    y = y * r + 9.618437358e-3f;
    y = y * r + 5.550332471e-2f;
    y = y * r + 2.402264791e-1f;
    y = y * r + 6.931472029e-1f;
    y = y * r + 1.0f;
    return times_power_of_two(y, k, clamped);
}
INLINE F exp_(F x) { return exp2_(x * LOG2_E); }
// Return 2^t for any t; infinity above the range.
INLINE F exp2_any(F t) {
#if defined(__AVX512F__)
    return exp2_(t);
#else
    const auto high = t > 127.0f;
    const F y = exp2_(min(fill(127.0f), high ? t - 1.0f : t));
    return high ? y + y : y;
#endif
}
// Return e^h - 1 - h for h from 0 to 88, with all digits also near 0, where it is h^2/2.
INLINE F exp_minus_tangent(F h) {
    F k = nearest(h * LOG2_E), r = (h - k * 0.693359375f) + k * 2.12194440e-4f;
    F y = 1.98994193e-4f * r + 1.39337539e-3f;
    y = y * r + 8.33329831e-3f;
    y = y * r + 4.16664640e-2f;
    y = y * r + 1.66666667e-1f;
    y = y * r + 0.5f;
    F scale = times_power_of_two(fill(1.0f), k, k);
    return y * r * r * scale + ((scale - 1.0f) + (r * scale - h));
}
INLINE F tanh_(F x) {
    const F h = min(fill(40.0f), 2.0f * absolute(x)), e = exp_minus_tangent(h) + h;
    return (F)((FI)(e / (e + 2.0f)) | ((FI)x & INT32_MIN));
}
INLINE F sigmoid(F x) { return 1.0f / (1.0f + exp_(min(fill(87.0f), -x))); }
INLINE F log_(F u) {
    F exponent;
    F m = log_mantissa(u, exponent);
    return exponent * 0.693359375f + (exponent * -2.12194440e-4f + m);
}
// Return (1 + y)^b for y > -1. The digits of y that 1 + y loses are added back to the logarithm.
INLINE F power_of_one_plus(F y, F u, F b) {
    F exponent;
    F m = log_mantissa(u, exponent) + (y - (u - 1.0f)) * (2.0f - u);
    return exp2_any((m * LOG2_E + exponent) * b);
}
INLINE F power(F p, F c) {
    F exponent;
    F m = log_mantissa(p, exponent);
    return exp2_any((m * LOG2_E + exponent) * c);
}
INLINE F power(F p, float c) { return power(p, fill(c)); }
// Return u^b to about four digits, for steps that later steps correct.
INLINE F approx_power(F u, F b) {
    FI k = ((FI)u - 0x3f3504f3) >> 23;
    F f = (F)((FI)u - (k << 23)) - 1.0f;
    F y = 0.25566687f * f - 0.39112317f;
    y = y * f + 0.48521406f;
    y = y * f - 0.72054121f;
    y = y * f + 1.44264757f;
    F t = (y * f + __builtin_convertvector(k, F)) * b;
    F clamped = max(fill(-150.0f), t), nearby = nearest(clamped), r = clamped - nearby;
    F e = 0.05592204f * r + 0.24264008f;
    e = e * r + 0.69312103f;
    e = e * r + 0.99992448f;
    return times_power_of_two(e, nearby, clamped);
}

INLINE D exp_(D x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = ::exp(x[i]);
    return x;
}
INLINE D exp_minus_tangent(D h) {
    for (int i = 0; i < LANES<double>; i++) {
        double x = h[i], series = 1;
        for (int n = 18; n > 2; n--) series = 1 + series * x / n;
        h[i] = x < 0.5 ? series * x * x / 2 : ::exp(x) - 1 - x;
    }
    return h;
}
INLINE D log_(D x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = ::log(x[i]);
    return x;
}
INLINE D power_of_one_plus(D y, D, D b) {
    for (int i = 0; i < LANES<double>; i++) y[i] = y[i] <= -1 ? 0 : ::exp(::log1p(y[i]) * b[i]);
    return y;
}
INLINE D power(D p, double c) {
    for (int i = 0; i < LANES<double>; i++) p[i] = ::pow(p[i], c);
    return p;
}
INLINE D approx_power(D u, D b) {
    for (int i = 0; i < LANES<double>; i++) u[i] = ::pow(u[i], b[i]);
    return u;
}
// Number of vectors that a loop works on at once, limited by the registers.
constexpr int WIDE = VECTOR_BYTES == 64 ? 4 : 2;

// Compute u^n of W vectors for n >= 1, by repeated squaring.
template <int W, class V> INLINE void integer_powers(const V* u, int n, V* result) {
    V square[W];
    for (int k = 0; k < W; k++) square[k] = result[k] = u[k];
    for (n -= 1; n; n >>= 1) {
        if (n & 1)
            for (int k = 0; k < W; k++) result[k] *= square[k];
        if (n > 1)
            for (int k = 0; k < W; k++) square[k] *= square[k];
    }
}
template <class V> INLINE V integer_power(V u, int n) {
    integer_powers<1>(&u, n, &u);
    return u;
}

// u^r for one r in (0, 1) and u in [2^-31, 2): a polynomial in the mantissa, with an error of at
// most 4e-8, times a factor for each exponent.
struct FractionPower {
    float series[8], binade[32];
};
inline FractionPower fraction_power(double r) {
    constexpr int N = 8;
    double at[N], value[N], series[N] = {};
    // Interpolate at Chebyshev's points around 3/4, by divided differences.
    for (int k = 0; k < N; k++)
        at[k] = 0.25 * ::cos(M_PI * (k + 0.5) / N), value[k] = ::pow(0.75 + at[k], r);
    for (int k = 1; k < N; k++)
        for (int j = N - 1; j >= k; j--) value[j] = (value[j] - value[j - 1]) / (at[j] - at[j - k]);
    for (int k = N - 1; k >= 0; k--) {
        for (int j = N - 1; j > 0; j--) series[j] = series[j - 1] - at[k] * series[j];
        series[0] = value[k] - at[k] * series[0];
    }
    FractionPower result;
    for (int k = 0; k < N; k++) result.series[k] = (float)series[k];
    // The factors of the exponents 96 to 127.
    for (int k = 0; k < 32; k++) result.binade[k] = (float)::exp2((k - 30) * r);
    return result;
}
template <int W> INLINE void multiply_fraction_power(const F* u, const FractionPower& of, F* v) {
    F m[W], y[W];
    for (int k = 0; k < W; k++) m[k] = (F)(((FI)u[k] & 0x7fffff) | 0x3f000000) - 0.75f;
    for (int k = 0; k < W; k++) y[k] = m[k] * of.series[7] + of.series[6];
    for (int i = 5; i >= 0; i--)
        for (int k = 0; k < W; k++) y[k] = y[k] * m[k] + of.series[i];
    for (int k = 0; k < W; k++) {
        const FI binade = (FI)u[k] >> 23;
#if defined(__AVX512F__)
        const __m512 low = _mm512_loadu_ps(of.binade), high = _mm512_loadu_ps(of.binade + 16);
        v[k] *= y[k] * (F)_mm512_permutex2var_ps(low, (__m512i)binade, high);
#elif defined(__AVX2__)
        v[k] *= y[k] * (F)_mm256_i32gather_ps(of.binade, (__m256i)(binade & 31), 4);
#else
        for (int i = 0; i < LANES<float>; i++) y[k][i] *= of.binade[binade[i] & 31];
        v[k] *= y[k];
#endif
    }
}
// Powers of doubles are computed by pow, without a table.
template <int W> INLINE void multiply_fraction_power(const D*, const FractionPower&, D*) {}

}  // namespace
