// Shared by all decoders: the state of a range of rows, their attention to the source, their
// scores, and the ranking of the scores for a search. Rows are read where earlier steps wrote them,
// so that no row is copied when a search reorders, repeats or drops rows.

#pragma once

#include "panels.h"
#include "ranking.h"
#include "screening.h"

namespace {

class DecoderRange {
  protected:
    const DecoderCall& call;
    const Kernels& table;
    int64_t begin;

    DecoderRange(const DecoderCall& call, const Kernels& table, int64_t first)
        : call(call), table(table), begin(first) {}

    static int64_t most_keys(const DecoderCall& call, int64_t first, int64_t last) {
        int64_t most = 1;
        for (int64_t r = first; r < last; r++) {
            const int64_t* own = call.state + r * call.state_row;
            most = max(most, max(own[READ] + 1, own[SOURCE_LENGTH]));
        }
        return most;
    }

    const int64_t* state(int64_t r) const { return call.state + (begin + r) * call.state_row; }
    float* cache(int64_t r) const { return (float*)call.cache + (begin + r) * call.cache_row; }

    // Add each row's address in the cache to its state; without growth, replace the last address.
    void advance_state(int64_t rows) const {
        for (int64_t r = 0; r < rows; r++) {
            int64_t* next = call.next_state + (begin + r) * (call.state_row + call.growth);
            std::memcpy(next, state(r), (size_t)call.state_row * sizeof(int64_t));
            if (call.growth) next[call.state_row] = 0;
            next[FIRST_ADDRESS + next[READ]] = (int64_t)cache(r);
            next[READ] += call.growth;
        }
    }

    // Count the source symbols that any head attends to. Write the mean of the heads if it is
    // requested.
    void record(const float* weights, int64_t heads, int64_t first, int64_t count,
                int64_t n) const {
        const float share = 1 / (float)heads;
        for (int64_t g = 0; g < count; g++) {
            const int64_t r = begin + first + g;
            float* mean =
                call.attention ? (float*)call.attention + r * call.attention_row : nullptr;
            int64_t attended = 0;
            for (int64_t j = 0; j < n; j++) {
                float total = 0;
                for (int64_t k = 0; k < heads; k++) total += weights[(k * count + g) * n + j];
                attended += total > 0;
                if (mean) mean[j] = total * share;
            }
            for (int64_t j = n; mean && j < call.attention_row; j++) mean[j] = 0;
            call.attended[r] = attended;
        }
    }

    // Compute and rank the scores of rows. The functions below return buffer sizes.
    void output(const Linear& projection, const float* last, int64_t row, int64_t rows,
                float* scores, float* ranking) const {
        const int64_t scores_row = whole_panels(call.rank.d);
        RankCall rank = call.rank;
        rank.stride = scores_row;
        const bool scan = call.screen && !call.scores && !rank.log_probs;
        const int64_t together = scan ? 1 : OUTPUT_ROWS;
        for (int64_t r = 0; r < rows; r += together) {
            const int64_t end = min(rows, r + together);
            if (!scan || !screened_scores(*(const ScreenCall*)call.screen, table, last + r * row,
                                          scores, scores_row))
                multiply_linear<WRITE>(projection, last + r * row, row, end - r, scores,
                                       scores_row);
            for (int64_t k = r; call.scores && k < end; k++)
                std::memcpy((float*)call.scores + (begin + k) * rank.d,
                            scores + (k - r) * scores_row, (size_t)rank.d * 4);
            if (rank.count) rank_rows(rank, table, scores, begin + r, begin + end, ranking);
        }
    }

    static int64_t scores_size(const DecoderCall& call, int64_t rows) {
        return min(rows, OUTPUT_ROWS) * whole_panels(call.rank.d);
    }
    static int64_t ranking_size(const DecoderCall& call, int64_t rows) {
        return rank_memory(call.rank, min(rows, OUTPUT_ROWS));
    }

  private:
    static constexpr int64_t OUTPUT_ROWS = 96;  // rows whose scores are in memory at once
};

}  // namespace
