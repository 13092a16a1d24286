// Exact attention of a few queries from a scan of 8-bit keys. It reads only the keys and values
// that may get a weight.
//
// Entmax gives weight to keys whose score exceeds a threshold. The threshold grows with every score
// and with every key that is added. So the threshold of lower bounds of some scores is at most the
// true one, and keys whose upper bound is below it have weight zero.
//
// A stored key is y = (k - mean) / channel, rounded to y8 = scale * (bytes - 128). `mean` adds the
// same number to all scores of a query, which changes no weight. `channel` holds powers of two by
// which the query is multiplied. With x the query, and xq the query in 16-bit steps:
//     |x.y - xq.y8| <= |x| |y - y8| + |x - xq| |y8|,    |y8| <= 127 sqrt(size) scale
// The products xq.y8 are exact integers. Five roundings of float turn them into scores.

#pragma once

#include "attention_tile.h"

#if defined(__SSE2__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

namespace {

constexpr int64_t BLOCK_KEYS = 16;
constexpr int64_t AHEAD = 8704;      // distance of the prefetch in bytes
constexpr int64_t CANDIDATES = 128;  // number of new candidates after which the cut is raised
constexpr int64_t FEW = 256;         // up to this number of candidates a scan always continues
constexpr int PAUSE = 16;            // number of dense steps after a scan that was given up
constexpr double UNIT = 1.0 / (1 << 24), SPARE = 1 + 1e-6;  // SPARE: room for 16 float roundings

// The bytes of a block: [groups of four numbers][keys][4], then scales and errors in bfloat16.
INLINE int64_t num_groups(int64_t size) { return (size + 3) / 4; }
INLINE int64_t block_bytes(int64_t size) { return num_groups(size) * 4 * BLOCK_KEYS + 64; }

// Return a block of a head. The last keys come first in memory: a scan starts with them, and
// processors read ascending addresses up to three times as fast as descending ones.
INLINE uint8_t* block_of(const ScreenCall& call, int64_t head, int64_t block) {
    return call.rows + (head + 1) * call.head_bytes -
           (block + 1) * block_bytes(call.attention.size);
}

// Return the least bfloat16 that is at least x (for a positive x: at least 1e-36), or infinity.
INLINE BFloat16 round_up(double x) {
    if (x == 0) return {0};
    if (!(x < 3.3e38)) return {0x7f80};
    const float nearest = (float)max(x, 1e-36);
    uint32_t wide;
    std::memcpy(&wide, &nearest, 4);
    return {(uint16_t)((wide + (nearest < x) + 0xffff) >> 16)};
}

// Encode the keys from call.begin on, for the key heads [first, last).
void screen_range(const ScreenCall* from, int64_t first, int64_t last) {
    const ScreenCall& call = *from;
    const AttentionCall& attention = call.attention;
    const int64_t size = attention.size, groups = num_groups(size);
    for (int64_t head = first; head < last; head++) {
        const float *mean = call.mean + head * size, *channel = call.channel + head * size;
        double longest = call.longest[head];
        for (int64_t j = call.begin; j < attention.keys; j++) {
            const float* key = row_of<float>(attention.key, head / attention.key_heads,
                                             head % attention.key_heads, j);
            auto number = [&](int64_t i) { return ((double)key[i] - mean[i]) / channel[i]; };
            double top = 0, square = 0, error = 0;
            for (int64_t i = 0; i < size; i++) {
                const double y = number(i);
                top = max(top, ::fabs(y)), square += y * y;
            }
            const bool finite = square < 1e72;
            const BFloat16 scale = round_up(finite ? top / 127 : 0);
            const double step = upcast(scale);
            uint8_t* block = block_of(call, head, j / BLOCK_KEYS);
            uint8_t* at = block + j % BLOCK_KEYS * 4;
            for (int64_t i = 0; i < 4 * groups; i++) {
                long v = 0;
                if (i < size && finite) {
                    const double y = number(i);
                    if (step > 0) v = min(127l, max(-127l, ::lrint(y / step)));
                    error += (y - step * (double)v) * (y - step * (double)v);
                }
                at[i / 4 * 4 * BLOCK_KEYS + i % 4] = (uint8_t)(v + 128);
            }
            // The second summand is more than the rounding of all these doubles.
            error = finite ? ::sqrt(error) * SPARE + top * (double)size * 1e-15 : INFINITY;
            BFloat16* tail = (BFloat16*)(block + groups * 4 * BLOCK_KEYS) + j % BLOCK_KEYS;
            tail[0] = scale, tail[BLOCK_KEYS] = round_up(error);
            longest = max(longest, finite ? ::sqrt(square) * SPARE : INFINITY);
        }
        call.longest[head] = longest;
    }
}

typedef uint16_t FH __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t FU __attribute__((vector_size(VECTOR_BYTES)));

// Return the sums of the products of two neighbouring 16-bit numbers.
INLINE FU pair_products(FH a, FH b) {
#if defined(__AVX512BW__)
    return (FU)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (FU)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (FU)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    FU sums;
    for (int i = 0; i < LANES<float>; i++)
        sums[i] = (uint32_t)((int16_t)a[2 * i] * (int16_t)b[2 * i] +
                             (int16_t)a[2 * i + 1] * (int16_t)b[2 * i + 1]);
    return sums;
#endif
}
// Four numbers of a query as two operands of `accumulate`, and their sums, which
// correct for the 128 that is added to the bytes of keys.
struct Operands {
    uint32_t first, second;
    int32_t first_sum, second_sum;
};
// Add the products of four numbers of a query and of the keys. The sum is first * FACTOR + second.
#if defined(__AVX512VNNI__)
constexpr uint32_t FACTOR = 256;
INLINE Operands operands(const int16_t* v) {
    Operands result = {};
    for (int i = 0; i < 4; i++) {
        const int high = (v[i] + 128) >> 8, low = v[i] - 256 * high;
        result.first |= (uint32_t)(uint8_t)high << 8 * i;
        result.second |= (uint32_t)(uint8_t)low << 8 * i;
        result.first_sum += high, result.second_sum += low;
    }
    return result;
}
INLINE void accumulate(FU keys, FU a, FU b, FU& first, FU& second) {
    first = (FU)_mm512_dpbusd_epi32((__m512i)first, (__m512i)keys, (__m512i)a);
    second = (FU)_mm512_dpbusd_epi32((__m512i)second, (__m512i)keys, (__m512i)b);
}
#else
constexpr uint32_t FACTOR = 1;
INLINE Operands operands(const int16_t* v) {
    auto pair = [](int16_t a, int16_t b) { return (uint32_t)(uint16_t)a | (uint32_t)b << 16; };
    return {pair(v[0], v[2]), pair(v[1], v[3]), v[0] + v[2], v[1] + v[3]};
}
INLINE void accumulate(FU keys, FU a, FU b, FU& first, FU& second) {
    first += pair_products((FH)(keys & 0x00ff00ff), (FH)a);
    second += pair_products((FH)keys >> 8, (FH)b);
}
#endif

class Screening : AttentionTile<float> {
    using Base = AttentionTile<float>;
    static constexpr int64_t VECTORS = BLOCK_KEYS / N;

  public:
    Screening(const ScreenCall& screen, const Kernels& kernels)
        : Base(screen.attention),
          screen(screen),
          kernels(kernels),
          groups(num_groups(screen.attention.size)) {}

    // Compute a query. Return false if a dense product must compute it: many keys may have a
    // weight, or numbers are not finite.
    bool run(int64_t number) { return prepare(number) && finish(); }

    // Compute the scores [keys] of the only query, with the same sums as `multiply_linear`; those
    // of keys without a weight may be -inf. Fill the rest of `room` with -inf.
    bool write_scores(const float* query, float* scores, int64_t room) {
        if (!prepare(0)) return false;
        for (int64_t j = 0; j < room; j++) scores[j] = -INFINITY;
        for (int64_t k = 0; k < count; k += N) {
            const float* key[N];
            F sum;
            for (int64_t i = 0; i < N; i++) {
                const int64_t j = index[min(k + i, count - 1)];
                key[i] = row_of<float>(call.key, 0, 0, j), sum[i] = ((const float*)call.mask)[j];
            }
            for (int64_t c = 0; c < call.size; c++) {
                F column;
                for (int64_t i = 0; i < N; i++) column[i] = key[i][c];
                sum += fill(query[c]) * column;
            }
            for (int64_t i = 0; i < min((int64_t)N, count - k); i++) scores[index[k + i]] = sum[i];
        }
        return true;
    }

  private:
    bool prepare(int64_t number) {
        begin(tile_index(number / tiles / heads, number / tiles % heads, number % tiles));
        tile.span = tile.keys;
        Arena::allocate([&](Arena& arena) {
            arena.take(queries, width), arena.take(gathered, N * width);
            arena.take(first, groups), arena.take(second, groups);
            arena.take(low, tile.keys + N), arena.take(high, tile.keys + N);
            arena.take(weight, tile.keys + N), arena.take(index, tile.keys + N);
            arena.take(mask, call.mask ? tile.keys + BLOCK_KEYS : 0);
        });
        return alpha > 1 && load_query() && scan();
    }
    const ScreenCall& screen;
    const Kernels& kernels;
    const int64_t groups;
    uint32_t *first, *second, first_sum, second_sum;  // operands of the query
    float step, norm, rounding;  // norm: |x|; rounding: other errors per unit of a key's scale
    float *gathered, *mask;
    float *low, *high, *weight;  // bounds of the candidates' scores, and weights
    int32_t* index;              // the candidates' keys, descending
    int64_t count;
    float cut;  // keys with an upper bound below it have weight zero

    // Round the query to 16-bit steps.
    bool load_query() {
        load_queries();
        const int64_t size = call.size, head = tile.batch * call.key_heads + tile.key_head;
        const float *query = row_of<float>(call.query, tile.batch, tile.head, tile.first_row),
                    *channel = screen.channel + head * size;
        auto number = [&](int64_t i) { return (double)query[i] * call.scale * channel[i]; };
        double top = 0, square = 0, error = 0, length = 0;
        for (int64_t i = 0; i < size; i++)
            top = max(top, ::fabs(number(i))), square += number(i) * number(i);
        if (!(square < 1e72)) return false;
        // The sum of all products fits into 32 bits, and a number into two signed bytes.
        const double most = min(32639.0, ::floor(2147483647.0 / (127.0 * (double)size)));
        step = (float)(top / most * SPARE);
        if (step < 1e-30f) step = 0;
        int64_t first_total = 0, second_total = 0;
        for (int64_t g = 0; g < groups; g++) {
            int16_t v[4] = {};
            for (int64_t i = 4 * g; i < min(size, 4 * g + 4); i++) {
                const double x = number(i), rounded = step > 0 ? ::rint(x / step) : 0;
                v[i - 4 * g] = (int16_t)rounded;
                error += (x - step * rounded) * (x - step * rounded);
                length += rounded * rounded;
            }
            const Operands some = operands(v);
            first[g] = some.first, second[g] = some.second;
            first_total += some.first_sum, second_total += some.second_sum;
        }
        first_sum = (uint32_t)(-128 * first_total), second_sum = (uint32_t)(-128 * second_total);
        const double largest = 127 * ::sqrt((double)size) * SPARE * screen.bound;
        norm = (float)(::sqrt(square) * SPARE * screen.bound);
        rounding = (float)((::sqrt(error) + 16 * UNIT * step * ::sqrt(length)) * largest);
        return true;
    }

    // Collect the candidates from the last key to the first: the last keys often have the largest
    // scores.
    bool scan() {
        const int64_t end = tile.keys, head = tile.batch * call.key_heads + tile.key_head;
        if (call.mask) {
            for (int64_t j = 0; j < end + BLOCK_KEYS; j++) mask[j] = 0;
            mask_row(mask, 0);
        }
        count = 0, cut = -INFINITY;
        int64_t limit = CANDIDATES, least = 0;
        for (int64_t block = (end + BLOCK_KEYS - 1) / BLOCK_KEYS - 1; block >= least; block--) {
            const int64_t j = block * BLOCK_KEYS;
            if (call.mask && is_hidden(j)) continue;
            F score[VECTORS], error[VECTORS];
            uint32_t some = scan_block(block_of(screen, head, block), j, score, error);
            if (__builtin_expect(!some, 1)) continue;
            if (end - j < BLOCK_KEYS) some &= (1u << (end - j)) - 1;
            keep(j, some, score, error);
            if (count < limit) continue;
            raise_cut();
            limit = count + max(count, CANDIDATES);
            if (count > FEW && 4 * count > end - j) return false;
            least = max(least, first_block(screen.longest[head]));
        }
        if (count) raise_cut();
        return true;
    }
    INLINE uint32_t scan_block(const uint8_t* at, int64_t j, F* score, F* error) const {
        FU a[VECTORS], b[VECTORS];
        for (int v = 0; v < VECTORS; v++) a[v] = first_sum - FU{}, b[v] = second_sum - FU{};
        for (int64_t g = 0; g < groups; g++, at += 4 * BLOCK_KEYS) {
            __builtin_prefetch(at + AHEAD);
            for (int v = 0; v < VECTORS; v++)
                accumulate((FU)load((const float*)at + v * N), first[g] - FU{}, second[g] - FU{},
                           a[v], b[v]);
        }
        uint32_t some = 0;
        for (int v = 0; v < VECTORS; v++) {
            const BFloat16* tail = (const BFloat16*)at + v * N;
            const F scale = load(tail);
            score[v] = __builtin_convertvector((FI)(a[v] * FACTOR + b[v]), F) * step * scale;
            // The last number covers results that are flushed to zero.
            error[v] = load(tail + BLOCK_KEYS) * norm + (scale * rounding + 1e-36f);
            if (slope != 0) add_bias(bias_of(j + v * N), score[v], error[v]);
            if (call.mask) add_bias(load(mask + j + v * N), score[v], error[v]);
            some |= not_le<float>(score[v] + error[v], fill(cut)) << (v * N);
        }
        return some;
    }
    static INLINE void add_bias(F bias, F& score, F& error) {
        const F size = absolute(bias);
        score += bias, error += size < 1e30f ? size * (float)(4 * UNIT) : F{};
    }
    INLINE F bias_of(int64_t j) const {
        F number;
        for (int i = 0; i < N; i++) number[i] = (float)i;
        return -slope * absolute(number + (float)(j - position(0)));
    }
    bool is_hidden(int64_t j) const {
        uint32_t some = 0;
        for (int v = 0; v < VECTORS; v++)
            some |= not_le<float>(load(mask + j + v * N), fill(-INFINITY));
        return !some;
    }
    void keep(int64_t j, uint32_t some, const F* score, const F* error) {
        alignas(64) float s[BLOCK_KEYS], e[BLOCK_KEYS];
        for (int v = 0; v < VECTORS; v++) store(s + v * N, score[v]), store(e + v * N, error[v]);
        for (int lane = BLOCK_KEYS - 1; lane >= 0; lane--) {
            if (!(some >> lane & 1)) continue;
            low[count] = s[lane] - e[lane] > -INFINITY ? s[lane] - e[lane] : -INFINITY;  // not NaN
            high[count] = s[lane] + e[lane], index[count++] = (int32_t)(j + lane);
        }
    }
    // Replace numbers [count] by their probabilities; return the statistics.
    void map(const float* from, float* stats) const {
        const MapCall call{{STORE_F32, 1, count, 1, alpha, nullptr}, from, weight, stats};
        kernels.map(&call, 0, 1);
    }
    // Raise the cut to the threshold of the candidates' lower bounds; drop candidates below it.
    void raise_cut() {
        float stats[STATS];
        map(low, stats);
        const double top = stats[0], inverse = 1 / (alpha - 1);
        // If the masses sum to 1 + d, the threshold is wrong by at most d / (1 - d).
        const bool solved = ::fabs((double)stats[3] - 1) < 5e-4;
        const double threshold = solved ? (double)stats[1] + (double)stats[2] : 0;
        const double next = top + (threshold - 1) * inverse - 1e-3 - 4e-6 * (::fabs(top) + inverse);
        if (next > (double)cut && next < 1e38) cut = (float)next;
        int64_t kept = 0;
        for (int64_t k = 0; k < count; k++) {
            low[kept] = low[k], high[kept] = high[k], index[kept] = index[k];
            kept += !(high[k] <= cut);
        }
        count = kept;
    }
    // Return the first block whose keys may exceed the cut at their distance from the query.
    int64_t first_block(float longest) const {
        if (!(slope > 0) || (call.mask && !call.boolean_mask)) return 0;
        const double reach = ((double)norm / screen.bound * longest - cut) / slope,
                     from = (double)position(0) - reach - 2;
        return from > 0 ? (int64_t)min(from, 1e15) / BLOCK_KEYS : 0;
    }

    // Compute the candidates' scores, weights and the output.
    bool finish() {
        float stats[STATS];
        for (int64_t k = 0; k < count; k += N) {
            const int64_t some = min((int64_t)N, count - k);
            for (int64_t i = 0; i < some; i++)
                load_rows(row_of<float>(call.key, tile.batch, tile.key_head, index[k + i]), 0, 1,
                          call.size, 1.0f, width, gathered + i * width);
            dots_of_rows(Table<float>{gathered, width}, some, queries, width, low + k);
        }
        for (int64_t k = 0; k < count; k++) {
            if (slope != 0) low[k] -= slope * (float)::llabs(index[k] - position(0));
            if (call.mask) low[k] += mask[index[k]];
        }
        if (count) map(low, stats);
        if (count && !(stats[3] == stats[3])) return false;
        int64_t n = 0;
        for (int64_t k = 0; k < count; k++)
            if (weight[k] > 0) weight[n] = weight[k], index[n++] = index[k];
        counts(tile)[0] = (int32_t)n;
        if (call.columns) {
            for (int64_t k = 0; k < n; k++) {
                call.columns[saved_offset(tile) + k] = index[n - 1 - k];
                ((float*)call.weight)[saved_offset(tile) + k] = weight[n - 1 - k];
            }
            return true;
        }
        float* out = row_of<float>(call.out, tile.batch, tile.head, tile.first_row);
        for (int64_t i = 0; i < call.value_size; i += N) {
            F total = {};
            for (int64_t k = 0; k < n; k++) {
                const float* value = row_of<float>(call.value, tile.batch, tile.key_head, index[k]);
                total += weight[k] * load_row(value, i, call.value_size, 0.0f);
            }
            store_row(out, i, call.value_size, total);
        }
        return true;
    }
};

// Run a scan, unless it is paused; return whether it has computed the result.
template <class Scan> bool run_unless_paused(int32_t* pause, Scan&& scan) {
    const int32_t left = pause ? __atomic_load_n(pause, __ATOMIC_RELAXED) : 0;
    if (left == 0 && scan()) return true;
    if (pause) __atomic_store_n(pause, left ? left - 1 : PAUSE, __ATOMIC_RELAXED);
    return false;
}

// Compute the scores of an output layer from a state, see Screening::write_scores.
bool screened_scores(const ScreenCall& layer, const Kernels& kernels, const float* state,
                     float* scores, int64_t room) {
    ScreenCall call = layer;
    call.attention.query.memory = (void*)state;
    return run_unless_paused(
        call.pauses, [&] { return Screening(call, kernels).write_scores(state, scores, room); });
}

// Compute the queries [first, last).
void screened_range(const ScreenCall* call, int64_t first, int64_t last, const Kernels& kernels) {
    for (int64_t number = first; number < last; number++) {
        int32_t* pause = call->pauses ? call->pauses + number / call->attention.queries : nullptr;
        if (run_unless_paused(pause, [&] { return Screening(*call, kernels).run(number); }))
            continue;
        if (call->attention.columns)
            call->attention.support[number] = -1;
        else
            kernels.attention(&call->attention, number, number + 1);
    }
    release_scratch(SCRATCH_LIMIT, FOR_TILES);
}

}  // namespace
