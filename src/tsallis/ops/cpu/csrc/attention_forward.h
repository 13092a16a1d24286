// Attention, forward: compute scores, weights and output, one tile of queries at a time.

#pragma once

#include "attention_tile.h"

namespace {

template <class T> class AttentionForward : AttentionTile<T> {
    using Base = AttentionTile<T>;
    using Base::call, Base::heads, Base::tiles, Base::value_width, Base::drops, Base::N;
    using Base::counts, Base::stats, Base::layout, Base::saved_offset;
    using Base::tile, Base::scores, Base::values, Base::prefetcher;

  public:
    explicit AttentionForward(const AttentionCall& call) : Base(call) {}

    // Compute the tiles [first, last) of all heads.
    void run(int64_t first, int64_t last) {
        Arena::allocate([&](Arena& arena) {
            Base::allocate(arena);
            arena.take(output_copy, call.tile_rows * value_width);
            arena.take(index, call.keys + N);
            arena.take(weight, call.keys + N);
        });
        for (int64_t number = first; number < last; number++) {
            this->begin(
                this->tile_index(number / tiles / heads, number / tiles % heads, number % tiles));
            this->prefetch_rows(call.out, tile.batch, tile.head, tile.first_row, tile.rows,
                                call.value_size, true);
            const int64_t next = number + 1, of = next / tiles;
            if (of < call.batch * heads) {
                const TileIndex coming = this->tile_index(of / heads, of % heads, next % tiles);
                this->prefetch_queries(coming);
                this->prefetch_keys(coming);
            }
            compute_tile();
        }
    }

  private:
    T* output_copy;  // [rows, value_width]
    int32_t* index;  // a row's list, if lists are not saved
    T* weight;

    void compute_tile() {
        const int64_t rows = tile.rows;
        T* out = row_of<T>(call.out, tile.batch, tile.head, tile.first_row);
        if (tile.keys == 0) {
            for (int64_t r = 0; r < rows; r++) {
                fill_row(out + r * call.out.row, call.value_size, (T)0);
                counts(tile)[r] = 0;
            }
            return;
        }
        this->load_queries();
        if (!this->compute_window()) this->compute_scores();
        const int64_t n = tile.span;
        const MapCall map{layout(), scores, scores, stats()};
        map_range<T, T>(map, 0, rows);  // replaces the scores by weights
        int64_t total = 0;
        for (int64_t r = 0; r < rows; r++) {
            const T* row = stats() + r * STATS;
            total += counts(tile)[r] = row[3] == row[3] ? (int32_t)row[4] : (int32_t)n;  // NaN: all
        }
        if (this->saves_weights(tile, total))
            std::memcpy((T*)call.weight + saved_offset(tile), scores,
                        (size_t)(rows * n) * sizeof(T));
        this->prepare_values();
        T* output = this->has_whole_vectors(call.out) ? out : output_copy;
        const bool dense = this->is_denser(tile, total, DENSE);
        if (this->saves_lists(tile, total) || !dense)
            sum_lists(this->saves_lists(tile, total), dense, output);
        if (dense) {
            for (int64_t r = 0; r < rows && drops; r++)
                this->drop_row(scores + r * n, r, scores + r * n);
            multiply<false>({scores, n, 1}, this->from_begin(values), rows, n, value_width, output,
                            prefetcher);
        }
        if (output != out)
            store_rows(output, value_width, rows, call.value_size, (T)1, out, call.out.row);
    }

    // Compress the rows into lists, which are saved if `save` is set. Sum the values over the lists
    // unless the output is a dense product.
    void sum_lists(bool save, bool dense, T* output) {
        int64_t at = saved_offset(tile);
        for (int64_t r = 0; r < tile.rows; r++) {
            int32_t* to_index = save ? call.columns + at : index;
            T* to_weight = save ? (T*)call.weight + at : weight;
            const int64_t n = this->compress_row(scores + r * tile.span, to_index, to_weight);
            at += n;
            prefetcher.advance(1);
            if (dense) continue;
            if (drops) this->drop_list(to_index, to_weight, n, r, weight);
            spmm_row<false>(to_index, drops ? weight : to_weight, n, values, value_width,
                            output + r * value_width);
        }
    }
};

template <class T> void attention_range(const AttentionCall& call, int64_t first, int64_t last) {
    AttentionForward<T>(call).run(first, last);
    release_scratch(SCRATCH_LIMIT, FOR_TILES);
}

}  // namespace
