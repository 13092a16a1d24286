// Products of a few rows with weights that were packed once into panels of PANEL_COLUMNS columns,
// each [inputs][PANEL_COLUMNS]. The sums of a row always run over the inputs in the same order,
// whatever other rows there are.

#pragma once

#include "api.h"
#include "simd.h"

namespace {

// Loops over the rows of a tile must be unrolled; otherwise the compiler moves its sums through
// memory.
#define UNROLL _Pragma("GCC unroll 12")

enum Finish { WRITE, WRITE_POSITIVE, ADD };  // how a product is stored into the result

INLINE int64_t whole_panels(int64_t columns) {
    return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
}

struct Linear {  // a matrix of `columns` outputs and its bias
    const float *panels, *bias;
    int64_t inputs, columns;

    int64_t width() const { return whole_panels(columns); }
    const float* column(int64_t n) const {
        return panels + n / PANEL_COLUMNS * PANEL_COLUMNS * inputs + n % PANEL_COLUMNS;
    }
};

// A tile of few rows has more columns, so that enough sums are computed at the same time.
constexpr int FEW_ROWS = 3;
template <int M>
constexpr int FEW_ROWS_VECTORS = VECTOR_BYTES == 64 || M == 1 ? 8 : 4;  // vectors of columns

// Multiply M rows by W vectors of columns. With many rows, also prefetch the places of the results
// and the columns at `next`. With few rows, loading the weights takes most of the time.
template <int M, int W, Finish FINISH>
INLINE void multiply_tile(const float* a, int64_t a_row, const float* b, int64_t inputs,
                          const float* bias, const float* next, float* c, int64_t c_row) {
    constexpr int N = LANES<float>;
    F sum[M][W];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int w = 0; w < W; w++) sum[m][w] =
        load(bias + w * N);
    constexpr int FETCHED = M > FEW_ROWS && VECTOR_BYTES == 64 ? M : 0;  // shorter vectors: no gain
    UNROLL for (int m = 0; m < FETCHED; m++) for (int n = 0; n < W * N; n += 16)
        __builtin_prefetch(c + m * c_row + n, 1);
    for (int64_t k = 0; k < inputs; k++) {
        F column[W];
        UNROLL for (int w = 0; w < W; w++) {
            const int64_t panel = w * N / PANEL_COLUMNS * PANEL_COLUMNS;
            column[w] = load(b + panel * inputs + k * PANEL_COLUMNS + w * N - panel);
        }
        for (int line = 0; M > FEW_ROWS && line < W * VECTOR_BYTES / 64; line++)
            __builtin_prefetch(next + k * PANEL_COLUMNS + line * 16, 0, 2);
        UNROLL for (int m = 0; m < M; m++) {
            const F x = fill(a[m * a_row + k]);
            UNROLL for (int w = 0; w < W; w++) sum[m][w] += x * column[w];
        }
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int w = 0; w < W; w++) {
        float* to = c + m * c_row + w * N;
        if (FINISH == WRITE_POSITIVE) sum[m][w] = positive_part(sum[m][w]);
        if (FINISH == ADD) sum[m][w] += load(to);
        store(to, sum[m][w]);
    }
}

// Number of rows of a tile, limited by the number of registers.
constexpr int TILE_ROWS = VECTOR_BYTES == 64 ? 12 : 6;

template <Finish FINISH>
void multiply_rows_of_tile(int rows, const float* a, int64_t a_row, const float* b, int64_t inputs,
                           const float* bias, const float* next, float* c, int64_t c_row) {
    switch (rows) {
#define ROWS(M) \
    case M:     \
        return multiply_tile<M, 2, FINISH>(a, a_row, b, inputs, bias, next, c, c_row);
        ROWS(1)
        ROWS(2)
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
#if VECTOR_BYTES == 64
        ROWS(7)
        ROWS(8)
        ROWS(9)
        ROWS(10)
        ROWS(11)
        ROWS(12)
#endif
#undef ROWS
    }
}

// Multiply M rows by as many columns as wide tiles can cover; return the number of these columns.
template <int M, Finish FINISH>
int64_t multiply_few_rows(const Linear& w, const float* a, int64_t a_row, float* c, int64_t c_row) {
    constexpr int SIDE = FEW_ROWS_VECTORS<M> * LANES<float>;
    static_assert(SIDE % PANEL_COLUMNS == 0 || PANEL_COLUMNS % SIDE == 0);
    int64_t n = 0;
    for (; n + SIDE <= w.width(); n += SIDE)
        multiply_tile<M, FEW_ROWS_VECTORS<M>, FINISH>(a, a_row, w.column(n), w.inputs, w.bias + n,
                                                      nullptr, c + n, c_row);
    return n;
}

// c [rows, c_row] = or += a [rows, a_row] times the weights, and the bias; c has `width()` columns.
template <Finish FINISH>
void multiply_linear(const Linear& w, const float* a, int64_t a_row, int64_t rows, float* c,
                     int64_t c_row) {
    constexpr int SIDE = 2 * LANES<float>;
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;  // of similar size: 13 = 6 + 7 rows
    int64_t n = 0;
    if (rows == 1) n = multiply_few_rows<1, FINISH>(w, a, a_row, c, c_row);
    if (rows == 2) n = multiply_few_rows<2, FINISH>(w, a, a_row, c, c_row);
    if (rows == 3) n = multiply_few_rows<3, FINISH>(w, a, a_row, c, c_row);
    for (; n < w.width(); n += SIDE) {
        const float *b = w.column(n), *next = n + SIDE < w.width() ? w.column(n + SIDE) : b;
        for (int64_t t = 0; t < tiles; t++, next = b) {
            const int64_t r = rows * t / tiles, end = rows * (t + 1) / tiles;
            multiply_rows_of_tile<FINISH>((int)(end - r), a + r * a_row, a_row, b, w.inputs,
                                          w.bias + n, next, c + r * c_row + n, c_row);
        }
    }
}

}  // namespace
