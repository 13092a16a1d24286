// What the library asks of the code for one instruction set: work on a range of rows, described by
// one of these.

#pragma once

#include <cstdint>

enum Storage { STORE_F32, STORE_F64, STORE_BF16, STORE_F16 };

// Rows of d elements: row r = (o, i) has its elements at (o d + j) inner + i. Numbers a row
// (alphas, losses, gradients of a loss, ...) are of the computation's type: double for F64 and
// float for the others.
struct Layout {
    int32_t storage;
    int64_t rows, d, inner;
    double alpha;
    const void* alphas;  // [rows], or null: all `alpha`
};

// A row: the maximum, the threshold and its fine part, 1 / mass, the size of the support.
constexpr int STATS = 5;

// The statistics of a loss may be wider, [rows, width], and then hold the supports themselves, so
// that the gradient is written without a look at the scores. Behind the numbers above: how many
// entries there are, or -1 where they have no room, and the number above may be too large; their
// masses [room]; and their classes [room] as int32.
template <class T> struct Support {
    T* count;
    T* mass;
    int32_t* index;
    int64_t room;

    Support(T* stats, int64_t width) : count(stats + STATS), mass(count + 1), room(0) {
        if (width > STATS)
            room =
                (width - STATS - 1) * (int64_t)sizeof(T) / (int64_t)(sizeof(T) + sizeof(int32_t));
        index = (int32_t*)(mass + room);
    }
};

// What is written may be written over what is read: a row is read before its place is needed.
struct MapCall {
    Layout layout;
    const void* scores;
    void *probs, *stats;  // stats: [rows, STATS] or null
};

struct MapGradientCall {
    Layout layout;
    const void *probs, *grad;
    void *scores_grad, *alpha_grad;  // alpha_grad: [rows] or null
};

struct LossCall {
    Layout layout;
    const void* scores;
    const int64_t* target;            // [rows]; negative: no loss
    void *loss, *stats, *alpha_grad;  // stats: [rows, width]
    int64_t width;
};

struct LossGradientCall {
    Layout layout;
    const void* scores;
    const int64_t* target;
    const void *stats, *grad;
    void* scores_grad;
    int64_t width;
    int64_t relu;  // whether stats are alpha-ReLU's
};

// alpha-ReLU: loss and stats [rows, STATS] as above, with the constant threshold tau.
struct ReluLossCall {
    Layout layout;
    const void* scores;
    const int64_t* target;
    double tau;
    void *loss, *stats;
};

// The support of each row: entries [offsets[r], offsets[r + 1]) get its classes and probabilities.
struct SupportCall {
    Layout layout;
    const void* scores;
    const void* stats;
    const int64_t* offsets;
    int32_t* index;
    void* value;
    int64_t relu;  // whether stats are alpha-ReLU's
};

// Sums of rows of a table by sparse lists: out[r] = sum_k value[k] table[index[k]] over the row's
// list, all of width m. `scale` [rows] multiplies a row's values, and `minus` [rows] names one more
// row of the table, taken once off.
struct GatherCall {
    int32_t storage;
    int64_t rows, m;
    const int64_t* offsets;
    const int32_t* index;
    const void *value, *scale;
    const int64_t* minus;
    const void* table;
    void* out;
    void* total;  // [rows] or null: the sums of the values themselves
};

// Dropout of n numbers in rows of d, the last of which may be shorter: each is kept with the
// probability `stays` and divided by it, or zero. Which ones is a function of the seed and their
// row and column alone, so that nothing has to be kept. out may be in.
struct DropCall {
    int32_t storage;  // float or double
    int64_t n, d;
    uint64_t seed;
    double stays;
    const void* in;
    void* out;
};

// A tensor [batch, heads, rows, size] of whatever strides, but that of `size`, which is 1.
struct Heads {
    void* memory;
    int64_t batch, head, row;
};

// Attention, forward and backward, one tile of queries of a head after the other. Of a tile whose
// supports have a little less than `room` entries a row, on average, forward keeps these lists, and
// backward needs no score.
struct AttentionCall {
    int32_t storage;  // float or double
    int32_t causal;
    int64_t batch, heads, group;  // `heads` of keys, each read by a `group` of heads of queries
    int64_t queries, keys, size, value_size;
    int64_t rows;  // of a tile
    int64_t room;
    int64_t splits;  // backward: how many parts the tiles of a head are divided into
    double scale;
    double stays;  // of the weights, in dropout; 1: all of them
    uint64_t seed;
    double alpha;
    const void* alphas;  // [batch, heads * group], of any strides; or null: all `alpha`
    int64_t alpha_strides[2];
    const int64_t* lengths;  // [batch], of the keys that take part; or null: all
    Heads query, key, value, out;
    const void* mask;  // or null
    int32_t boolean;
    int64_t mask_strides[4];
    int32_t* counts;  // [batch, heads * group, queries], of the supports
    void* stats;      // the same, [..., STATS]
    int32_t* index;   // [batch, heads * group, queries, room], or null: nothing is kept
    void* weight;
    // Those of keys and values: [splits * batch, ...].
    Heads grad, query_grad, key_grad, value_grad;
    void* alpha_grad;              // [batch, heads * group, queries] or null
    void* mask_grad;               // to be added to, of what is added to the scores; or null
    int64_t mask_grad_strides[5];  // of splits, batch, heads, queries and keys; 0: one for all
};

// How many batch elements and heads of keys add to one gradient of the mask: one thread's work, one
// after the other.
struct Sharing {
    int64_t batch, heads;
    explicit Sharing(const AttentionCall& call)
        : batch(call.mask_grad && !call.mask_grad_strides[1] ? call.batch : 1),
          heads(call.mask_grad && !call.mask_grad_strides[2] ? call.heads : 1) {}
};

// The kernels for one instruction set and one storage.
struct Kernels {
    int64_t (*rows_together)(int64_t d);
    void (*map)(const MapCall*, int64_t first, int64_t last);
    void (*map_gradient)(const MapGradientCall*, int64_t first, int64_t last);
    void (*loss)(const LossCall*, int64_t first, int64_t last);
    void (*loss_gradient)(const LossGradientCall*, int64_t first, int64_t last);
    void (*relu_loss)(const ReluLossCall*, int64_t first, int64_t last);
    void (*support)(const SupportCall*, int64_t first, int64_t last);
    void (*gather)(const GatherCall*, int64_t first, int64_t last);
    // Of float and double alone; null for halves.
    void (*drop)(const DropCall*, int64_t first, int64_t last);
    void (*attention)(const AttentionCall*, int64_t first, int64_t last);  // tiles
    // Parts of heads of keys, or of all that share.
    void (*attention_gradient)(const AttentionCall*, int64_t first, int64_t last);
};

// Memory that a thread keeps between calls, aligned to pages: one piece for rows, one for tiles of
// attention. Everything in it is undefined.
enum Scratch { FOR_ROWS, FOR_TILES };
void* scratch_memory(int64_t bytes, Scratch which = FOR_ROWS);
void release_scratch(int64_t most, Scratch which);  // unless it is at most so many bytes
