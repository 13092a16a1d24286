// Products of a few rows with weights that were packed once: panels of PANEL_COLUMNS columns, each
// [inputs][PANEL_COLUMNS]. A row's sums run over the inputs in one order, whatever rows are beside
// it.

#pragma once

#include "api.h"
#include "simd.h"

namespace {

// Loops over the rows of a tile must be unrolled, or its sums are moved through memory.
#define UNROLL _Pragma("GCC unroll 12")

enum Finish { WRITE, WRITE_POSITIVE, ADD };  // what becomes of what the result holds already

INLINE int64_t whole_panels(int64_t columns) {
    return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
}

struct Linear {  // a matrix of `columns` outputs and its bias
    const float *panels, *bias;
    int64_t inputs, columns;

    int64_t width() const { return whole_panels(columns); }
};

constexpr int PREFETCH_ROWS = 3;  // with fewer rows the weights' own loads are what takes time

// M rows times two vectors of columns. Meanwhile the columns at `next` are fetched into the cache.
template <int M, Finish FINISH>
INLINE void multiply_tile(const float* a, int64_t a_row, const float* b, int64_t inputs,
                          const float* bias, const float* next, float* c, int64_t c_row) {
    constexpr int N = LANES<float>;
    F left[M], right[M];
    UNROLL for (int m = 0; m < M; m++) left[m] = load(bias), right[m] = load(bias + N);
    for (int64_t k = 0; k < inputs; k++) {
        const F b0 = load(b + k * PANEL_COLUMNS), b1 = load(b + k * PANEL_COLUMNS + N);
        for (int line = 0; M >= PREFETCH_ROWS && line < 2 * VECTOR_BYTES / 64; line++)
            __builtin_prefetch(next + k * PANEL_COLUMNS + line * 16, 0, 2);
        UNROLL for (int m = 0; m < M; m++) {
            const F x = fill(a[m * a_row + k]);
            left[m] += x * b0, right[m] += x * b1;
        }
    }
    UNROLL for (int m = 0; m < M; m++) {
        float* to = c + m * c_row;
        if (FINISH == WRITE_POSITIVE)
            left[m] = positive_part(left[m]), right[m] = positive_part(right[m]);
        if (FINISH == ADD) left[m] += load(to), right[m] += load(to + N);
        store(to, left[m]), store(to + N, right[m]);
    }
}

// Rows of a tile: as many as there are registers for.
constexpr int TILE_ROWS = VECTOR_BYTES == 64 ? 12 : 6;

template <Finish FINISH>
void multiply_rows_of_tile(int rows, const float* a, int64_t a_row, const float* b, int64_t inputs,
                           const float* bias, const float* next, float* c, int64_t c_row) {
    switch (rows) {
#define ROWS(M) \
    case M:     \
        return multiply_tile<M, FINISH>(a, a_row, b, inputs, bias, next, c, c_row);
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

// c [rows, c_row] = or += a [rows, a_row] times the columns [first, last) of the weights, and their
// bias. `first` and `last` are those of panels, and c begins with column `first`.
template <Finish FINISH>
void multiply_columns(const Linear& w, int64_t first, int64_t last, const float* a, int64_t a_row,
                      int64_t rows, float* c, int64_t c_row) {
    constexpr int SIDE = 2 * LANES<float>;
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;  // even ones: 13 rows are 7 and 6
    auto side = [&](int64_t n) {
        return w.panels + n / PANEL_COLUMNS * PANEL_COLUMNS * w.inputs + n % PANEL_COLUMNS;
    };
    for (int64_t n = first; n < last; n += SIDE) {
        const float* b = side(n);
        const float* next = n + SIDE < w.width() ? side(n + SIDE) : b;
        for (int64_t t = 0; t < tiles; t++, next = b) {
            const int64_t r = rows * t / tiles, end = rows * (t + 1) / tiles;
            multiply_rows_of_tile<FINISH>((int)(end - r), a + r * a_row, a_row, b, w.inputs,
                                          w.bias + n, next, c + r * c_row + n - first, c_row);
        }
    }
}

// The same with all columns: c has `width()` of them.
template <Finish FINISH>
void multiply_linear(const Linear& w, const float* a, int64_t a_row, int64_t rows, float* c,
                     int64_t c_row) {
    multiply_columns<FINISH>(w, 0, w.width(), a, a_row, rows, c, c_row);
}

}  // namespace
