// What a search needs of a row of scores: the best few log-probabilities and those of the end, in
// double precision, how many symbols have a probability, and their sum. A row's threshold comes
// from the losses' kernel; the passes here read the scores once or twice and write nothing else.

#pragma once

#include "api.h"
#include "newton.h"

namespace {

// The largest few of the numbers that are added, the largest first; of equal ones that which was
// added first.
struct Largest {
    int64_t room;
    float* value;
    int32_t* index;
    int64_t size = 0;

    INLINE float least() const { return size == room ? value[size - 1] : -INFINITY; }
    INLINE void add(float v, int32_t i) {
        if (size == room && !(v > value[size - 1])) return;
        int64_t k = size < room ? size++ : size - 1;
        for (; k > 0 && value[k - 1] < v; k--) value[k] = value[k - 1], index[k] = index[k - 1];
        value[k] = v, index[k] = i;
    }
};

// Return a number that at least `rank` entries of a row reach: the rank-th largest of the maxima of
// its subsets.
INLINE float rank_bound(const F* lanes, int64_t rank, Largest largest) {
    constexpr int ALL = LANE_VECTORS * LANES<float>;
    if (rank > ALL) return -INFINITY;
    alignas(VECTOR_BYTES) float maxima[ALL];
    for (int k = 0; k < LANE_VECTORS; k++) store(maxima + k * LANES<float>, lanes[k]);
    largest.room = rank, largest.size = 0;
    for (int k = 0; k < ALL; k++) largest.add(maxima[k], k);
    return largest.value[rank - 1];
}

// e^x for x <= 0, at least e^-87; x log2(e) is computed in two parts, because sums over thousands
// of rows show what is biased.
INLINE F exp_of_negative(F x) {
    x = max(fill(-87.0f), x);  // keeps NaN
    const F k = nearest(x * LOG2_E);
    F r = x * 1.44269502162933349609375f - k;
    r = x * 1.925963033500011e-8f + r;
    F y = 1.5252733804059840e-5f * r + 1.5403530393381609e-4f;
    y = y * r + 1.3333558146428443e-3f;
    y = y * r + 9.6181291076284772e-3f;
    y = y * r + 5.5504108664821580e-2f;
    y = y * r + 2.4022650695910071e-1f;
    y = y * r + 6.9314718055994531e-1f;
    y = y * r + 1.0f;
    return times_power_of_two(y, k, k);
}

typedef float HalfF __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE D lower_half(F v) {
    HalfF half;
    std::memcpy(&half, &v, sizeof half);
    return __builtin_convertvector(half, D);
}
INLINE D upper_half(F v) {
    HalfF half;
    std::memcpy(&half, (const char*)&v + sizeof half, sizeof half);
    return __builtin_convertvector(half, D);
}

// One row's results, where the caller wants them.
struct RankedRow {
    double* best;      // [count]
    int64_t* symbols;  // [count]
    double *end, *mass;
    int64_t* support;
    int64_t only;

    RankedRow(const RankCall& call, int64_t row)
        : best((double*)call.best + row * call.count),
          symbols(call.symbols + row * call.count),
          end((double*)call.ends + row),
          mass((double*)call.mass + row),
          support(call.support + row),
          only(call.only ? call.only[row] : -1) {}

    // Write the largest scores by a function from a score to a log-probability; -inf behind them.
    template <class LogProb>
    INLINE void write(const Largest& largest, int64_t count, LogProb&& log_prob) const {
        for (int64_t k = 0; k < count; k++) {
            const bool present = k < largest.size;
            best[k] = present ? log_prob(largest.value[k]) : -INFINITY;
            symbols[k] = present ? largest.index[k] : 0;
        }
    }
    // The same for the one symbol that may come, where there is such a one.
    template <class LogProb>
    INLINE void write_only(const RankCall& call, const float* z, LogProb&& log_prob) const {
        if (only < 0) return;
        const bool possible = z[only] > -INFINITY && only != call.end;  // the end is told apart
        const double own = possible ? log_prob(z[only]) : -INFINITY;
        for (int64_t k = 0; k < call.count; k++) best[k] = k ? -INFINITY : own, symbols[k] = only;
    }
    INLINE void write_nan(int64_t count) const {
        for (int64_t k = 0; k < count; k++) best[k] = NAN, symbols[k] = 0;
        *end = *mass = NAN, *support = 0;
    }
    INLINE void write_dead_end(int64_t count) const {
        for (int64_t k = 0; k < count; k++) best[k] = -INFINITY, symbols[k] = 0;
        *end = -INFINITY, *mass = 1, *support = 0;
    }
};

// Add the entries of a vector that reach a bound, but for the end's; return the bound, which rises
// once there are enough.
INLINE float add_above(F x, int64_t first, uint32_t mask, int64_t end, float bound,
                       Largest& largest) {
    for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        if (first + lane != end && x[lane] > -INFINITY)
            largest.add(x[lane], (int32_t)(first + lane));
    }
    return max(bound, largest.least());
}

void rank_softmax_row(const RankCall& call, const float* z, Largest largest, RankedRow out) {
    constexpr int N = LANES<float>;
    const int64_t d = call.d;
    F lanes[LANE_VECTORS];
    const float top = row_maximum(z, d, lanes);
    float bound = rank_bound(lanes, call.count + 1, largest);  // the end may be among them
    D even = {}, odd = {};
    int64_t support = 0;
    for (int64_t i = 0; i < d; i += N) {
        const F x = load_row(z, i, d, -INFINITY), e = exp_of_negative(x - top);
        even += lower_half(e), odd += upper_half(e);
        support += __builtin_popcount(bits(x > -INFINITY));
        const uint32_t mask = bits(x >= bound);
        if (mask) bound = add_above(x, i, mask, call.end, bound, largest);
    }
    const double total = sum<double>(even + odd);
    if (!(top > -INFINITY) || total != total) return out.write_nan(call.count);
    const double log_total = (double)top + ::log(total);
    auto log_prob = [&](float v) { return (double)v - log_total; };
    out.write(largest, call.count, log_prob), out.write_only(call, z, log_prob);
    *out.end = call.end >= 0 && z[call.end] > -INFINITY ? z[call.end] - log_total : -INFINITY;
    *out.mass = 1, *out.support = support;
}

// p = u^b with u = slope z + offset where that is above `least`.
struct Base {
    double slope, offset, b, least;
    INLINE double operator()(float z) const { return slope * z + offset; }
};

INLINE D base_power(D u, double b) {
    if (b == 2) return u * u;
    if (b == 1) return u;
    if (b == 0) return u > 0 ? fill(1.0) : D{};
    for (int i = 0; i < LANES<double>; i++) u[i] = u[i] > 0 ? ::pow(u[i], b) : 0;
    return u;
}

// The rows of all other maps. `scale` is 1 / mass where that is known, else 0.
void rank_sparse_row(const RankCall& call, const float* z, Base base, double scale, Largest largest,
                     RankedRow out) {
    constexpr int N = LANES<float>;
    const int64_t d = call.d;
    // Just below the least score of the support: the exact comparison is one in double.
    const double edge = (base.least - base.offset) / base.slope;
    const float cut = (float)(edge - 1e-6 * ::fabs(edge) - 1e-30);
    const bool need_mass = scale == 0, correct = need_mass && !call.relu;
    float bound = cut;
    D mass = {}, slope = {};
    FI wrong = {};
    int64_t support = 0;
    for (int64_t i = 0; i < d; i += N) {
        const F x = load_row(z, i, d, -INFINITY);
        wrong |= x != x;
        if (!bits(x >= cut)) continue;
        const D halves[2] = {lower_half(x), upper_half(x)};
        for (int k = 0; k < 2; k++) {
            D u = halves[k] * base.slope + base.offset;
            u = u > base.least ? u : D{};
            support += __builtin_popcount(bits(u > 0));
            if (need_mass) mass += base_power(u, base.b);
            if (correct) slope += base_power(u, base.b - 1);
        }
        uint32_t mask = bits(x >= bound);
        for (uint32_t each = mask; each; each &= each - 1) {
            const int lane = __builtin_ctz(each);
            if (!(base(x[lane]) > base.least)) mask &= ~(1u << lane);
        }
        if (mask) bound = add_above(x, i, mask, call.end, bound, largest);
    }
    double total = need_mass ? sum<double>(mass) : 1 / scale;
    if (bits(wrong) || total != total) return out.write_nan(call.count);
    // A step of Newton's in double: the threshold that was found in float32 gets all its digits.
    double log_total = 0;
    if (correct) {
        const double step = (total - 1) / (base.b * sum<double>(slope));
        if (step == step) base.offset -= step;
        total = 1;
    } else if (!call.relu) {
        log_total = ::log(total), total = 1;
    }
    auto log_prob = [&](float v) {
        const double u = base(v);
        return u > base.least ? base.b * ::log(u) - log_total : -INFINITY;
    };
    out.write(largest, call.count, log_prob), out.write_only(call, z, log_prob);
    const bool ends = call.end >= 0 && base(z[call.end]) > base.least;
    *out.end = ends ? log_prob(z[call.end]) : -INFINITY;
    *out.mass = total, *out.support = support;
}

constexpr float EXACT_SUPPORT = 512;

// Rows [first, last) whose scores lie at `scores`, one row `call.stride` from the next. `memory`
// holds rank_memory floats.
inline int64_t rank_memory(const RankCall& call, int64_t rows) {
    return 2 * max(call.count + 1, (int64_t)LANE_VECTORS * LANES<float>) + rows * (STATS + 3) + 64;
}
void rank_rows(const RankCall& call, const Kernels& kernels, const float* scores, int64_t first,
               int64_t last, float* memory) {
    const int64_t rows = last - first;
    const int64_t room = max(call.count + 1, (int64_t)LANE_VECTORS * LANES<float>);
    const Largest largest{call.count, memory, (int32_t*)memory + room};
    const double eps = call.alpha - 1;
    const float* stats = memory + 2 * room;
    if (call.alpha > 1 && !call.relu) {
        int64_t* target = (int64_t*)(memory + 2 * room + (rows * (STATS + 1) + 15) / 16 * 16);
        for (int64_t r = 0; r < rows; r++) target[r] = 0;
        const Layout layout{STORE_F32, rows, call.stride, 1, call.alpha, nullptr};
        const LossCall loss{layout,       scores,  target, memory + 2 * room + rows * STATS,
                            (void*)stats, nullptr, STATS};
        kernels.loss(&loss, 0, rows);
    }
    for (int64_t r = 0; r < rows; r++) {
        const float* z = scores + r * call.stride;
        const RankedRow out(call, first + r);
        if (call.relu) {
            rank_sparse_row(call, z, {eps, -call.tau, 1 / eps, ::exp2(-150 * eps)}, 0, largest,
                            out);
        } else if (call.alpha == 1) {
            rank_softmax_row(call, z, largest, out);
        } else {
            const float* own = stats + r * STATS;
            const double offset = 1 - (double)own[1] - (double)own[2] - eps * own[0];
            // Powers in double are too slow for long supports.
            const bool exact = call.alpha == 2 || call.alpha == 1.5 || own[4] <= EXACT_SUPPORT;
            if (own[0] == -INFINITY && own[3] == 0)
                out.write_dead_end(call.count);
            else if (!(own[3] > 0) || !(own[0] < INFINITY))
                out.write_nan(call.count);
            else
                rank_sparse_row(call, z, {eps, offset, 1 / eps, ::exp2(-150 * eps)},
                                exact ? 0 : own[3], largest, out);
        }
    }
}

}  // namespace
