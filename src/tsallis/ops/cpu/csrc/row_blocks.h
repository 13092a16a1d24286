// Divides a range of rows into blocks: rows with one kind of alpha that are solved at once.

#pragma once

#include "api.h"
#include "dtypes.h"
#include "newton.h"

namespace {

int64_t block_rows(int64_t d) {
    // A block's scores stay in the second-level cache between the passes over them.
    int64_t rows = 32768 / d;
    return rows < 1 ? 1 : rows > MAX_ROWS ? MAX_ROWS : rows;
}

// The scratch memory of a block: buffers of candidates and probabilities, and tiles for copies of
// rows that are strided or of another dtype.
template <class T> struct Block {
    Rows<T> rows;
    AlphaParams<T> params[MAX_ROWS];
    int64_t stride;
    T *tile[3], *spare;  // spare: one more row

    Block(const Layout& layout, int tiles) {
        const int64_t together = block_rows(layout.d), d = layout.d;
        stride = (max(d, (int64_t)LANE_VECTORS * LANES<T>) / 16 + 3) * 16;
        T* memory = (T*)scratch_memory(((2 + tiles) * together + 1) * stride * (int64_t)sizeof(T));
        rows.x = memory, rows.p = memory + together * stride;
        for (int k = 0; k < 3; k++) tile[k] = memory + (2 + k) * together * stride;
        spare = memory + (2 + tiles) * together * stride;
        rows.d = d, rows.stride = stride, rows.params = params;
        rows.where = (int32_t*)memory, rows.index_room = 0, rows.allow_dense = false;
    }
};

template <class T> INLINE double alpha_of(const Layout& layout, int64_t row) {
    return layout.alphas ? (double)((const T*)layout.alphas)[row] : layout.alpha;
}

// Call visit(kind, first, last) for each block of rows of one kind in [first, last), with `params`
// set for its rows.
template <class T, class Visit>
void for_each_block(const Layout& layout, AlphaParams<T>* params, Use use, int64_t first,
                    int64_t last, Visit&& visit) {
    const int64_t together = block_rows(layout.d);
    AlphaParams<T> latest = alpha_params<T>(alpha_of<T>(layout, first), layout.d, use);
    for (int k = 0; k < together; k++) params[k] = latest;
    for (int64_t begin = first; begin < last;) {
        int64_t end = min(begin + together, last);
        for (int64_t row = begin; layout.alphas && row < end; row++) {
            const double alpha = alpha_of<T>(layout, row);
            if (alpha != latest.alpha) latest = alpha_params<T>(alpha, layout.d, use);
            AlphaParams<T>& own = params[row - begin];
            // Equal alphas often follow each other, so most rows keep the parameters of the block
            // before.
            if (own.alpha != alpha) own = latest;
            const bool same =
                own.kind == params[0].kind && (layout.d > MAX_SHORT_SIZE || own.n == params[0].n);
            if (!same) end = row;
        }
        visit(params[0].kind, begin, end);
        begin = end;
    }
}

#define DISPATCH_KIND(kind, ...)             \
    switch (kind) {                          \
        case SOFTMAX: {                      \
            constexpr Kind K = SOFTMAX;      \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
        case TWO: {                          \
            constexpr Kind K = TWO;          \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
        case THREE_HALVES: {                 \
            constexpr Kind K = THREE_HALVES; \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
        case INTEGER: {                      \
            constexpr Kind K = INTEGER;      \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
        case GENERAL: {                      \
            constexpr Kind K = GENERAL;      \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
    }

template <class T, class O> INLINE void fill_row(O* row, int64_t d, T value) {
    for (int64_t i = 0; i < d; i += LANES<T>) store_row(row, i, d, fill(value));
}

}  // namespace
