// Call structures that Python fills in, and the table of kernels of one instruction set. Each
// kernel works on a range of rows (or tiles). structs.py mirrors the structures.

#pragma once

#include <cstdint>

enum Storage { STORE_F32, STORE_F64, STORE_BF16, STORE_F16 };

// Layout of rows of d elements. Row r = (o, i) has its element j at (o d + j) inner + i. Numbers
// per row (alphas, losses, gradients of a loss, ...) have the type of the computation: double for
// F64 and float for the other storage types.
struct Layout {
    int32_t storage;
    int64_t rows, d, inner;
    double alpha;
    const void* alphas;  // [rows], or null if all rows use `alpha`
};

// Number of statistics per row: the maximum, the threshold and its fine part, 1 / mass, and the
// size of the support.
constexpr int STATS = 5;

// The statistics of a loss may be wider, [rows, width]. They then also hold the support, so that
// the gradient does not read the scores. After the STATS numbers come the number of entries, or -1
// if they don't fit (the size of the support may then be too large); the entries' masses [room];
// and their classes [room] as int32.
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

// Outputs may use the memory of inputs: a row is read before it is written.
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
    const int64_t* target;            // [rows]; negative targets have no loss
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
    int64_t relu;  // whether the statistics are those of alpha-ReLU
};

// alpha-ReLU: loss and stats [rows, STATS] as above, with the constant threshold tau.
struct ReluLossCall {
    Layout layout;
    const void* scores;
    const int64_t* target;
    double tau;
    void *loss, *stats;
};

// The support of each row: entries offsets[r] to offsets[r + 1] (exclusive) receive the row's
// classes and probabilities.
struct SupportCall {
    Layout layout;
    const void* scores;
    const void* stats;
    const int64_t* offsets;
    int32_t* index;
    void* value;
    int64_t relu;  // whether the statistics are those of alpha-ReLU
};

// CSR rows times a table [., m]: out[r] = scale[r] (sum_k value[k] table[index[k]] -
// table[minus[r]]) over the entries k of row r. `scale` [rows] and `minus` [rows] may be null; a
// negative `minus` subtracts nothing.
struct GatherCall {
    int32_t storage;
    int64_t rows, m;
    const int64_t* offsets;
    const int32_t* index;
    const void *value, *scale;
    const int64_t* minus;
    const void* table;
    void* out;
    void* total;  // [rows] or null: the sums for a table of ones
};

// Dropout of n numbers in rows of d; the last row may be shorter. Each number is kept with
// probability `keep_prob` and divided by it, or set to zero. The choice depends only on the seed,
// the row and the column, so no mask is stored. `out` may equal `in`.
struct DropCall {
    int32_t storage;  // float or double
    int64_t n, d;
    uint64_t seed;
    double keep_prob;
    const void* in;
    void* out;
};

// A tensor [batch, heads, rows, size], given by its strides; the stride of `size` is 1.
struct Heads {
    void* memory;
    int64_t batch, head, row;
};

constexpr int MIN_PANEL_QUERIES = 4;      // with fewer queries, transposing the keys does not pay
constexpr int64_t MIN_WINDOW_KEYS = 256;  // with fewer keys, a window costs more than it saves
// Number of keys per block. Each block has a bound of its keys' norms; with slopes, the bound
// limits a window.
constexpr int64_t NORM_BLOCK = 64;
inline int64_t norm_blocks(int64_t keys) { return (keys + NORM_BLOCK - 1) / NORM_BLOCK; }

// Attention, forward and backward, in tiles of queries of one head. Forward saves the supports of a
// tile as lists if they have on average slightly less than `capacity` entries per row. Backward
// then computes no scores.
struct AttentionCall {
    int32_t storage;  // float or double
    int32_t causal;
    int64_t batch, key_heads, group;  // each key head is read by `group` query heads
    int64_t queries, keys, size, value_size;
    int64_t tile_rows;
    int64_t capacity;
    int64_t splits;  // backward: number of parts into which a head's tiles are divided
    double scale;
    double keep_prob;  // probability of keeping a weight; 1: no dropout
    uint64_t seed;
    double alpha;
    const void* alphas;  // [batch, key_heads * group], any strides; null if all use `alpha`
    int64_t alpha_strides[2];
    const int64_t* lengths;  // [batch]: number of valid keys; null: all are valid
    Heads query, key, value, out;
    const void* mask;      // or null
    int32_t boolean_mask;  // whether the mask is boolean, with a byte per entry
    int64_t mask_strides[4];
    const void* slopes;  // [batch, key_heads * group], any strides; null: no slopes
    int64_t slope_strides[2];
    const void* key_norms;  // [batch, key_heads]: bounds of the key norms; null: unknown
    double* block_norms;    // [batch, key_heads, norm_blocks(keys)]; or null, see norm_of_block
    int64_t offset;         // causal order and slopes: query i has the position of key i + offset
    int32_t* support;       // [batch, key_heads * group, queries]: how many keys a query attends to
    void* stats;            // [batch, key_heads * group, queries, STATS]
    int32_t* columns;  // [batch, key_heads * group, queries, capacity], or null: no lists are saved
    void* weight;
    // Gradients of keys and values are [splits * batch, ...].
    Heads grad, query_grad, key_grad, value_grad;
    void *alpha_grad, *slope_grad;  // [batch, key_heads * group, queries] or null
    void* mask_grad;                // gradient of an additive mask; kernels add to it; or null
    int64_t mask_grad_strides[5];   // for splits, batch, heads, queries, keys; 0: shared
};

// Ranks rows of scores [rows, stride] for a search; only the first d scores of each row are ranked.
// The results are the best log-probabilities and their symbols, without the end symbol; the
// log-probability of the end; the number of symbols with a probability above zero; and the sum of
// the probabilities. The sum is NaN for rows with a NaN, and infinite for rows whose largest score
// is too large.
struct RankCall {
    int64_t rows, d, stride;
    int64_t count, end;  // end: the end symbol, negative if there is none
    int64_t relu;        // whether the output is alpha-ReLU with threshold tau
    double alpha, tau;
    double distinct;      // scores of at least this magnitude can't be distinguished
    const int64_t* only;  // [rows] or null: the only symbol to rank, or negative for all
    const void* scores;
    void* best;         // double [rows, count], the largest first, padded with -inf
    int64_t* symbols;   // [rows, count]
    void *ends, *mass;  // double [rows]
    int64_t* support;   // [rows]
    void* log_probs;  // double [rows, d] or null: all log-probabilities, except of rows with a NaN
};

// One step of a decoder in float, including the ranking of its scores for a search. Weights of
// matrix products are in panels of PANEL_COLUMNS columns [panel][input][column]. Later steps read
// what a step has written to `cache`: for each row, a Transformer's keys and values [layers][2][d]
// of a symbol, or a recurrent decoder's states, see recurrent_step.h.
struct DecoderCall {
    RankCall rank;  // its scores are null; with a count of 0 nothing is ranked
    int64_t kind;   // DecoderKind
    int64_t rows, layers, d;
    int64_t hidden;  // units of a feed-forward network, or gates of a recurrent layer
    // The next five: for a Transformer.
    int64_t heads, pre_norm;
    double embedding_scale, epsilon;  // epsilon: added to variances in layer norms
    const void* positions;            // [at least the number of symbols read, d]
    // The next two: for a recurrent decoder.
    int64_t d_embedding, feeding;  // feeding: whether it reads its last output
    const void* weights;           // pointers in the order of `LayerWeights`, `ModelWeights` in
                                   // transformer_rows.h or `RecurrentWeights` in recurrent_step.h
    const int64_t* token;          // [rows]
    const int64_t* state;          // [rows, state_row]: StateColumns, then addresses in caches
    int64_t state_row, growth;     // growth: number of addresses that a step adds, 0 or 1
    int64_t* next_state;           // [rows, state_row + growth]: the state after the step
    void* cache;                   // [rows, cache_row]
    int64_t cache_row;
    int64_t* attended;  // [rows]: number of source symbols that the last layer attends to
    void* attention;    // [rows, attention_row] or null: mean over the last layer's heads
    int64_t attention_row;
    void* scores;        // [rows, rank.d], or null if they are not needed
    const void* screen;  // a ScreenCall: how the output layer is scanned; or null
};
enum DecoderKind { TRANSFORMER, LSTM, GRU };
// Columns of a row's state: the address of the first symbol of its source (the others follow it),
// the length of the source, the number of symbols that the row has read, and the first of their
// addresses. A recurrent decoder stores only the address of its last symbol, and does not count.
enum StateColumns { SOURCE, SOURCE_LENGTH, READ, FIRST_ADDRESS };
// A Transformer's encoder with weights in the same layout, over sources [batch, width]. `lengths`
// holds the number of symbols of each source.
struct EncoderCall {
    int64_t batch, width, layers, d, hidden, heads;
    int64_t pre_norm;
    double embedding_scale, epsilon;
    const void* weights;
    const void* positions;   // [width, d]
    const int64_t* token;    // [batch, width]
    const int64_t* lengths;  // [batch]
    void* states;            // [batch, width, d], zeros after a source's last symbol
    int64_t symbols;         // number of symbols with an embedding
    int64_t unknown_token;   // index of the first token without an embedding, or -1
};
// Projects the encoder's states of sources to the keys and values that the decoder's layers read.
// Also sets the decoder's states before the first symbol.
struct ProjectCall {
    int64_t batch, width, d, columns;  // columns: of all layers, in whole panels
    const void *weights, *bias;        // in panels
    const void* states;                // [batch, width, d]
    const int64_t* lengths;            // [batch]
    void* source;                      // [symbols of all sources, columns]
    int64_t* state;                    // [batch, FIRST_ADDRESS]: StateColumns
};
constexpr int PANEL_COLUMNS = 32;

// Bookkeeping of a beam search, see beams.h. A row is a prefix; the rows of a source are adjacent,
// the best first. Tables of numbers are [columns, room].
struct BeamCall {
    int64_t sources, size;   // size: maximum number of prefixes per source
    int64_t n_best;          // a source ends once no prefix can beat this many outputs
    int64_t num_recorded;    // number of best outputs recorded per source; 0: all
    double length_penalty;   // the exponent of the length in scores
    int64_t competing_ends;  // whether endings compete with the step's best continuations
    int64_t* source;         // [sources, source_row]: BeamSource, then forced symbols and -1
    int64_t source_row;
    double* score;  // [sources, 1 + max(n_best, num_recorded)]: the log-probability of the best
                    // prefix dropped, then the negated scores of the best outputs, in order
    int64_t length, rows, capacity;  // current prefixes: length, number, maximum number
    int64_t* prefixes;               // [PREFIX_COLUMNS, capacity]: the current prefixes
    double* log_prob;                // [capacity]
    int64_t base, used, room;        // base: earlier rows elsewhere; used: here; room: capacity
    int64_t* history;                // [HISTORY_COLUMNS, room]
    double* history_value;           // [HISTORY_VALUES, room]
    int64_t nan_source;              // the first source whose probabilities are NaN, or -1
    RankCall rank;                   // the results of a step
    const int64_t* attended;         // [rows]: results of the step
};
// Columns of a source: the maximum number of steps of an output, the length from which outputs may
// end, the number of current prefixes, the number of scores of outputs, whether a prefix was
// dropped, and whether scores were too large. Forced symbols start at FORCED.
enum BeamSource { STEPS, FREE_FROM, ROWS, COSTS, GAVE_UP, UNCLEAR, FORCED };
enum PrefixColumns { TOKEN, PARENT, OWNER, PREFIX_COLUMNS };
// Columns of a row of an earlier step: those of a prefix, then these.
enum HistoryColumns { SUPPORT = PREFIX_COLUMNS, ATTENDED, HISTORY_COLUMNS };
enum HistoryValues { LOG_PROB, END, HISTORY_VALUES };  // END: -inf where no output is recorded

// A model of a search. `decoder` is the call of the first step. Results have room for `capacity`
// rows, and a row of next_state for the last step. Attention and a Transformer's cache have room
// for `room` rows, and a recurrent decoder's cache for 2 * `capacity` rows, which are used in turn.
struct SearchModel {
    DecoderCall decoder;
    int64_t* states;  // [capacity, columns of the last step], scratch for the next states
};
// A beam search with a decoder, or with the mean probabilities of several decoders, whose results
// replace those of the first, see ensemble.h. It runs until no prefix or no room is left.
struct SearchCall {
    SearchModel* models;
    int64_t num_models;
    BeamCall beam;
    int64_t* only;           // [capacity], scratch
    int64_t unknown_symbol;  // a forced symbol that the model does not have, or -1
};

// Numbers of batch elements and key heads that add to the same gradient of the mask. One thread
// works on all of them, so that no two threads write to that gradient at once.
struct MaskSharing {
    int64_t batch, heads;
    explicit MaskSharing(const AttentionCall& call)
        : batch(call.mask_grad && !call.mask_grad_strides[1] ? call.batch : 1),
          heads(call.mask_grad && !call.mask_grad_strides[2] ? call.key_heads : 1) {}
};

// Attention of a few queries that scans keys in 8 bits, see screening.h; and the encoding of keys.
struct ScreenCall {
    AttentionCall attention;  // float, tiles of one query, without dropout. With `columns` only the
                              // lists are computed; `support` is -1 for queries that are left out.
    uint8_t* rows;            // [batch, key_heads, blocks]: the encoded keys
    int64_t head_bytes;       // bytes per key head of `rows`
    const float *mean, *channel;  // [batch, key_heads, size]
    float* longest;               // [batch, key_heads]: the largest norm of an encoded key
    int32_t* pauses;  // [batch, heads]: steps to compute without a scan; or null: always scan
    int64_t begin;    // encoding: the first key
    double bound;     // factor of the error bounds; below 1 only in tests that must detect it
};

// The kernels for one instruction set and one storage.
struct Kernels {
    int64_t (*block_rows)(int64_t d);
    void (*map)(const MapCall*, int64_t first, int64_t last);
    void (*map_gradient)(const MapGradientCall*, int64_t first, int64_t last);
    void (*loss)(const LossCall*, int64_t first, int64_t last);
    void (*loss_gradient)(const LossGradientCall*, int64_t first, int64_t last);
    void (*relu_loss)(const ReluLossCall*, int64_t first, int64_t last);
    void (*support)(const SupportCall*, int64_t first, int64_t last);
    void (*gather)(const GatherCall*, int64_t first, int64_t last);
    // For float and double; null for half precision.
    void (*drop)(const DropCall*, int64_t first, int64_t last);
    void (*attention)(const AttentionCall*, int64_t first, int64_t last);  // tiles
    // The range counts parts of key heads, or of all key heads that share the gradient of a mask.
    void (*attention_gradient)(const AttentionCall*, int64_t first, int64_t last);
};

// The decoding kernels of one instruction set. Ranges count rows unless a comment says otherwise.
struct DecodingKernels {
    void (*rank)(const RankCall*, int64_t first, int64_t last);
    void (*decoder)(const DecoderCall*, int64_t first, int64_t last);
    void (*encoder)(const EncoderCall*, int64_t first, int64_t last);  // sources
    void (*project)(const ProjectCall*, int64_t first, int64_t last);  // sources
    void (*screen)(const ScreenCall*, int64_t first, int64_t last);    // key heads
    void (*screened)(const ScreenCall*, int64_t first, int64_t last);  // queries of all heads
};

// Scratch memory that a thread keeps between calls, aligned to pages: one buffer for rows, one for
// attention tiles and one for decoding. The contents are undefined.
enum Scratch { FOR_ROWS, FOR_TILES, FOR_DECODING, SCRATCHES };
void* scratch_memory(int64_t bytes, Scratch which = FOR_ROWS);
void release_scratch(int64_t limit, Scratch which);  // frees it if it has more than `limit` bytes
