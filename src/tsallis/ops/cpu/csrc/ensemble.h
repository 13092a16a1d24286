// The mean probabilities of several models in a step of a search. ../../../search/ensemble.py and
// ../../eager/ranking.py are the same in Python. It uses no vectors and is compiled once.

#pragma once

#include <algorithm>
#include <cmath>

#include "api.h"

namespace {

class Ensemble {
  public:
    // `steps`: one per model, with all log-probabilities. Results replace those of the first.
    Ensemble(const DecoderCall* steps, int64_t models) : steps(steps), models(models) {}

    void average() const {
        for (int64_t r = 0; r < steps->rows; r++) rank(r), attend(r);
    }

  private:
    const DecoderCall* steps;
    int64_t models;

    double log_prob(int64_t m, int64_t r, int64_t symbol) const {
        return ((const double*)steps[m].rank.log_probs)[r * steps->rank.d + symbol];
    }
    double largest(int64_t r, int64_t symbol) const {
        double most = log_prob(0, r, symbol);
        for (int64_t m = 1; m < models; m++) most = std::max(most, log_prob(m, r, symbol));
        return most;
    }
    // Return the logarithm of a mean probability, accurate near 1. It is at most the largest.
    double mean(int64_t r, int64_t symbol, double largest) const {
        if (largest == -INFINITY) return largest;
        double total = 0;
        for (int64_t m = 0; m < models; m++) total += std::expm1(log_prob(m, r, symbol) - largest);
        return largest + std::log1p(total / (double)models);
    }

    void rank(int64_t r) const {
        const RankCall& call = steps->rank;
        double *best = (double*)call.best + r * call.count, mass = 1;
        int64_t *symbols = call.symbols + r * call.count, size = 0, support = 0;
        for (int64_t m = 0; m < models; m++) {
            const double own = ((const double*)steps[m].rank.mass)[r];
            if (std::isnan(own) || std::isinf(own)) mass = std::isnan(mass) ? mass : own;
        }
        ((double*)call.mass)[r] = mass;
        if (std::isnan(mass)) return;  // ends the search
        const int64_t only = call.only ? call.only[r] : -1;
        for (int64_t s = 0; s < call.d; s++) {
            const double most = largest(r, s);
            support += most > -INFINITY;
            if (s == call.end || (only >= 0 && s != only)) continue;
            if (most == -INFINITY || (size == call.count && most <= best[size - 1])) continue;
            const double own = mean(r, s, most);
            if (size == call.count && own <= best[size - 1]) continue;
            int64_t k = size < call.count ? size++ : size - 1;
            for (; k > 0 && best[k - 1] < own; k--)
                best[k] = best[k - 1], symbols[k] = symbols[k - 1];
            best[k] = own, symbols[k] = s;
        }
        for (; size < call.count; size++) best[size] = -INFINITY, symbols[size] = 0;
        ((double*)call.ends)[r] = mean(r, call.end, largest(r, call.end));
        call.support[r] = support;
    }

    // Average the attention, and count the source symbols with a weight above zero.
    void attend(int64_t r) const {
        float* weights = (float*)steps->attention + r * steps->attention_row;
        int64_t attended = 0;
        for (int64_t j = 0; j < steps->attention_row; j++) {
            for (int64_t m = 1; m < models; m++)
                weights[j] += ((const float*)steps[m].attention)[r * steps->attention_row + j];
            attended += weights[j] > 0;
            weights[j] /= (float)models;
        }
        steps->attended[r] = attended;
    }
};

}  // namespace
