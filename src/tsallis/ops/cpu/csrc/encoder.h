// A Transformer's encoder over a range of sources, whose symbols are stored one after the other
// without padding.

#pragma once

#include "transformer_rows.h"

namespace {

class EncoderRows : TransformerRows {
  public:
    EncoderRows(const EncoderCall& call, const Kernels& table, int64_t first, int64_t last)
        : TransformerRows(call, total(call, first, last), most(call, first, last), 0,
                          total(call, first, last) * row_stride(2 * call.d)),
          call(call),
          table(table),
          first_source(first),
          last_source(last) {}

    void run() {
        const auto* layers = (const LayerWeights*)call.weights;
        const auto& model = *(const ModelWeights*)(layers + call.layers);
        int64_t r = 0;
        for (int64_t s = first_source; s < last_source; s++)
            for (int64_t i = 0; i < call.lengths[s]; i++, r++)
                embed(r, model.embedding + call.token[s * call.width + i] * d,
                      (const float*)call.positions + i * d, call.embedding_scale);
        for (int64_t n = 0; n < call.layers; n++) layer(layers[n]);
        write(input(model.norm, model.norm_bias));
    }

  private:
    const EncoderCall& call;
    const Kernels& table;
    int64_t first_source, last_source;

    static int64_t total(const EncoderCall& call, int64_t first, int64_t last) {
        int64_t sum = 0;
        for (int64_t s = first; s < last; s++) sum += call.lengths[s];
        return sum;
    }
    static int64_t most(const EncoderCall& call, int64_t first, int64_t last) {
        int64_t longest = 1;
        for (int64_t s = first; s < last; s++) longest = max(longest, call.lengths[s]);
        return longest;
    }

    void layer(const LayerWeights& w) {
        const float* in = input(w.norm1, w.norm1_bias);
        float* key_value = spare;
        const int64_t symbol = row_stride(2 * d);
        multiply_linear<WRITE>({w.query, w.query_bias, d, d}, in, row, rows, q, row);
        multiply_linear<WRITE>({w.key_value, w.key_value_bias, d, 2 * d}, in, row, rows, key_value,
                               symbol);
        // Rows are visited in order, so the source of the latest row is remembered.
        int64_t source = first_source, start = 0;
        auto find_source = [&](int64_t r) {
            while (r >= start + call.lengths[source]) start += call.lengths[source++];
        };
        attend(
            table, w.own_alphas,
            [&](int64_t r) {
                int64_t s = source, at = start;
                while (r >= at + call.lengths[s]) at += call.lengths[s++];
                return call.lengths[s];
            },
            [&](int64_t r, int64_t keys, const float** to) {
                find_source(r);
                for (int64_t j = 0; j < keys; j++) to[j] = key_value + (start + j) * symbol;
            },
            [](int64_t, int64_t, int64_t) {});
        add({w.own_out, w.own_out_bias, d, d}, context, row, w.norm1, w.norm1_bias);
        feed_forward(w, call.hidden);
    }

    void write(const float* from) const {
        for (int64_t s = first_source; s < last_source; s++) {
            float* to = (float*)call.states + s * call.width * d;
            for (int64_t i = 0; i < call.width; i++, to += d) {
                if (i < call.lengths[s]) {
                    std::memcpy(to, from, (size_t)d * sizeof(float));
                    from += row;
                } else {
                    std::memset(to, 0, (size_t)d * sizeof(float));
                }
            }
        }
    }
};

// Project the sources [first, last) for all layers of a decoder. Their states are packed together
// first, so that the weights are read once.
void project_sources(const ProjectCall& call, int64_t first, int64_t last) {
    int64_t before = 0, rows = 0;
    for (int64_t s = 0; s < first; s++) before += call.lengths[s];
    float* source = (float*)call.source + before * call.columns;
    for (int64_t s = first; s < last; rows += call.lengths[s++]) {
        int64_t* state = call.state + s * FIRST_ADDRESS;
        state[SOURCE] = (int64_t)(source + rows * call.columns);
        state[SOURCE_LENGTH] = call.lengths[s], state[READ] = 0;
    }
    const float* states = (const float*)call.states + first * call.width * call.d;
    if (last - first > 1) {
        float* packed = (float*)scratch_memory(rows * call.d * 4, FOR_DECODING);
        for (int64_t s = first; s < last; s++, states += call.width * call.d) {
            std::memcpy(packed, states, (size_t)(call.lengths[s] * call.d) * 4);
            packed += call.lengths[s] * call.d;
        }
        states = packed - rows * call.d;
    }
    multiply_linear<WRITE>(
        {(const float*)call.weights, (const float*)call.bias, call.d, call.columns}, states, call.d,
        rows, source, call.columns);
}

}  // namespace
