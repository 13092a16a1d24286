// One step of a Transformer's decoder over a range of rows: embedding, layers, output, and the
// ranking of its scores for a search. Keys and values stay where earlier steps wrote them, so that
// no row is copied when a search reorders, repeats or drops rows. Sources have no padding.

#pragma once

#include "ranking.h"
#include "transformer_rows.h"

namespace {

class DecoderRows : TransformerRows {
  public:
    DecoderRows(const DecoderCall& call, const Kernels& table, int64_t first, int64_t last)
        : TransformerRows(call, last - first, most_keys(call, first, last),
                          min(last - first, OUTPUT_ROWS) * whole_panels(call.rank.d),
                          rank_memory(call.rank, min(last - first, OUTPUT_ROWS))),
          call(call),
          table(table),
          begin(first),
          symbol(2 * call.d),
          step(call.layers * 2 * call.d) {}

    void run() {
        const auto* layers = (const LayerWeights*)call.weights;
        const auto& model = *(const ModelWeights*)(layers + call.layers);
        for (int64_t r = 0; r < rows; r++)
            embed(r, model.embedding + call.token[begin + r] * d,
                  (const float*)call.positions + state(r)[READ] * d, call.embedding_scale);
        advance_state();
        for (int64_t n = 0; n < call.layers; n++) layer(layers[n], n);
        output({model.output, model.output_bias, d, call.rank.d},
               input(model.norm, model.norm_bias));
    }

  private:
    static constexpr int64_t OUTPUT_ROWS = 96;  // rows whose scores are in memory at once

    const DecoderCall& call;
    const Kernels& table;
    int64_t begin, symbol, step;  // numbers per symbol: `symbol` in one layer, `step` in all layers

    static int64_t most_keys(const DecoderCall& call, int64_t first, int64_t last) {
        int64_t most = 1;
        for (int64_t r = first; r < last; r++) {
            const int64_t* own = call.state + r * call.state_row;
            most = max(most, max(own[READ] + 1, own[SOURCE_LENGTH]));
        }
        return most;
    }

    const int64_t* state(int64_t r) const { return call.state + (begin + r) * call.state_row; }
    float* cache(int64_t r) const { return (float*)call.cache + (begin + r) * step; }

    void advance_state() const {
        for (int64_t r = 0; r < rows; r++) {
            int64_t* next = call.next_state + (begin + r) * (call.state_row + 1);
            std::memcpy(next, state(r), (size_t)call.state_row * sizeof(int64_t));
            next[call.state_row] = 0;
            next[FIRST_ADDRESS + next[READ]++] = (int64_t)cache(r);
        }
    }

    void layer(const LayerWeights& w, int64_t n) {
        const float* in = input(w.norm1, w.norm1_bias);
        multiply_linear<WRITE>({w.query, w.query_bias, d, d}, in, row, rows, q, row);
        multiply_linear<WRITE>({w.key_value, w.key_value_bias, d, symbol}, in, row, rows,
                               cache(0) + n * symbol, step);
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
                for (int64_t j = 0; j < keys; j++) to[j] = source + j * step;
            },
            [&](int64_t first, int64_t count, int64_t keys) {
                if (n == call.layers - 1) record(first, count, keys, count * keys);
            });
        add({w.cross_out, w.cross_out_bias, d, d}, context, row, w.norm2, w.norm2_bias);
        feed_forward(w, call.hidden);
    }

    // Count the source symbols that any head attends to. Write the mean of the heads if it is
    // requested.
    void record(int64_t first, int64_t count, int64_t n, int64_t head_step) {
        const float share = 1 / (float)heads;
        for (int64_t g = 0; g < count; g++) {
            const int64_t r = begin + first + g;
            float* mean =
                call.attention ? (float*)call.attention + r * call.attention_row : nullptr;
            int64_t attended = 0;
            for (int64_t j = 0; j < n; j++) {
                float total = 0;
                for (int64_t k = 0; k < heads; k++) total += weights[k * head_step + g * n + j];
                attended += total > 0;
                if (mean) mean[j] = total * share;
            }
            for (int64_t j = n; mean && j < call.attention_row; j++) mean[j] = 0;
            call.attended[r] = attended;
        }
    }

    void output(const Linear& projection, const float* last) {
        float* scores = hidden;
        const int64_t scores_row = whole_panels(call.rank.d);
        RankCall rank = call.rank;
        rank.stride = scores_row;
        for (int64_t r = 0; r < rows; r += OUTPUT_ROWS) {
            const int64_t end = min(rows, r + OUTPUT_ROWS);
            multiply_linear<WRITE>(projection, last + r * row, row, end - r, scores, scores_row);
            for (int64_t k = r; call.scores && k < end; k++)
                std::memcpy((float*)call.scores + (begin + k) * rank.d,
                            scores + (k - r) * scores_row, (size_t)rank.d * 4);
            if (rank.count) rank_rows(rank, table, scores, begin + r, begin + end, spare);
        }
    }
};

}  // namespace
