// Shared by all encoders and decoders: rows of numbers, one row per symbol, that attend to keys.

#pragma once

#include <algorithm>

#include "panels.h"

namespace {

// Replace n numbers by their softmax.
INLINE void softmax_in_place(float* x, int64_t n) {
    constexpr int N = LANES<float>;
    F most = fill(-INFINITY);
    for (int64_t i = 0; i < n; i += N) most = max(load_row(x, i, n, -INFINITY), most);
    const float top = maximum<float>(most);
    F total = {};
    for (int64_t i = 0; i < n; i += N) {
        const F e = exp_(load_row(x, i, n, -INFINITY) - top);
        store_row(x, i, n, e), total += e;
    }
    const float by = 1 / sum<float>(total);
    for (int64_t i = 0; i < n; i += N) store_row(x, i, n, load_row(x, i, n, 0.0f) * by);
}

// Compute the scaled scores of a query and n keys for every head: out[h * head_step + j].
INLINE void attention_scores(const float* query, const float* const* keys, int64_t n, int64_t heads,
                             int64_t size, float scale, float* out, int64_t head_step) {
    constexpr int N = LANES<float>;
    for (int64_t h = 0; h < heads; h++) {
        const float* q = query + h * size;
        for (int64_t j = 0; j < n; j += N) {
            F total[N] = {};
            const int64_t some = min((int64_t)N, n - j);
            for (int64_t k = 0; k < some; k++)
                for (int64_t i = 0; i < size; i += N)
                    total[k] += load(q + i) * load(keys[j + k] + h * size + i);
            store_row(out + h * head_step, j, n, lane_sums<float>(total) * scale);
        }
    }
}

// Compute W vectors of the sums of values: each head's weights times the values, which are stored
// `value` numbers after the keys.
template <int W>
INLINE void mix_vectors(const float* const* keys, int64_t n, int64_t value, const float* weights,
                        int64_t head_step, int64_t vectors_per_head, int64_t first, float* out) {
    constexpr int N = LANES<float>;
    const float* own[W];
    F total[W] = {};
    for (int w = 0; w < W; w++) own[w] = weights + (first + w) / vectors_per_head * head_step;
    for (int64_t j = 0; j < n; j++) {
        const float* v = keys[j] + value + first * N;
        for (int w = 0; w < W; w++) total[w] += own[w][j] * load(v + w * N);
    }
    for (int w = 0; w < W; w++) store(out + (first + w) * N, total[w]);
}

// Return the distance between rows of n numbers: whole panels, plus a cache line if the rows of a
// tile would otherwise share few sets of a first-level cache.
INLINE int64_t row_stride(int64_t n) {
    constexpr int64_t LINE = 16, SETS = 64;
    const int64_t whole = whole_panels(n);
    return whole % (SETS / 4 * LINE) ? whole : whole + LINE;
}

// Compute the additive scores of a query and n keys [width]: out[j] = score . tanh(key + query).
INLINE void additive_scores(const float* query, const float* const* keys, int64_t n, int64_t width,
                            const float* score, float* out) {
    constexpr int N = LANES<float>;
    for (int64_t j = 0; j < n; j++) {
        F total = {};
        for (int64_t i = 0; i < width; i += N)
            total += load(score + i) * tanh_(load(keys[j] + i) + load(query + i));
        out[j] = sum<float>(total);
    }
}

// Rows [rows, row] of a thread that attend to keys, and buffers that subclasses allocate.
class AttendingRows {
  protected:
    static constexpr int64_t GROUP = 16;  // rows whose attention is computed at once

    int64_t rows, d, heads, row, longest;
    float *q, *context, *weights, *alphas;
    const float** keys;
    const float* additive = nullptr;  // [d]: vector of additive scores; null: scaled products

    // `longest`: the largest number of keys of a row.
    AttendingRows(int64_t rows, int64_t d, int64_t heads, int64_t longest, float scale)
        : rows(rows), d(d), heads(heads), row(row_stride(d)), longest(longest), scale(scale) {}

    // Allocate some buffers of floats, and those of attention.
    template <int K> void allocate(float** const (&parts)[K], const int64_t (&sizes)[K]) {
        const int64_t numbers = rows * row, scores = GROUP * heads * longest;
        const int64_t pointers = GROUP * longest * (int64_t)sizeof(float*) / 4;
        int64_t total = 2 * whole(numbers) + whole(scores) + whole(GROUP * heads) + pointers;
        for (int64_t size : sizes) total += whole(size);
        float* memory = (float*)scratch_memory(total * 4, FOR_DECODING);
        for (int k = 0; k < K; k++) *parts[k] = memory, memory += whole(sizes[k]);
        q = memory, context = q + whole(numbers), weights = context + whole(numbers);
        alphas = weights + whole(scores), keys = (const float**)(alphas + whole(GROUP * heads));
    }

    // Compute attention for adjacent rows with the same number of keys together. Weights are
    // [heads, rows, keys], so that equal alphas are adjacent. `count_keys` returns the number of
    // keys of a row, and `find_keys` sets where they are. `done` is called with the first row of a
    // group, the number of its rows and the number of their keys.
    template <class Count, class Find, class Done>
    void attend(const Kernels& table, const float* head_alphas, Count&& count_keys,
                Find&& find_keys, Done&& done) {
        for (int64_t first = 0; first < rows;) {
            const int64_t n = count_keys(first);
            int64_t end = first + 1;
            while (end < min(rows, first + GROUP) && count_keys(end) == n) end++;
            for (int64_t r = first; r < end; r++) find_keys(r, n, keys + (r - first) * longest);
            attend_group(table, head_alphas, first, end - first, n);
            done(first, end - first, n);
            first = end;
        }
    }

  private:
    float scale;

    static int64_t whole(int64_t size) { return (size + 15) / 16 * 16; }

    void score_keys(const float* query, const float* const* own_keys, int64_t n, float* out,
                    int64_t head_step) const {
        if (additive)
            additive_scores(query, own_keys, n, d, additive, out);
        else
            attention_scores(query, own_keys, n, heads, d / heads, scale, out, head_step);
    }

    void attend_group(const Kernels& table, const float* head_alphas, int64_t first, int64_t count,
                      int64_t n) {
        if (!n) {  // a source without symbols
            std::fill(context + first * row, context + (first + count) * row, 0.0f);
            return;
        }
        const int64_t head_step = count * n;
        bool soft = true;
        for (int64_t k = 0; k < heads; k++) soft = soft && head_alphas[k] == 1;
        for (int64_t g = 0; g < count; g++)
            score_keys(q + (first + g) * row, keys + g * longest, n, weights + g * n, head_step);
        if (soft) {
            for (int64_t k = 0; k < heads * count; k++) softmax_in_place(weights + k * n, n);
        } else {
            for (int64_t k = 0; k < heads * count; k++) alphas[k] = head_alphas[k / count];
            const Layout layout{STORE_F32, heads * count, n, 1, 0, alphas};
            const MapCall map{layout, weights, weights, nullptr};
            table.map(&map, 0, heads * count);
        }
        for (int64_t g = 0; g < count; g++)
            mix(keys + g * longest, n, weights + g * n, head_step, context + (first + g) * row);
    }

    void mix(const float* const* own_keys, int64_t n, const float* own, int64_t head_step,
             float* out) const {
        constexpr int N = LANES<float>;
        const int64_t vectors = d / N, per_head = vectors / heads;
        int64_t i = 0;
        for (; i + 8 <= vectors; i += 8)
            mix_vectors<8>(own_keys, n, d, own, head_step, per_head, i, out);
        for (; i + 2 <= vectors; i += 2)
            mix_vectors<2>(own_keys, n, d, own, head_step, per_head, i, out);
        for (; i < vectors; i++) mix_vectors<1>(own_keys, n, d, own, head_step, per_head, i, out);
    }
};

}  // namespace
