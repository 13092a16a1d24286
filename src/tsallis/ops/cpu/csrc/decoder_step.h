// One step of a Transformer's decoder over a range of rows: embedding, layers, output, and the
// ranking of its scores for a search. Keys and values stay where earlier steps wrote them, so that
// no row is copied when a search reorders, repeats or drops rows. Sources have no padding.

#pragma once

#include "decoder_rows.h"
#include "transformer_rows.h"

namespace {

class DecoderRows : TransformerRows, DecoderRange {
  public:
    DecoderRows(const DecoderCall& call, const Kernels& table, int64_t first, int64_t last)
        : TransformerRows(call, last - first, most_keys(call, first, last),
                          scores_size(call, last - first), ranking_size(call, last - first)),
          DecoderRange(call, table, first),
          symbol(2 * call.d) {}

    void run() {
        const auto* layers = (const LayerWeights*)call.weights;
        const auto& model = *(const ModelWeights*)(layers + call.layers);
        for (int64_t r = 0; r < rows; r++)
            embed(r, model.embedding + call.token[begin + r] * d,
                  (const float*)call.positions + state(r)[READ] * d, call.embedding_scale);
        advance_state(rows);
        for (int64_t n = 0; n < call.layers; n++) layer(layers[n], n);
        output({model.output, model.output_bias, d, call.rank.d},
               input(model.norm, model.norm_bias), row, rows, hidden, spare);
    }

  private:
    int64_t symbol;  // numbers per symbol in one layer

    void layer(const LayerWeights& w, int64_t n) {
        const float* in = input(w.norm1, w.norm1_bias);
        multiply_linear<WRITE>({w.query, w.query_bias, d, d}, in, row, rows, q, row);
        multiply_linear<WRITE>({w.key_value, w.key_value_bias, d, symbol}, in, row, rows,
                               cache(0) + n * symbol, call.cache_row);
        attend(
            table, w.own_alphas, [&](int64_t r) { return state(r)[READ] + 1; },
            [&](int64_t r, int64_t keys, const float** to) {
                for (int64_t j = 0; j < keys - 1; j++)
                    to[j] = (const float*)state(r)[FIRST_ADDRESS + j] + n * symbol;
                to[keys - 1] = cache(r) + n * symbol;
            },
            [](int64_t, int64_t, int64_t) {});
        add({w.own_out, w.own_out_bias, d, d}, context, row, w.norm1, w.norm1_bias);
        in = input(w.norm2, w.norm2_bias);
        multiply_linear<WRITE>({w.cross_query, w.cross_query_bias, d, d}, in, row, rows, q, row);
        attend(
            table, w.cross_alphas, [&](int64_t r) { return state(r)[SOURCE_LENGTH]; },
            [&](int64_t r, int64_t keys, const float** to) {
                const float* source = (const float*)state(r)[SOURCE] + n * symbol;
                for (int64_t j = 0; j < keys; j++) to[j] = source + j * call.cache_row;
            },
            [&](int64_t first, int64_t count, int64_t keys) {
                if (n == call.layers - 1) record(weights, heads, first, count, keys);
            });
        add({w.cross_out, w.cross_out_bias, d, d}, context, row, w.norm2, w.norm2_bias);
        feed_forward(w, call.hidden);
    }
};

}  // namespace
