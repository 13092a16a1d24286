// Shared by a Transformer's encoder and decoder: rows that pass through the layers.

#pragma once

#include "attending_rows.h"

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

// Rows that pass through the layers of a Transformer.
class TransformerRows : protected AttendingRows {
  protected:
    int64_t wide;
    bool pre_norm;
    float epsilon;
    float *x, *h, *hidden, *spare;

    // `longest`: the largest number of keys of a row. `hidden` has room for at least `hidden_size`
    // numbers, and `spare` for `spare_size`.
    template <class Call>
    TransformerRows(const Call& call, int64_t rows, int64_t longest, int64_t hidden_size,
                    int64_t spare_size)
        : AttendingRows(rows, call.d, call.heads, longest,
                        (float)(1 / ::sqrt((double)(call.d / call.heads)))),
          wide(row_stride(call.hidden)),
          pre_norm(call.pre_norm != 0),
          epsilon((float)call.epsilon) {
        float** const parts[] = {&x, &h, &hidden, &spare};
        const int64_t sizes[] = {rows * row, rows * row, max(rows * wide, hidden_size), spare_size};
        allocate(parts, sizes);
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
};

}  // namespace
