// Shared by encoder and decoder: rows of numbers that pass through the layers, one row per symbol.

#pragma once

#include "panels.h"

namespace {

// The pointers of a call's weights: those of each layer, then those of the model. An encoder's
// layers have no cross-attention and no second norm, and its model has no output.
struct LayerWeights {
    const float *norm1, *norm1_bias, *norm2, *norm2_bias, *norm3, *norm3_bias;
    const float *query, *query_bias, *key_value, *key_value_bias, *own_out, *own_out_bias;
    const float *cross_query, *cross_query_bias, *cross_out, *cross_out_bias;
    const float *expand, *expand_bias, *shrink, *shrink_bias;
    const float *own_alphas, *cross_alphas;  // [heads]
};
struct ModelWeights {
    const float *embedding, *norm, *norm_bias, *output, *output_bias;
};

void normalise(const float* x, int64_t rows, int64_t d, int64_t row, const float* weight,
               const float* bias, float epsilon, float* y) {
    constexpr int N = LANES<float>;
    for (int64_t r = 0; r < rows; r++, x += row, y += row) {
        F total = {}, squares = {};
        for (int64_t i = 0; i < d; i += N) total += load(x + i);
        const float mean = sum<float>(total) / (float)d;
        for (int64_t i = 0; i < d; i += N) {
            const F v = load(x + i) - mean;
            squares += v * v;
        }
        const float scale = 1 / ::sqrtf(sum<float>(squares) / (float)d + epsilon);
        for (int64_t i = 0; i < d; i += N)
            store(y + i, (load(x + i) - mean) * scale * load(weight + i) + load(bias + i));
    }
}

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

// Return the distance between rows of n numbers: whole panels, and more if the rows of a tile would
// otherwise share few sets of a first-level cache.
INLINE int64_t row_stride(int64_t n) {
    constexpr int64_t LINE = 16, SETS = 64;
    const int64_t whole = whole_panels(n);
    return whole % (SETS / 4 * LINE) ? whole : whole + LINE;
}

// Rows [rows, row] of a thread, and buffers for them.
class TransformerRows {
  protected:
    static constexpr int64_t GROUP = 16;  // rows whose attention is computed at once

    int64_t rows, d, heads, row, wide, longest;
    bool pre_norm;
    float epsilon;
    float *x, *h, *q, *context, *hidden, *weights, *alphas, *spare;
    const float** keys;

    // `longest`: the largest number of keys of a row. `hidden` has room for at least `hidden_size`
    // numbers, and `spare` for `spare_size`.
    template <class Call>
    TransformerRows(const Call& call, int64_t rows, int64_t longest, int64_t hidden_size,
                    int64_t spare_size)
        : rows(rows),
          d(call.d),
          heads(call.heads),
          row(row_stride(call.d)),
          wide(row_stride(call.hidden)),
          longest(longest),
          pre_norm(call.pre_norm != 0),
          epsilon((float)call.epsilon) {
        const int64_t sizes[] = {rows * row,
                                 rows * row,
                                 rows * row,
                                 rows * row,
                                 max(rows * wide, hidden_size),
                                 GROUP * heads * longest,
                                 GROUP * heads,
                                 spare_size,
                                 GROUP * longest * (int64_t)sizeof(float*) / 4};
        float** const parts[] = {&x, &h, &q, &context, &hidden, &weights, &alphas, &spare};
        int64_t total = 0;
        for (int64_t size : sizes) total += (size + 15) / 16 * 16;
        float* memory = (float*)scratch_memory(total * 4, FOR_DECODING);
        for (int k = 0; k < 8; k++) *parts[k] = memory, memory += (sizes[k] + 15) / 16 * 16;
        keys = (const float**)memory;
    }

    void norm(const float* from, const float* weight, const float* bias, float* to) const {
        normalise(from, rows, d, row, weight, bias, epsilon, to);
    }

    void embed(int64_t r, const float* embedding, const float* position, double scale) {
        constexpr int N = LANES<float>;
        for (int64_t i = 0; i < d; i += N)
            store(x + r * row + i,
                  prevent_fma(load(embedding + i) * (float)scale) + load(position + i));
        for (int64_t i = d; i < row; i++) x[r * row + i] = 0;
    }

    // Return the input of a part of a layer: the normalised rows, or with post-norm the rows
    // themselves.
    const float* input(const float* weight, const float* bias) {
        if (pre_norm) norm(x, weight, bias, h);
        return pre_norm ? h : x;
    }
    // Add the output of a part of a layer to the rows.
    void add(const Linear& w, const float* from, int64_t from_row, const float* norm_weight,
             const float* norm_bias) {
        multiply_linear<ADD>(w, from, from_row, rows, x, row);
        if (!pre_norm) norm(x, norm_weight, norm_bias, x);
    }
    void feed_forward(const LayerWeights& w, int64_t size) {
        const float* in = input(w.norm3, w.norm3_bias);
        multiply_linear<WRITE_POSITIVE>({w.expand, w.expand_bias, d, size}, in, row, rows, hidden,
                                        wide);
        add({w.shrink, w.shrink_bias, size, d}, hidden, wide, w.norm3, w.norm3_bias);
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
    void attend_group(const Kernels& table, const float* head_alphas, int64_t first, int64_t count,
                      int64_t n) {
        const int64_t size = d / heads, head_step = count * n;
        const float scale = (float)(1 / ::sqrt((double)size));
        bool soft = true;
        for (int64_t k = 0; k < heads; k++) soft = soft && head_alphas[k] == 1;
        for (int64_t g = 0; g < count; g++)
            attention_scores(q + (first + g) * row, keys + g * longest, n, heads, size, scale,
                             weights + g * n, head_step);
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
