// One step of an LSTM's or a GRU's decoder over a range of rows: layers, attention to the source
// with bilinear or additive scores, output, and ranking. The cache of a row contains its last
// output, if the next step reads it; the states of all layers, [d] each; and the cells of all
// layers of an LSTM. A symbol of a source is stored as a key and a value, each of whole vectors.

#pragma once

#include "attending_rows.h"
#include "decoder_rows.h"

namespace {

// The pointers of a call's weights: those of each layer, then those of the model. A layer's gates,
// in PyTorch's order, are sums of products with the layer below and with its own last state. The
// first layer reads an embedding and the last output. Without additive scores, query and score are
// null.
struct RecurrentLayer {
    const float *below, *below_bias, *own, *own_bias;
};
struct RecurrentWeights {
    const float *embedding, *query, *query_bias, *score, *combine, *combine_bias, *alpha;
    const float *output, *output_bias;
};

class RecurrentRows : AttendingRows, DecoderRange {
  public:
    static constexpr int64_t VECTOR = 16;  // sizes of keys and values are multiples of it

    RecurrentRows(const DecoderCall& call, const Kernels& table, int64_t first, int64_t last)
        : AttendingRows(last - first, (call.d + VECTOR - 1) / VECTOR * VECTOR, 1,
                        most_keys(call, first, last), 1),
          DecoderRange(call, table, first),
          units(call.d),
          input_row(row_stride(max(call.d_embedding + call.feeding * units, 2 * units))),
          gates_row(row_stride(call.hidden)) {
        float** const parts[] = {&x, &gates, &own_gates, &mixed, &ranking};
        const int64_t all_gates = rows * gates_row;
        const int64_t sizes[] = {rows * input_row, max(all_gates, scores_size(call, rows)),
                                 all_gates, rows * row, ranking_size(call, rows)};
        allocate(parts, sizes);
    }

    void run() {
        const auto* layers = (const RecurrentLayer*)call.weights;
        const auto& model = *(const RecurrentWeights*)(layers + call.layers);
        for (int64_t n = 0; n < call.layers; n++) layer(layers[n], n, model.embedding);
        query(model);
        attend(
            table, model.alpha, [&](int64_t r) { return state(r)[SOURCE_LENGTH]; },
            [&](int64_t r, int64_t keys, const float** to) {
                for (int64_t j = 0; j < keys; j++)
                    to[j] = (const float*)state(r)[SOURCE] + j * 2 * d;
            },
            [&](int64_t first, int64_t count, int64_t keys) {
                record(weights, 1, first, count, keys);
            });
        combine(model);
        advance_state(rows);
        output({model.output, model.output_bias, units, call.rank.d}, mixed, row, rows, gates,
               ranking);
    }

  private:
    int64_t units, input_row, gates_row;
    float *x, *gates, *own_gates, *mixed, *ranking;

    // Return where a layer's states start in a row's cache, after the last output if it is kept.
    int64_t place(int64_t n) const { return (call.feeding + n) * units; }
    const float* before(int64_t r) const { return (const float*)state(r)[FIRST_ADDRESS]; }
    void copy(float* to, const float* from, int64_t n) const {
        std::memcpy(to, from, (size_t)n * sizeof(float));
    }

    void layer(const RecurrentLayer& w, int64_t n, const float* embedding) {
        const int64_t size = call.d_embedding, fed = call.feeding * units;
        for (int64_t r = 0; n == 0 && r < rows; r++) {
            copy(x + r * input_row, embedding + call.token[begin + r] * size, size);
            copy(x + r * input_row + size, before(r), fed);
        }
        multiply_linear<WRITE>({w.below, w.below_bias, n ? units : size + fed, call.hidden},
                               n ? cache(0) + place(n - 1) : x, n ? call.cache_row : input_row,
                               rows, gates, gates_row);
        for (int64_t r = 0; r < rows; r++) copy(x + r * input_row, before(r) + place(n), units);
        multiply_linear<WRITE>({w.own, w.own_bias, units, call.hidden}, x, input_row, rows,
                               own_gates, gates_row);
        for (int64_t r = 0; r < rows; r++) update(r, n);
    }

    void update(int64_t r, int64_t n) const {
        constexpr int N = LANES<float>;
        const float *one = gates + r * gates_row, *other = own_gates + r * gates_row;
        const float* last = before(r) + place(n);
        float* next = cache(r) + place(n);
        const int64_t cells = call.layers * units;
        for (int64_t i = 0; i < units; i += N) {
            auto at = [&](const float* from) { return load_row(from, i, units, 0.0f); };
            auto gate = [&](int k) { return at(one + k * units) + at(other + k * units); };
            if (call.kind == LSTM) {
                const F cell =
                    sigmoid(gate(1)) * at(last + cells) + sigmoid(gate(0)) * tanh_(gate(2));
                store_row(next + cells, i, units, cell);
                store_row(next, i, units, sigmoid(gate(3)) * tanh_(cell));
            } else {
                const F candidate =
                    tanh_(at(one + 2 * units) + sigmoid(gate(0)) * at(other + 2 * units));
                store_row(next, i, units, candidate + sigmoid(gate(1)) * (at(last) - candidate));
            }
        }
    }

    // Write queries from the states of the last layer.
    void query(const RecurrentWeights& w) {
        const float* top = cache(0) + place(call.layers - 1);
        additive = w.score;
        if (additive) {
            multiply_linear<WRITE>({w.query, w.query_bias, units, units}, top, call.cache_row, rows,
                                   q, row);
            return;
        }
        for (int64_t r = 0; r < rows; r++, top += call.cache_row) {
            copy(q + r * row, top, units);
            for (int64_t i = units; i < d; i++) q[r * row + i] = 0;
        }
    }

    // Mix contexts and states to the outputs.
    void combine(const RecurrentWeights& w) {
        constexpr int N = LANES<float>;
        for (int64_t r = 0; r < rows; r++) {
            copy(x + r * input_row, context + r * row, units);
            copy(x + r * input_row + units, cache(r) + place(call.layers - 1), units);
        }
        multiply_linear<WRITE>({w.combine, w.combine_bias, 2 * units, units}, x, input_row, rows,
                               mixed, row);
        for (int64_t r = 0; r < rows; r++) {
            float* own = mixed + r * row;
            for (int64_t i = 0; i < d; i += N) store(own + i, tanh_(load(own + i)));
            if (call.feeding) copy(cache(r), own, units);
        }
    }
};

}  // namespace
