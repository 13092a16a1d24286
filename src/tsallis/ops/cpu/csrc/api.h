// The structures that Python fills in, and the table of kernels of one instruction set, each of
// which works on a range of rows (or tiles). structs.py mirrors the structures.

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

// Numbers a row: the maximum, the threshold and its fine part, 1 / mass, the size of the support.
constexpr int STATS = 5;

// The statistics of a loss may be wider, [rows, width], and then hold the support itself, so that
// the gradient does not read the scores. Behind the numbers above: the number of entries, or -1
// where they don't fit (the size above may be too large then); their masses [room]; and their
// classes [room] as int32.
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

// Outputs may overlay inputs: a row is read before it is written.
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
    void* total;  // [rows] or null: the sums of the values themselves
};

// Dropout of n numbers in rows of d, the last of which may be shorter: each is kept with the
// probability `keep_prob` and divided by it, or set to zero. Which ones is a function of the seed,
// the row and the column alone, so that no mask is stored. out may be in.
struct DropCall {
    int32_t storage;  // float or double
    int64_t n, d;
    uint64_t seed;
    double keep_prob;
    const void* in;
    void* out;
};

// A tensor [batch, heads, rows, size] by its strides; that of `size` is 1.
struct Heads {
    void* memory;
    int64_t batch, head, row;
};

constexpr int MIN_PANEL_QUERIES = 4;      // for fewer queries transposing the keys does not pay
constexpr int64_t MIN_WINDOW_KEYS = 256;  // for fewer keys a window is not worth its bounds
// Keys whose norms have one bound, where slopes bound a window.
constexpr int64_t NORM_BLOCK = 64;
inline int64_t norm_blocks(int64_t keys) { return (keys + NORM_BLOCK - 1) / NORM_BLOCK; }

// Attention, forward and backward, in tiles of queries of one head. Forward saves the supports of a
// tile as lists if they have a little less than `capacity` entries a row on average; backward then
// computes no scores.
struct AttentionCall {
    int32_t storage;  // float or double
    int32_t causal;
    int64_t batch, key_heads, group;  // each head of keys is read by a `group` of heads of queries
    int64_t queries, keys, size, value_size;
    int64_t tile_rows;
    int64_t capacity;
    int64_t splits;  // backward: how many parts the tiles of a head are divided into
    double scale;
    double keep_prob;  // of the weights, in dropout; 1: all of them
    uint64_t seed;
    double alpha;
    const void* alphas;  // [batch, key_heads * group], of any strides; or null: all `alpha`
    int64_t alpha_strides[2];
    const int64_t* lengths;  // [batch], of the keys that take part; or null: all
    Heads query, key, value, out;
    const void* mask;      // or null
    int32_t boolean_mask;  // whether it holds bytes that are true or false
    int64_t mask_strides[4];
    const void* slopes;  // [batch, key_heads * group], of any strides; or null: none
    int64_t slope_strides[2];
    const void* key_norms;  // [batch, key_heads]: bounds of the keys' norms; or null: unknown
    double* block_norms;    // [batch, key_heads, norm_blocks(keys)]; or null, see norm_of_block
    int64_t offset;         // query i stands at key i + offset, for the causal order and the slopes
    int32_t* support;       // [batch, key_heads * group, queries]: how many keys a query attends to
    void* stats;            // the same, [..., STATS]
    int32_t* columns;  // [batch, key_heads * group, queries, capacity], or null: no lists are saved
    void* weight;
    // Gradients of keys and values are [splits * batch, ...].
    Heads grad, query_grad, key_grad, value_grad;
    void *alpha_grad, *slope_grad;  // [batch, key_heads * group, queries] or null
    void* mask_grad;                // of an additive mask, to be added to; or null
    int64_t mask_grad_strides[5];   // of splits, batch, heads, queries and keys; 0: one for all
};

// What a search needs of rows of scores [rows, stride], of which d count: the best
// log-probabilities and their symbols, but for the end's; the end's; how many symbols have a
// probability, and the sum of these. Rows with a NaN have NaN for the sum, rows whose largest
// score is too large infinity.
struct RankCall {
    int64_t rows, d, stride;
    int64_t count, end;  // end: negative for none
    int64_t relu;        // whether the map is alpha-ReLU with the threshold tau
    double alpha, tau;
    double distinct;      // the least size at which scores can't be told apart
    const int64_t* only;  // [rows] or null: the symbol that alone is of interest, or a negative one
    const void* scores;
    void* best;         // double [rows, count], the largest first, -inf behind the last
    int64_t* symbols;   // [rows, count]
    void *ends, *mass;  // double [rows]
    int64_t* support;   // [rows]
};

// One step of a Transformer's decoder, in float, up to what a search needs of its scores. Products
// have their weights in panels of PANEL_COLUMNS columns [panel][input][column]. Keys and values are
// read where they were written: an address names the numbers [layers][2][d] of a symbol.
struct DecoderCall {
    RankCall rank;  // its scores are null; a count of 0 asks for nothing
    int64_t rows, layers, d, hidden, heads;
    int64_t pre_norm;
    double embedding_scale, epsilon;  // epsilon: of the norms
    const void*
        weights;  // pointers, as `LayerWeights` and `ModelWeights` of transformer_rows.h list them
    const void* positions;  // [symbols read or more, d]
    const int64_t* token;   // [rows]
    const int64_t* state;   // [rows, state_row]: StateColumns, and addresses of what was read
    int64_t state_row;
    int64_t* next_state;  // [rows, state_row + 1]: the same after the step
    void* cache;          // [rows, layers, 2, d]: the numbers of these tokens
    int64_t* attended;    // [rows]: source symbols with a weight in the last layer
    void* attention;      // [rows, attention_row] or null: the mean of the last layer's heads
    int64_t attention_row;
    void* scores;  // [rows, rank.d], or null: they are not kept
};
// Of a row's source: the address of its first symbol, which the others follow, and how many it has;
// how many symbols the row has read; where the addresses of these begin.
enum StateColumns { SOURCE, SOURCE_LENGTH, READ, FIRST_ADDRESS };
// A Transformer's encoder of the same kind, over sources [batch, width] of so many symbols each.
struct EncoderCall {
    int64_t batch, width, layers, d, hidden, heads;
    int64_t pre_norm;
    double embedding_scale, epsilon;
    const void* weights;
    const void* positions;   // [width, d]
    const int64_t* token;    // [batch, width]
    const int64_t* lengths;  // [batch]
    void* states;            // [batch, width, d], zeros behind a source's last symbol
    int64_t symbols;         // that have an embedding
    int64_t unknown_token;   // the number of the first token that has none, or -1; no states then
};
// The keys and values that the layers of a decoder read of sources, whose states are an encoder's;
// and the decoder's states before the first symbol.
struct ProjectCall {
    int64_t batch, width, d, columns;  // columns: those of all layers, whole panels
    const void *weights, *bias;        // in panels
    const void* states;                // [batch, width, d]
    const int64_t* lengths;            // [batch]
    void* source;                      // [symbols of all sources, columns]
    int64_t* state;                    // [batch, FIRST_ADDRESS]: StateColumns
};
constexpr int PANEL_COLUMNS = 32;

// The bookkeeping of a beam search, see beams.h. A row is a prefix; those of one source stand
// together, the best first. Columns of numbers are [columns, room] each.
struct BeamCall {
    int64_t sources, size;   // prefixes of a source at most
    int64_t n_best;          // outputs of a source that end its search once no prefix can beat them
    int64_t num_recorded;    // the best outputs of a source that are recorded; 0: all
    double length_penalty;   // the exponent of the length in scores
    int64_t competing_ends;  // whether an ending must be one of its step's best continuations
    int64_t* source;  // [sources, source_row]: BeamSource, then symbols that must come and -1
    int64_t source_row;
    double* score;  // [sources, 1 + max(n_best, num_recorded)]: the log-probability of the best
                    // prefix dropped, then the best outputs' scores, negative, in order
    int64_t length, rows, capacity;  // of current prefixes: tokens, number, most
    int64_t* prefixes;               // [PREFIX_COLUMNS, capacity]: the current prefixes
    double* log_prob;                // [capacity]
    int64_t base, used, room;        // rows of earlier steps: before this memory, in it, its room
    int64_t* history;                // [HISTORY_COLUMNS, room]
    double* history_value;           // [HISTORY_VALUES, room]
    int64_t nan_source;              // the first source whose probabilities are NaN, or -1
    RankCall rank;                   // the results of a step
    const int64_t* attended;         // [rows], of the step
};
// Of a source: the steps of its longest output, the length that ends may follow; then its current
// prefixes, outputs' scores, whether a prefix was dropped, whether scores were too large.
enum BeamSource { STEPS, FREE_FROM, ROWS, COSTS, GAVE_UP, UNCLEAR, FORCED };
enum PrefixColumns { TOKEN, PARENT, OWNER, PREFIX_COLUMNS };
// Of a row of an earlier step: its columns as a prefix, then these.
enum HistoryColumns { SUPPORT = PREFIX_COLUMNS, ATTENDED, HISTORY_COLUMNS };
enum HistoryValues { LOG_PROB, END, HISTORY_VALUES };  // END: -inf where no output is recorded

// A beam search by a Transformer's decoder: steps until no prefix is left, or no room.
struct SearchCall {
    DecoderCall decoder;  // of the first step; its results have room for `capacity` rows, but the
                          // cache and attention for `room` rows, and next_state for all steps
    BeamCall beam;
    int64_t* states;         // [capacity, columns of the last step], memory for the next step's
    int64_t* only;           // [capacity], memory
    int64_t unknown_symbol;  // a symbol that must come and is none, or -1
};

// How many batch elements and heads of keys add to the same gradient of the mask. One thread works
// on all of these, so that no two write to it at once.
struct MaskSharing {
    int64_t batch, heads;
    explicit MaskSharing(const AttentionCall& call)
        : batch(call.mask_grad && !call.mask_grad_strides[1] ? call.batch : 1),
          heads(call.mask_grad && !call.mask_grad_strides[2] ? call.key_heads : 1) {}
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
    // For float and double; null for halves.
    void (*drop)(const DropCall*, int64_t first, int64_t last);
    void (*attention)(const AttentionCall*, int64_t first, int64_t last);  // tiles
    // Over parts of heads of keys, or of all heads of keys that share a mask's gradient.
    void (*attention_gradient)(const AttentionCall*, int64_t first, int64_t last);
};

// The kernels of decoding for one instruction set, over rows.
struct DecodingKernels {
    void (*rank)(const RankCall*, int64_t first, int64_t last);
    void (*decoder)(const DecoderCall*, int64_t first, int64_t last);
    void (*encoder)(const EncoderCall*, int64_t first, int64_t last);  // sources
    void (*project)(const ProjectCall*, int64_t first, int64_t last);  // sources
};

// Scratch memory that a thread holds between calls, aligned to pages: one for rows, one for tiles
// of attention, one for decoding. Its contents are undefined.
enum Scratch { FOR_ROWS, FOR_TILES, FOR_DECODING, SCRATCHES };
void* scratch_memory(int64_t bytes, Scratch which = FOR_ROWS);
void release_scratch(int64_t limit, Scratch which);  // frees it if it has more than `limit` bytes
