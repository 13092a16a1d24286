// Ranking of a row of scores for a search: the best few log-probabilities and that of the end in
// double precision, the number of symbols with a probability above zero, and the sum of the
// probabilities. The losses' kernel computes a row's threshold in float32, which is refined to
// double here.

#pragma once

#include <limits>

#include "api.h"
#include "newton.h"

namespace {

// Keeps the largest numbers of those added, the largest first. Of equal numbers the one that was
// added first comes first.
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

// Return e^x for x from -700 to 0, and NaN for NaN.
INLINE D exp_of_negative(D x) {
    // The last bits of `shifted` are the integer nearest to x / log(2).
    const D shifted = x * 1.4426950408889634 + 0x1.8p52, k = shifted - 0x1.8p52;
    const D r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    // Interpolates e^r at the Chebyshev nodes from -log(2)/2 to log(2)/2.
    D y = r * 2.7626357241447223e-7 + 2.764018079620985e-6;
    y = y * r + 2.4801504346997686e-5;
    y = y * r + 1.9841170270440067e-4;
    y = y * r + 1.3888888932488599e-3;
    y = y * r + 8.333333385667782e-3;
    y = y * r + 4.166666666657314e-2;
    y = y * r + 1.6666666666554406e-1;
    y = y * r + 5.000000000000006e-1;
    y = y * r + 1.0000000000000067;
    y = y * r + 1.0;
    return y * (D)(((DI)shifted + 1023) << 52);
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

// Pointers to one row's results in the memory of the caller.
struct RankedRow {
    double* best;      // [count]
    int64_t* symbols;  // [count]
    double *end, *mass;
    int64_t* support;
    int64_t only;
    double* all;  // [d] or null

    RankedRow(const RankCall& call, int64_t row)
        : best((double*)call.best + row * call.count),
          symbols(call.symbols + row * call.count),
          end((double*)call.ends + row),
          mass((double*)call.mass + row),
          support(call.support + row),
          only(call.only ? call.only[row] : -1),
          all(call.log_probs ? (double*)call.log_probs + row * call.d : nullptr) {}

    // Write the log-probabilities of the largest scores, which `log_prob` computes, padded with
    // -inf.
    template <class LogProb>
    INLINE void write(const Largest& largest, int64_t count, LogProb&& log_prob) const {
        for (int64_t k = 0; k < count; k++) {
            best[k] = k < largest.size ? log_prob(largest.value[k]) : -INFINITY;
            symbols[k] = best[k] > -INFINITY ? largest.index[k] : 0;
        }
    }
    // Write the log-probability of the only symbol to rank, if there is one, and those of all
    // symbols, if they are requested.
    template <class LogProb>
    INLINE void write_others(const RankCall& call, const float* z, LogProb&& log_prob) const {
        for (int64_t i = 0; all && i < call.d; i++)
            all[i] = z[i] > -INFINITY ? log_prob(z[i]) : -INFINITY;
        if (only < 0) return;
        const bool possible = z[only] > -INFINITY && only != call.end;  // the end is separate
        const double own = possible ? log_prob(z[only]) : -INFINITY;
        for (int64_t k = 0; k < call.count; k++) best[k] = k ? -INFINITY : own, symbols[k] = only;
    }
    INLINE void write_nan(int64_t count) const {
        for (int64_t k = 0; k < count; k++) best[k] = NAN, symbols[k] = 0;
        *end = *mass = NAN, *support = 0;
    }
    INLINE void write_dead_end(int64_t count, int64_t d) const {
        for (int64_t i = 0; all && i < d; i++) all[i] = -INFINITY;
        for (int64_t k = 0; k < count; k++) best[k] = -INFINITY, symbols[k] = 0;
        *end = -INFINITY, *mass = 1, *support = 0;
    }
};

// Add the entries of a vector that reach a bound, except the end's. Return the bound, which rises
// once there are enough entries.
INLINE float add_above(F x, int64_t first, uint32_t mask, int64_t end, float bound,
                       Largest& largest) {
    for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        if (first + lane != end && x[lane] > -INFINITY)
            largest.add(x[lane], (int32_t)(first + lane));
    }
    return max(bound, largest.least());
}

// Return the sum to report: infinite if the scores are too large, see RankCall.
INLINE double reported_mass(const RankCall& call, double top, double mass) {
    return ::fabs(top) >= call.distinct ? INFINITY : mass;
}

// Log-probabilities are computed from differences to the largest score. The exponentials of the
// largest score itself are counted separately: a probability near 1 is 1 minus the sum of the
// others.
void rank_softmax_row(const RankCall& call, const float* z, Largest largest, RankedRow out) {
    constexpr int N = LANES<float>;
    const int64_t d = call.d;
    F lanes[LANE_VECTORS];
    const float top = row_maximum(z, d, lanes);
    if (top == -INFINITY) {
        FI wrong = {};
        for (int64_t i = 0; i < d; i += N) {
            const F x = load_row(z, i, d, -INFINITY);
            wrong |= x != x;
        }
        return bits(wrong) ? out.write_nan(call.count) : out.write_dead_end(call.count, call.d);
    }
    float bound = rank_bound(lanes, call.count + 1, largest);  // the end may be among them
    D even = {}, odd = {};
    int64_t support = 0, ties = 0;
    for (int64_t i = 0; i < d; i += N) {
        const F x = load_row(z, i, d, -INFINITY);
        // The exponentials of scores far below the largest, -inf among them, round to zero.
        const FI far = x - top < -700.0f;
        if (bits(~far)) {
            const D low = lower_half(x) - (double)top, high = upper_half(x) - (double)top;
            even += (low == 0.0) | (low < -700.0) ? D{} : exp_of_negative(low);
            odd += (high == 0.0) | (high < -700.0) ? D{} : exp_of_negative(high);
        }
        support += __builtin_popcount(bits(x > -INFINITY));
        ties += __builtin_popcount(bits(x == top));
        const uint32_t mask = bits(x >= bound);
        if (mask) bound = add_above(x, i, mask, call.end, bound, largest);
    }
    const double others = sum<double>(even + odd);
    if (!(::fabs(top) < INFINITY) || others != others) return out.write_nan(call.count);
    const double log_total = ::log1p((double)(ties - 1) + others);
    auto log_prob = [&](float v) { return ((double)v - (double)top) - log_total; };
    out.write(largest, call.count, log_prob), out.write_others(call, z, log_prob);
    *out.end = call.end >= 0 && z[call.end] > -INFINITY ? log_prob(z[call.end]) : -INFINITY;
    *out.mass = reported_mass(call, top, 1), *out.support = support;
}

// alpha-ReLU: r = u^b with u = eps z - tau, rounded as PyTorch's operations round it.
void rank_relu_row(const RankCall& call, const float* z, Largest largest, RankedRow out) {
    constexpr int N = LANES<float>;
    const int64_t d = call.d;
    const double eps = call.alpha - 1;
    // Just below the least score with a value above zero. The exact comparison is done in double.
    const double edge = call.tau / eps;
    const bool finite = ::fabs(edge) < std::numeric_limits<float>::max();
    const float cut = finite ? (float)(edge - 1e-6 * ::fabs(edge) - 1e-30) : -INFINITY;
    float bound = cut;
    D mass = {}, tops = fill<double>(-INFINITY);
    FI wrong = {};
    int64_t support = 0;
    for (int64_t i = 0; i < d; i += N) {
        const F x = load_row(z, i, d, -INFINITY);
        wrong |= ~(x < INFINITY);  // NaN or infinite
        if (!bits(x >= cut)) continue;
        const D halves[2] = {lower_half(x), upper_half(x)};
        for (const D& half : halves) {
            const D u = positive_part(prevent_fma(half * eps) - call.tau);
            const uint32_t inside = bits(u > 0);
            if (!inside) continue;
            support += __builtin_popcount(inside);
            // A call of pow for every entry would take most of the time.
            mass += eps == 1 ? u : eps == 0.5 ? u * u : power(u, 1 / eps);
            tops = u > 0 ? max(tops, half) : tops;
        }
        const uint32_t mask = bits(x >= bound);
        if (mask) bound = add_above(x, i, mask, call.end, bound, largest);
    }
    if (bits(wrong)) return out.write_nan(call.count);
    auto log_prob = [&](float v) {
        const D u = prevent_fma(fill((double)v) * eps) - call.tau;
        return u[0] > 0 ? ::log(u[0]) / eps : -INFINITY;
    };
    out.write(largest, call.count, log_prob), out.write_others(call, z, log_prob);
    *out.end = call.end >= 0 ? log_prob(z[call.end]) : -INFINITY;
    const double total = min(sum<double>(mass), std::numeric_limits<double>::max());
    *out.mass = reported_mass(call, support ? maximum<double>(tops) : 0, total);
    *out.support = support;
}

// A row of alpha-entmax in double: p = u^b with u = 1 + eps (v - c), where v is the difference of a
// score from the largest.
struct EntmaxRow {
    // A score at most this far above the threshold, in eps z, equals it up to rounding.
    static constexpr double EDGE = 0x1p-46;
    static constexpr int STEPS = 12;

    double top, eps, c;
    int64_t ties = 0;  // number of scores that equal the largest
    int64_t n = 0;     // number of other scores that may have a probability
    double* v;         // differences v [n], and a vector of padding

    double log_prob(float z) const {
        const double x = eps * (((double)z - top) - c);
        return 1 + x > EDGE ? ::log1p(x) / eps : -INFINITY;
    }

    // Solve sum p = 1 with Newton's steps, starting from the threshold that float32 has found. Up
    // to alpha 1.5, where second derivatives are bounded, use Halley's steps.
    void solve() {
        constexpr int N = LANES<double>;
        const double b = 1 / eps;
        for (int64_t k = n; k < n + N; k++) v[k] = -INFINITY;
        for (int step = 0; step < STEPS; step++) {
            D mass = {}, slope = {}, curvature = {};
            for (int64_t k = 0; k < n; k += N) {
                const D x = (load(v + k) - c) * eps, u = x + 1.0;
                const D p = eps == 1     ? max(u, D{})
                            : eps == 0.5 ? max(u, D{}) * max(u, D{})
                                         : power_of_one_plus(x, u, fill(b));
                const D first = u > 0 ? p / u : D{};
                mass += p, slope += first;
                if (eps <= 0.5) curvature += u > 0 ? first / u : D{};
            }
            // Use 1 minus the largest probability, because this difference has more digits.
            const double log_p = ::log1p(-eps * c) * b, p = ::exp(log_p), u = 1 - eps * c;
            const double excess = ::expm1(log_p) + (double)(ties - 1) * p + sum<double>(mass);
            const double total = sum<double>(slope) + (double)ties * p / u;
            const double newton = excess / total;
            const double bend =
                (1 - eps) * (sum<double>(curvature) + (double)ties * p / (u * u)) * newton / total;
            const bool halley = eps <= 0.5 && ::fabs(bend) < 0.5;
            if (!(total > 0) || newton != newton) return;
            const double move = halley ? newton / (1 - bend / 2) : newton;
            c = max(c + move, 0.0);
            // The remaining error is of the next order.
            const double left = ::fabs(move) * (halley ? bend * bend : 1e-5);
            if (left <= 1e-17 * max(c, 1e-300)) return;
        }
    }
    int64_t support() const {
        int64_t count = ties;
        for (int64_t k = 0; k < n; k++) count += 1 + eps * (v[k] - c) > EDGE;
        return count;
    }
};

void rank_entmax_row(const RankCall& call, const float* z, EntmaxRow row, Largest largest,
                     RankedRow out) {
    constexpr int N = LANES<float>;
    const int64_t d = call.d;
    // Well below the least score of the support, to allow for the rounding of float32.
    const double edge = row.top + row.c - (1 + 1e-3) / row.eps;
    const float cut = (float)(edge - 1e-6 * ::fabs(edge) - 1e-30);
    float bound = cut;
    FI wrong = {};
    for (int64_t i = 0; i < d; i += N) {
        const F x = load_row(z, i, d, -INFINITY);
        wrong |= x != x;
        uint32_t near = bits(x >= cut);
        if (!near) continue;
        const uint32_t mask = bits(x >= bound);
        if (mask) bound = add_above(x, i, mask, call.end, bound, largest);
        for (; near; near &= near - 1) {
            const double v = (double)x[__builtin_ctz(near)] - row.top;
            if (v < 0)
                row.v[row.n++] = v;
            else
                row.ties++;
        }
    }
    if (bits(wrong)) return out.write_nan(call.count);
    row.solve();
    auto log_prob = [&](float v) { return row.log_prob(v); };
    out.write(largest, call.count, log_prob), out.write_others(call, z, log_prob);
    *out.end = call.end >= 0 ? log_prob(z[call.end]) : -INFINITY;
    *out.mass = reported_mass(call, row.top, 1), *out.support = row.support();
}

// rank_rows ranks the rows [first, last). Their scores start at `scores`, `call.stride` apart.
// `memory` holds rank_memory floats.
inline int64_t differences_from(const RankCall& call, int64_t rows) {
    const int64_t room = max(call.count + 1, (int64_t)LANE_VECTORS * LANES<float>);
    return (2 * room + rows * (STATS + 3) + 64 + 15) / 16 * 16;
}
inline int64_t rank_memory(const RankCall& call, int64_t rows) {
    return differences_from(call, rows) + 2 * (call.d + LANES<double>);
}
void rank_rows(const RankCall& call, const Kernels& kernels, const float* scores, int64_t first,
               int64_t last, float* memory) {
    const int64_t rows = last - first;
    const int64_t room = max(call.count + 1, (int64_t)LANE_VECTORS * LANES<float>);
    const Largest largest{call.count, memory, (int32_t*)memory + room};
    const double eps = call.alpha - 1;
    const float* stats = memory + 2 * room;
    double* differences = (double*)(memory + differences_from(call, rows));
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
            rank_relu_row(call, z, largest, out);
        } else if (call.alpha == 1) {
            rank_softmax_row(call, z, largest, out);
        } else {
            const float* own = stats + r * STATS;
            if (own[0] == -INFINITY && own[3] == 0)
                out.write_dead_end(call.count, call.d);
            else if (!(own[3] > 0) || !(own[0] < INFINITY))
                out.write_nan(call.count);
            else
                rank_entmax_row(
                    call, z,
                    {own[0], eps, ((double)own[1] + (double)own[2]) / eps, 0, 0, differences},
                    largest, out);
        }
    }
}

}  // namespace
