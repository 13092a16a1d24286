// One step of a Transformer's decoder over a range of rows: embedding, layers, and the output with
// what a search needs of it. Keys and values stay where earlier steps wrote them, so that no row is
// copied when a search reorders, repeats or drops rows; sources have no padding.

#pragma once

#include "panels.h"
#include "ranking.h"

namespace {

// The pointers of DecoderCall.weights: those of each layer, then those of the model.
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

// Scores of a query and n keys for every head, scaled: out[h * head_step + j].
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

// W vectors of the sums of values, each a head's weights times the values that lie `value` numbers
// behind the keys.
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

class DecoderRows {
  public:
    DecoderRows(const DecoderCall& c, const Kernels& kernels, int64_t first, int64_t last)
        : call(c), table(kernels), begin(first), rows(last - first) {
        row = (call.d + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
        wide = (call.hidden + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
        symbol = 2 * call.d;
        scores_row = (call.rank.d + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
        for (int64_t r = begin; r < last; r++)
            longest = max(longest, max(state(r)[READ] + 1, state(r)[SOURCE_LENGTH]));
        const int64_t block = min(rows, OUTPUT_ROWS);
        const int64_t sizes[] = {rows * row,
                                 rows * row,
                                 rows * row,
                                 rows * row,
                                 max(rows * wide, block * scores_row),
                                 GROUP * call.heads * longest,
                                 GROUP * call.heads,
                                 rank_memory(call.rank, block),
                                 GROUP * longest * (int64_t)sizeof(float*) / 4};
        float** const parts[] = {&x, &h, &q, &context, &hidden, &weights, &alphas, &ranking};
        int64_t total = 0;
        for (int64_t size : sizes) total += (size + 15) / 16 * 16;
        float* memory = (float*)scratch_memory(total * 4, FOR_DECODING);
        for (int k = 0; k < 8; k++) *parts[k] = memory, memory += (sizes[k] + 15) / 16 * 16;
        keys = (const float**)memory;
    }

    void run() {
        const auto* layers = (const LayerWeights*)call.weights;
        const auto& model = *(const ModelWeights*)(layers + call.layers);
        embed(model);
        advance_state();
        for (int64_t n = 0; n < call.layers; n++) layer(layers[n], n);
        const float* last = x;
        if (call.pre_norm) norm(x, model.norm, model.norm_bias, h), last = h;
        output({model.output, model.output_bias, call.d, call.rank.d}, last);
    }

  private:
    static constexpr int64_t GROUP = 16;        // rows whose attention is computed at once
    static constexpr int64_t OUTPUT_ROWS = 48;  // rows whose scores are held at once

    const DecoderCall& call;
    const Kernels& table;
    int64_t begin, rows, row, wide, symbol, scores_row, longest = 1;
    float *x, *h, *q, *context, *hidden, *weights, *alphas, *ranking;
    const float** keys;

    const int64_t* state(int64_t r) const { return call.state + r * call.state_row; }

    void advance_state() const {
        const int64_t step = call.layers * symbol;
        for (int64_t r = begin; r < begin + rows; r++) {
            int64_t* next = call.next_state + r * (call.state_row + 1);
            std::memcpy(next, state(r), (size_t)call.state_row * sizeof(int64_t));
            next[call.state_row] = 0;
            next[PAST + next[READ]++] = (int64_t)((float*)call.cache + r * step);
        }
    }

    void norm(const float* from, const float* weight, const float* bias, float* to) const {
        normalise(from, rows, call.d, row, weight, bias, (float)call.epsilon, to);
    }

    void embed(const ModelWeights& model) {
        constexpr int N = LANES<float>;
        const float scale = (float)call.embedding_scale;
        for (int64_t r = 0; r < rows; r++) {
            const float *e = model.embedding + call.token[begin + r] * call.d,
                        *p = (const float*)call.positions + state(begin + r)[READ] * call.d;
            for (int64_t i = 0; i < call.d; i += N)
                store(x + r * row + i, prevent_fma(load(e + i) * scale) + load(p + i));
            for (int64_t i = call.d; i < row; i++) x[r * row + i] = 0;
        }
    }

    void layer(const LayerWeights& w, int64_t n) {
        const int64_t d = call.d, step = call.layers * symbol;
        float* own = (float*)call.cache + begin * step + n * symbol;
        const float* in = x;
        if (call.pre_norm) norm(x, w.norm1, w.norm1_bias, h), in = h;
        multiply_linear<WRITE>({w.query, w.query_bias, d, d}, in, row, rows, q, row);
        multiply_linear<WRITE>({w.key_value, w.key_value_bias, d, symbol}, in, row, rows, own,
                               step);
        attend(w.own_alphas, n, false);
        multiply_linear<ADD>({w.own_out, w.own_out_bias, d, d}, context, row, rows, x, row);
        if (!call.pre_norm) norm(x, w.norm1, w.norm1_bias, x);
        if (call.pre_norm) norm(x, w.norm2, w.norm2_bias, h);
        multiply_linear<WRITE>({w.cross_query, w.cross_query_bias, d, d}, in, row, rows, q, row);
        attend(w.cross_alphas, n, true);
        multiply_linear<ADD>({w.cross_out, w.cross_out_bias, d, d}, context, row, rows, x, row);
        if (!call.pre_norm) norm(x, w.norm2, w.norm2_bias, x);
        if (call.pre_norm) norm(x, w.norm3, w.norm3_bias, h);
        multiply_linear<WRITE_POSITIVE>({w.expand, w.expand_bias, d, call.hidden}, in, row, rows,
                                        hidden, wide);
        multiply_linear<ADD>({w.shrink, w.shrink_bias, call.hidden, d}, hidden, wide, rows, x, row);
        if (!call.pre_norm) norm(x, w.norm3, w.norm3_bias, x);
    }

    // Rows that follow each other and have as many keys are attended together: weights are
    // [heads, rows, keys], so that equal alphas stand together.
    void attend(const float* head_alphas, int64_t layer, bool cross) {
        for (int64_t first = 0; first < rows;) {
            const int64_t n = num_keys(first, cross);
            int64_t end = first + 1;
            while (end < min(rows, first + GROUP) && num_keys(end, cross) == n) end++;
            attend_group(head_alphas, layer, cross, first, end - first, n);
            first = end;
        }
    }
    int64_t num_keys(int64_t r, bool cross) const {
        return cross ? state(begin + r)[SOURCE_LENGTH] : state(begin + r)[READ] + 1;
    }
    void find_keys(int64_t r, int64_t layer, bool cross, int64_t n, const float** to) const {
        const int64_t step = call.layers * symbol;
        if (cross) {
            const float* memory = (const float*)state(begin + r)[SOURCE] + layer * symbol;
            for (int64_t j = 0; j < n; j++) to[j] = memory + j * step;
        } else {
            const int64_t* past = state(begin + r) + PAST;
            for (int64_t j = 0; j < n - 1; j++) to[j] = (const float*)past[j] + layer * symbol;
            to[n - 1] = (const float*)call.cache + (begin + r) * step + layer * symbol;
        }
    }

    void attend_group(const float* head_alphas, int64_t layer, bool cross, int64_t first,
                      int64_t count, int64_t n) {
        const int64_t heads = call.heads, size = call.d / heads, head_step = count * n;
        const float scale = (float)(1 / ::sqrt((double)size));
        bool soft = true;
        for (int64_t k = 0; k < heads; k++) soft = soft && head_alphas[k] == 1;
        for (int64_t g = 0; g < count; g++) {
            find_keys(first + g, layer, cross, n, keys + g * longest);
            attention_scores(q + (first + g) * row, keys + g * longest, n, heads, size, scale,
                             weights + g * n, head_step);
        }
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
        if (cross && layer == call.layers - 1) record(first, count, n, head_step);
    }

    void mix(const float* const* own_keys, int64_t n, const float* own, int64_t head_step,
             float* out) const {
        constexpr int N = LANES<float>;
        const int64_t vectors = call.d / N, per_head = vectors / call.heads;
        int64_t i = 0;
        for (; i + 8 <= vectors; i += 8)
            mix_vectors<8>(own_keys, n, call.d, own, head_step, per_head, i, out);
        for (; i + 2 <= vectors; i += 2)
            mix_vectors<2>(own_keys, n, call.d, own, head_step, per_head, i, out);
        for (; i < vectors; i++)
            mix_vectors<1>(own_keys, n, call.d, own, head_step, per_head, i, out);
    }

    // Count the source symbols that any head has a weight for; write the heads' mean if it is asked
    // for.
    void record(int64_t first, int64_t count, int64_t n, int64_t head_step) {
        const float share = 1 / (float)call.heads;
        for (int64_t g = 0; g < count; g++) {
            const int64_t r = begin + first + g;
            float* mean =
                call.attention ? (float*)call.attention + r * call.attention_row : nullptr;
            int64_t attended = 0;
            for (int64_t j = 0; j < n; j++) {
                float total = 0;
                for (int64_t k = 0; k < call.heads; k++)
                    total += weights[k * head_step + g * n + j];
                attended += total > 0;
                if (mean) mean[j] = total * share;
            }
            for (int64_t j = n; mean && j < call.attention_row; j++) mean[j] = 0;
            call.attended[r] = attended;
        }
    }

    void output(const Linear& projection, const float* last) {
        float* scores = hidden;
        RankCall rank = call.rank;
        rank.stride = scores_row;
        for (int64_t r = 0; r < rows; r += OUTPUT_ROWS) {
            const int64_t end = min(rows, r + OUTPUT_ROWS);
            multiply_linear<WRITE>(projection, last + r * row, row, end - r, scores, scores_row);
            for (int64_t k = r; call.scores && k < end; k++)
                std::memcpy((float*)call.scores + (begin + k) * rank.d,
                            scores + (k - r) * scores_row, (size_t)rank.d * 4);
            if (rank.count) rank_rows(rank, table, scores, begin + r, begin + end, ranking);
        }
    }
};

}  // namespace
