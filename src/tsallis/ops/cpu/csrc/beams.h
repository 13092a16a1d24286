// Bookkeeping of a beam search. After each step it decides which outputs are finished and which
// prefixes continue, and keeps the probability of the best prefix that was dropped.
// ../../eager/beams.py is the same in Python.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "api.h"

namespace {

struct Candidate {
    double cost;  // negative log-probability
    int64_t row, symbol;

    bool operator<(const Candidate& other) const {
        if (cost != other.cost) return cost < other.cost;
        return row != other.row ? row < other.row : symbol < other.symbol;
    }
};

class Beams {
  public:
    explicit Beams(BeamCall& call)
        : call(call), most_costs(std::max(call.n_best, call.num_recorded)) {}

    // Start every source with a prefix of one token.
    void begin(int64_t token) const {
        for (int64_t s = 0; s < call.sources; s++) {
            int64_t *prefix = call.prefixes + s, *source = source_of(s);
            prefix[TOKEN * call.capacity] = token;
            prefix[PARENT * call.capacity] = -1;
            prefix[OWNER * call.capacity] = s;
            call.log_prob[s] = 0;
            source[ROWS] = 1, source[COSTS] = source[GAVE_UP] = source[UNCLEAR] = 0;
            std::fill_n(&bound(s), 1 + most_costs, -INFINITY);
        }
        call.rows = call.sources, call.length = call.base = call.used = call.room = 0;
        call.nan_source = -1;
    }

    bool fit() const { return call.used + call.rows <= call.room; }
    const int64_t* tokens() const { return call.prefixes; }
    // Return the index of a prefix's parent among the rows of the previous step; `first` is the
    // number of the first of these rows.
    int64_t parent(int64_t row, int64_t first) const {
        return call.prefixes[PARENT * call.capacity + row] - first;
    }

    // Write the symbol that must follow each prefix, or -1 if any may. Return false if no symbol is
    // forced at this length.
    bool write_forced(int64_t* only) const {
        if (FORCED + call.length >= call.source_row) return false;
        const int64_t* owner = call.prefixes + OWNER * call.capacity;
        for (int64_t r = 0; r < call.rows; r++) only[r] = source_of(owner[r])[FORCED + call.length];
        return true;
    }

    // Choose the next prefixes from the results of a step, unless a probability is NaN.
    void follow(const RankCall& step, const int64_t* attended) {
        call.nan_source = find_nan(step);
        if (call.nan_source >= 0) return;
        note_unclear(step);
        record(step, attended);
        const int64_t* owner = history(OWNER);
        const int64_t rows = call.rows;
        int64_t next = 0;
        for (int64_t row = 0, end; row < rows; row = end) {
            const int64_t source = owner[row];
            end = row + source_of(source)[ROWS];
            find_best(step, row, end);
            if (call.competing_ends) compete(source, row, end);
            finish(source, row, end);
            next = choose(source, next);
        }
        call.used += rows, call.rows = next, call.length++;
    }

  private:
    BeamCall& call;
    int64_t most_costs;
    std::vector<Candidate> best;    // candidates of a source, in order
    std::vector<double> best_ends;  // costs of a source's endings, in order

    int64_t* history(int64_t column) const { return call.history + column * call.room + call.used; }
    double* value(int64_t column) const {
        return call.history_value + column * call.room + call.used;
    }
    int64_t* source_of(int64_t source) const { return call.source + source * call.source_row; }
    double& bound(int64_t source) const { return call.score[source * (1 + most_costs)]; }
    double* costs(int64_t source) const { return &bound(source) + 1; }

    int64_t find_nan(const RankCall& step) const {
        int64_t least = -1;
        for (int64_t r = 0; r < call.rows; r++) {
            const int64_t source = call.prefixes[OWNER * call.capacity + r];
            if (std::isnan(((const double*)step.mass)[r]) && (least < 0 || source < least))
                least = source;
        }
        return least;
    }

    void note_unclear(const RankCall& step) const {
        for (int64_t r = 0; r < call.rows; r++)
            if (std::isinf(((const double*)step.mass)[r]))
                source_of(call.prefixes[OWNER * call.capacity + r])[UNCLEAR] = 1;
    }

    void record(const RankCall& step, const int64_t* attended) const {
        const size_t bytes = (size_t)call.rows * 8;
        for (int64_t column = 0; column < PREFIX_COLUMNS; column++)
            std::memcpy(history(column), call.prefixes + column * call.capacity, bytes);
        std::memcpy(history(SUPPORT), step.support, bytes);
        std::memcpy(history(ATTENDED), attended, bytes);
        std::memcpy(value(LOG_PROB), call.log_prob, bytes);
        std::memcpy(value(END), step.ends, bytes);
    }

    // Return whether a prefix with one more token would have no step left to end.
    bool at_limit(int64_t source) const { return call.length + 2 > source_of(source)[STEPS]; }

    // Drop endings that are not among the `size` best continuations of the step, endings included.
    // At the length limit all are kept, because prefixes can't continue.
    void compete(int64_t source, int64_t row, int64_t end) {
        if (call.length < source_of(source)[FREE_FROM] || at_limit(source)) return;
        double *ends = value(END), *before = value(LOG_PROB);
        best_ends.clear();
        for (int64_t r = row; r < end; r++) best_ends.push_back(-(before[r] + ends[r]));
        std::sort(best_ends.begin(), best_ends.end());
        for (int64_t r = row; r < end; r++) {
            const double cost = -(before[r] + ends[r]);
            if (!(cost < INFINITY)) continue;
            const auto less = [](const Candidate& one, double most) { return one.cost < most; };
            const int64_t rank =
                (std::lower_bound(best.begin(), best.end(), cost, less) - best.begin()) +
                (std::lower_bound(best_ends.begin(), best_ends.end(), cost) - best_ends.begin());
            if (rank < call.size) continue;
            give_up(source, -cost);
            ends[r] = -INFINITY;
        }
    }

    // Record the outputs that end here, unless enough other outputs are better.
    void finish(int64_t source, int64_t row, int64_t end) const {
        double *ends = value(END), *before = value(LOG_PROB);
        const bool may_end = call.length >= source_of(source)[FREE_FROM];
        for (int64_t r = row; r < end; r++) {
            if (!may_end) ends[r] = -INFINITY;
            if (!(ends[r] > -INFINITY)) continue;
            ends[r] += before[r];
            const double score =
                call.length_penalty == 0
                    ? ends[r]
                    : ends[r] / std::pow((double)(call.length + 1), call.length_penalty);
            if (!add_cost(source, -score) && call.num_recorded) ends[r] = -INFINITY;
        }
    }

    // Insert a cost if it is among the best, and return whether it is. A tie with the last of the
    // best counts, too.
    bool add_cost(int64_t source, double cost) const {
        double* own = costs(source);
        int64_t& count = source_of(source)[COSTS];
        if (count == most_costs && !(cost < own[count - 1])) return cost == own[count - 1];
        int64_t k = count < most_costs ? count++ : count - 1;
        for (; k > 0 && own[k - 1] > cost; k--) own[k] = own[k - 1];
        own[k] = cost;
        return true;
    }

    // Make the best continuations of a source's prefixes its next prefixes, in rows from `next` on.
    // Return the row after them.
    int64_t choose(int64_t source, int64_t next) const {
        const int64_t candidates = (int64_t)best.size();
        int64_t chosen = at_limit(source) ? 0 : std::min(candidates, call.size);
        if (candidates > chosen) give_up(source, -best[(size_t)chosen].cost);
        if (source_of(source)[GAVE_UP]) chosen = shrink(source, chosen);
        for (int64_t k = 0; k < chosen; k++) {
            const Candidate& one = best[(size_t)k];
            int64_t* prefix = call.prefixes + next + k;
            prefix[TOKEN * call.capacity] = one.symbol;
            prefix[PARENT * call.capacity] = call.base + call.used + one.row;
            prefix[OWNER * call.capacity] = source;
            call.log_prob[next + k] = -one.cost;
        }
        source_of(source)[ROWS] = chosen;
        return next + chosen;
    }

    // Collect the best `size` + 1 candidates in order: `choose` needs the best one that is dropped.
    void find_best(const RankCall& step, int64_t row, int64_t end) {
        const size_t most = (size_t)call.size + 1;
        const double* before = value(LOG_PROB);
        best.clear();
        for (int64_t r = row; r < end; r++) {
            const double* log_probs = (const double*)step.best + r * step.count;
            const int64_t* symbols = step.symbols + r * step.count;
            for (int64_t j = 0; j < step.count; j++) {
                const Candidate one{-(before[r] + log_probs[j]), r, symbols[j]};
                if (!(one.cost < INFINITY)) break;
                if (best.size() == most) {
                    if (one.cost > best.back().cost) break;
                    if (!(one < best.back())) continue;
                    best.pop_back();
                }
                best.insert(std::lower_bound(best.begin(), best.end(), one), one);
            }
        }
    }

    void give_up(int64_t source, double log_prob) const {
        bound(source) = std::max(bound(source), log_prob);
        source_of(source)[GAVE_UP] = 1;
    }

    // Drop candidates that can change neither the best outputs nor the certificate of a normalised
    // model. This function is called only after a prefix was dropped: the outputs are then no
    // longer complete.
    int64_t shrink(int64_t source, int64_t chosen) const {
        if (source_of(source)[COSTS] < call.n_best) return chosen;
        const double worst = -costs(source)[call.n_best - 1];
        const double by = std::pow((double)source_of(source)[STEPS], call.length_penalty);
        int64_t rest = 0;
        while (rest < chosen && -best[(size_t)rest].cost / by > worst) rest++;
        if (rest < chosen) give_up(source, -best[(size_t)rest].cost);
        return rest;
    }
};

}  // namespace
