// Products of dense and sparse matrices whose sizes fit into a core's caches.

#pragma once

#include "short_rows.h"
#include "simd.h"

namespace {

template <int K> struct Count {
    static constexpr int value = K;
};

// The block of rows and columns that a product keeps in registers.
constexpr int MATRIX_ROWS = VECTOR_BYTES == 32 ? 4 : 8, MATRIX_VECTORS = 2;

// Prefetches memory that is needed next, a few cache lines at a time between other work.
class Prefetcher {
  public:
    void clear() { runs = run = 0, row = line = all = pace = 0; }
    // Add rows of `bytes` bytes that are `stride` bytes apart.
    void add(const void* at, int64_t stride, int64_t rows, int64_t bytes, bool to_write) {
        if (rows <= 0 || runs == MAX_RUNS) return;
        list[runs++] = {(const char*)at, stride, rows, (bytes + 63) / 64, to_write};
        all += rows * ((bytes + 63) / 64);
    }
    // Set the pace so that everything is prefetched after `units` units of work.
    void pace_over(int64_t units) { pace = (all + units - 1) / units; }
    // Prefetch what is due after `units` more units of work.
    INLINE void advance(int64_t units) {
        for (int64_t lines = units * pace; lines > 0 && run < runs; lines--) {
            const Run& now = list[run];
            const char* p = now.at + row * now.stride + line * 64;
            if (now.to_write)
                __builtin_prefetch(p, 1, 2);
            else
                __builtin_prefetch(p, 0, 2);
            if (++line < now.lines) continue;
            line = 0;
            if (++row == now.rows) row = 0, run++;
        }
    }

  private:
    static constexpr int MAX_RUNS = 12;
    struct Run {
        const char* at;
        int64_t stride, rows, lines;
        bool to_write;
    } list[MAX_RUNS];
    int runs = 0, run = 0;
    int64_t row = 0, line = 0, all = 0,
            pace = 0;  // all: cache lines of all runs; pace: cache lines per unit of work
};
// Units of work of one register block of a product; a sparse row of a few entries is one unit.
constexpr int BLOCK_UNITS = 4;

// A matrix given by its strides: entry (i, j) is at[i * row + j * k]. A transposed matrix has its
// strides swapped.
template <class T> struct Strided {
    const T* at;
    int64_t row, k;
};

// A table whose rows are whole vectors, `step` elements apart.
template <class T> struct Table {
    const T* at;
    int64_t step;

    const T* operator[](int64_t row) const { return at + row * step; }
};

// c[r][n] = or += sum_k a(r, k) b[k][n] for M rows r and W vectors n; `columns` entries are
// written.
template <bool ADD, int M, int W, class T>
INLINE void multiply_block(Strided<T> a, const T* b, int64_t b_row, int64_t depth, T* c,
                           int64_t c_row, int64_t columns) {
    constexpr int N = LANES<T>;
    Vec<T> total[M][W] = {};
    for (int64_t k = 0; k < depth; k++) {
        Vec<T> right[W];
        for (int n = 0; n < W; n++) right[n] = load(b + k * b_row + n * N);
        for (int m = 0; m < M; m++) {
            const Vec<T> left = fill(a.at[m * a.row + k * a.k]);
            for (int n = 0; n < W; n++) total[m][n] += left * right[n];
        }
    }
    for (int m = 0; m < M; m++) {
        T* row = c + m * c_row;
        for (int n = 0; n < W; n++) {
            const int64_t left = columns - n * N;
            if (left <= 0) break;
            if (left >= N)
                store(row + n * N, ADD ? load(row + n * N) + total[m][n] : total[m][n]);
            else
                store_part(row + n * N, left,
                           ADD ? load_part(row + n * N, left, (T)0) + total[m][n] : total[m][n]);
        }
    }
}

// Compute c = or += a b as above for any number of rows.
template <bool ADD, int W, class T>
INLINE void multiply_rows(Strided<T> a, const T* b, int64_t b_row, int64_t rows, int64_t depth,
                          T* c, int64_t c_row, int64_t columns, Prefetcher& prefetcher) {
    int64_t r = 0;
    auto some = [&](auto count) {
        constexpr int M = decltype(count)::value;
        for (; r + M <= rows; r += M) {
            multiply_block<ADD, M, W>({a.at + r * a.row, a.row, a.k}, b, b_row, depth,
                                      c + r * c_row, c_row, columns);
            prefetcher.advance(BLOCK_UNITS);
        }
    };
    some(Count<MATRIX_ROWS>{}), some(Count<4>{}), some(Count<2>{}), some(Count<1>{});
}

template <class T> INLINE int64_t product_units(int64_t rows, int64_t columns) {
    constexpr int64_t WIDTH = MATRIX_VECTORS * LANES<T>;
    return (rows + MATRIX_ROWS - 1) / MATRIX_ROWS * ((columns + WIDTH - 1) / WIDTH) * BLOCK_UNITS;
}

// c [rows, width] = or += a b. The rows of b [depth, width] and c are whole vectors.
template <bool ADD, class T>
void multiply(Strided<T> a, Table<T> b, int64_t rows, int64_t depth, int64_t width, T* c,
              Prefetcher& prefetcher) {
    constexpr int N = LANES<T>;
    for (int64_t n = 0; n < width; n += MATRIX_VECTORS * N) {
        if (width - n > N)
            multiply_rows<ADD, MATRIX_VECTORS>(a, b.at + n, b.step, rows, depth, c + n, width,
                                               width - n, prefetcher);
        else
            multiply_rows<ADD, 1>(a, b.at + n, b.step, rows, depth, c + n, width, width - n,
                                  prefetcher);
    }
}

// Panels hold a matrix [rows, size] transposed, PANEL rows each: panel p has entry k of row p PANEL
// + j at [k][j].
template <class T> constexpr int PANEL = MATRIX_VECTORS * LANES<T>;
template <class T> INLINE int64_t panels_size(int64_t rows, int64_t size) {
    return (rows + PANEL<T> - 1) / PANEL<T> * PANEL<T> * size;
}
template <class T>
void pack_transposed(const T* x, int64_t row, int64_t rows, int64_t size, T* out) {
    constexpr int N = LANES<T>;
    for (int64_t first = 0; first < rows; first += PANEL<T>, out += PANEL<T> * size)
        for (int64_t k = 0; k < size; k += N)
            for (int part = 0; part < MATRIX_VECTORS; part++) {
                Vec<T> in[N], columns[N];
                for (int j = 0; j < N; j++) {
                    const int64_t r = first + part * N + j;
                    in[j] = r < rows ? load_row(x + r * row, k, size, (T)0) : Vec<T>{};
                }
                transpose<T>(in, columns);
                for (int64_t j = 0; j < min((int64_t)N, size - k); j++)
                    store(out + (k + j) * PANEL<T> + part * N, columns[j]);
            }
}

// c [rows, columns] = a panels^T for `columns` rows in panels; c_row is the stride of c.
template <class T>
void multiply_panels(Strided<T> a, const T* panels, int64_t rows, int64_t depth, T* c,
                     int64_t c_row, int64_t columns, Prefetcher& prefetcher) {
    constexpr int W = MATRIX_VECTORS;
    for (int64_t n = 0; n < columns; n += PANEL<T>, panels += PANEL<T> * depth) {
        const int64_t left = columns - n;
        if (left > LANES<T>)
            multiply_rows<false, W>(a, panels, PANEL<T>, rows, depth, c + n, c_row, left,
                                    prefetcher);
        else
            multiply_rows<false, 1>(a, panels, PANEL<T>, rows, depth, c + n, c_row, left,
                                    prefetcher);
    }
}

// Visit a row of `width` entries in blocks of at most four vectors: visit(Count<vectors>, first
// entry).
template <class T, class Visit>
INLINE void for_each_block_of_vectors(int64_t width, Visit&& visit) {
    constexpr int N = LANES<T>;
    int64_t at = 0;
    for (; at + 4 * N <= width; at += 4 * N) visit(Count<4>{}, at);
    switch ((width - at) / N) {
        case 1:
            return visit(Count<1>{}, at);
        case 2:
            return visit(Count<2>{}, at);
        case 3:
            return visit(Count<3>{}, at);
    }
}

// One row of a sparse times a dense matrix: out = or += sum_k value[k] table[index[k]].
template <bool ADD, class T>
INLINE void spmm_row(const int32_t* index, const T* value, int64_t n, Table<T> table, int64_t width,
                     T* out) {
    constexpr int N = LANES<T>;
    for_each_block_of_vectors<T>(width, [&](auto count, int64_t at) {
        constexpr int W = decltype(count)::value;
        Vec<T> even[W] = {}, odd[W] = {};
        for (int w = 0; ADD && w < W; w++) even[w] = load(out + at + w * N);
        int64_t k = 0;
        for (; k + 2 <= n; k += 2) {
            const T *a = table[index[k]] + at, *b = table[index[k + 1]] + at;
            for (int w = 0; w < W; w++)
                even[w] += value[k] * load(a + w * N), odd[w] += value[k + 1] * load(b + w * N);
        }
        for (; k < n; k++)
            for (int w = 0; w < W; w++) even[w] += value[k] * load(table[index[k]] + at + w * N);
        for (int w = 0; w < W; w++) store(out + at + w * N, even[w] + odd[w]);
    });
}

// One row of a product sampled at a sparse matrix's entries: out[k] = x . table[index[k]].
template <class T>
INLINE void sddmm_row(const int32_t* index, int64_t n, const T* x, Table<T> table, int64_t width,
                      T* out) {
    constexpr int N = LANES<T>;
    for (int64_t k = 0; k < n; k += N) {
        int32_t rest[N] = {};
        const int32_t* some = index + k;
        if (k + N > n) {
            for (int64_t j = k; j < n; j++) rest[j - k] = index[j];
            some = rest;
        }
        Vec<T> total[N] = {};
        for (int64_t at = 0; at < width; at += N) {
            const Vec<T> left = load(x + at);
            for (int j = 0; j < N; j++) total[j] += left * load(table[some[j]] + at);
        }
        store_row(out, k, n, lane_sums<T>(total));
    }
}

// Compute out[k] = x[list_rows[k]] . table[index[k]] for n entries of CSR rows, which may be far
// shorter than a vector. Up to a vector after the n-th entry is overwritten.
template <class T>
INLINE void sddmm_rows(const int32_t* list_rows, const int32_t* index, int64_t n, Table<T> x,
                       Table<T> table, int64_t width, T* out, Prefetcher& prefetcher) {
    constexpr int N = LANES<T>;
    for (int64_t k = 0; k < n; k += N) {
        const int64_t most = n - 1;
        Vec<T> total[N];
        prefetcher.advance(1);
        for (int j = 0; j < N; j++) {
            const int64_t entry = min(k + j, most);
            const T *a = x[list_rows[entry]], *b = table[index[entry]];
            total[j] = load(a) * load(b);
            for (int64_t at = N; at < width; at += N) total[j] += load(a + at) * load(b + at);
        }
        store(out + k, lane_sums<T>(total));
    }
}

// out[k] = x . table[k] for k below n.
template <class T> void dots_of_rows(Table<T> table, int64_t n, const T* x, int64_t width, T* out) {
    constexpr int N = LANES<T>;
    for (int64_t k = 0; k < n; k += N) {
        Vec<T> total[N] = {};
        for (int64_t at = 0; at < width; at += N) {
            const Vec<T> left = load(x + at);
            for (int j = 0; j < N; j++) total[j] += left * load(table[min(k + j, n - 1)] + at);
        }
        store_row(out, k, n, lane_sums<T>(total));
    }
}

// Return a mask with a bit per row: which of 64 rows have the bit of `column` (one of 16) set.
template <class T> INLINE uint64_t column_mask(const uint16_t* rows, int column) {
    uint64_t mask = 0;
#if defined(__AVX512BW__)
    const __m512i bit = _mm512_set1_epi16((short)(1 << column));
    mask = _mm512_test_epi16_mask(_mm512_loadu_si512(rows), bit);
    return mask | (uint64_t)_mm512_test_epi16_mask(_mm512_loadu_si512(rows + 32), bit) << 32;
#else
    for (int r = 0; r < 64; r++) mask |= (uint64_t)(rows[r] >> column & 1) << r;
    return mask;
#endif
}

// out += sum_r value[r step] x[r] over the rows r of a bit mask.
template <class T>
INLINE void masked_row_sum(uint64_t rows, const T* value, int64_t step, const T* x, int64_t width,
                           T* out) {
    constexpr int N = LANES<T>;
    for_each_block_of_vectors<T>(width, [&](auto count, int64_t at) {
        constexpr int W = decltype(count)::value;
        Vec<T> total[W];
        for (int w = 0; w < W; w++) total[w] = load(out + at + w * N);
        for (uint64_t left = rows; left; left &= left - 1) {
            const int64_t r = __builtin_ctzll(left);
            const T by = value[r * step];
            for (int w = 0; w < W; w++) total[w] += by * load(x + r * width + at + w * N);
        }
        for (int w = 0; w < W; w++) store(out + at + w * N, total[w]);
    });
}

// Scatter-add: table[index[k]] += value[k] x.
template <class T>
INLINE void scatter_add_row(const int32_t* index, const T* value, int64_t n, const T* x,
                            int64_t width, T* table) {
    constexpr int N = LANES<T>;
    for_each_block_of_vectors<T>(width, [&](auto count, int64_t at) {
        constexpr int W = decltype(count)::value;
        Vec<T> row[W];
        for (int w = 0; w < W; w++) row[w] = load(x + at + w * N);
        for (int64_t k = 0; k < n; k++) {
            T* to = table + index[k] * width + at;
            for (int w = 0; w < W; w++) store(to + w * N, load(to + w * N) + value[k] * row[w]);
        }
    });
}

}  // namespace
