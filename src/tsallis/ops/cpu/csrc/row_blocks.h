// Ranges of rows, cut into blocks of rows of one kind that are solved together.

#pragma once

#include "api.h"
#include "dtypes.h"
#include "newton.h"

namespace {

int64_t rows_together(int64_t d) {
    // A block's scores stay in the second-level cache between the passes over them.
    int64_t rows = 32768 / d;
    return rows < 1 ? 1 : rows > MOST ? MOST : rows;
}

// Scratch of a block: buffers of candidates and probabilities, and room for copies of what is not
// plain rows.
template <class T> struct Block {
    Rows<T> rows;
    Family<T> family[MOST];
    int64_t stride;
    T *tile[3], *spare;  // room for copies of rows; one more row

    Block(const Layout& layout, int tiles) {
        const int64_t together = rows_together(layout.d), d = layout.d;
        stride = (larger(d, (int64_t)LANE_VECTORS * LANES<T>) / 16 + 3) * 16;
        T* memory = (T*)scratch_memory(((2 + tiles) * together + 1) * stride * (int64_t)sizeof(T));
        rows.x = memory, rows.p = memory + together * stride;
        for (int k = 0; k < 3; k++) tile[k] = memory + (2 + k) * together * stride;
        spare = memory + (2 + tiles) * together * stride;
        rows.d = d, rows.stride = stride, rows.family = family;
        rows.where = (int32_t*)memory, rows.places = 0, rows.level = false;
    }
};

template <class T> INLINE double alpha_of(const Layout& layout, int64_t row) {
    return layout.alphas ? (double)((const T*)layout.alphas)[row] : layout.alpha;
}

// Calls visit(kind, first, last) for runs of rows of one kind in [first, last), at most a block
// long, with their families prepared.
template <class T, class Visit>
void in_blocks(const Layout& layout, Family<T>* families, Use use, int64_t first, int64_t last,
               Visit&& visit) {
    const int64_t together = rows_together(layout.d);
    Family<T> latest = family<T>(alpha_of<T>(layout, first), layout.d, use);
    for (int k = 0; k < together; k++) families[k] = latest;
    for (int64_t begin = first; begin < last;) {
        int64_t end = smaller(begin + together, last);
        for (int64_t row = begin; layout.alphas && row < end; row++) {
            const double alpha = alpha_of<T>(layout, row);
            if (alpha != latest.alpha) latest = family<T>(alpha, layout.d, use);
            Family<T>& own = families[row - begin];
            // Alphas come in runs: most rows find their family where the block before left it.
            if (own.alpha != alpha) own = latest;
            const bool same =
                own.kind == families[0].kind && (layout.d > SHORT || own.n == families[0].n);
            if (!same) end = row;
        }
        visit(families[0].kind, begin, end);
        begin = end;
    }
}

#define BY_KIND(kind, ...)                   \
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
        case WHOLE: {                        \
            constexpr Kind K = WHOLE;        \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
        case ANY: {                          \
            constexpr Kind K = ANY;          \
            __VA_ARGS__;                     \
            break;                           \
        }                                    \
    }

template <class T, class O> INLINE void fill_row(O* row, int64_t d, T value) {
    for (int64_t i = 0; i < d; i += LANES<T>) store_row(row, i, d, fill(value));
}

}  // namespace
