// The kernels of one instruction set, TSALLIS_ISA, with a table for each storage type that a macro
// (TSALLIS_F32, ...) requests. build.py compiles double separately, so that more cores share the
// work.

#include <type_traits>

#include "attention_backward.h"
#include "attention_forward.h"
#include "dropout.h"
#include "gradients.h"
#include "losses.h"
#include "maps.h"
#include "sparse.h"

namespace {

template <class Call, void (*range)(const Call&, int64_t, int64_t)>
void run(const Call* call, int64_t first, int64_t last) {
    range(*call, first, last);
}

template <class S> constexpr Kernels kernels_of() {
    // The type of the computation.
    using T = std::conditional_t<std::is_same_v<S, double>, double, float>;
    Kernels table{};
    table.block_rows = block_rows;
    table.map = run<MapCall, map_range<T, S>>;
    table.map_gradient = run<MapGradientCall, map_gradient_range<T, S>>;
    table.loss = run<LossCall, loss_range<T, S>>;
    table.loss_gradient = run<LossGradientCall, loss_gradient_range<T, S>>;
    table.relu_loss = run<ReluLossCall, relu_loss_range<T, S>>;
    table.support = run<SupportCall, support_range<T, S>>;
    table.gather = run<GatherCall, gather_range<T, S>>;
    if constexpr (std::is_same_v<T, S>) {
        table.drop = run<DropCall, drop_range<T>>;
        table.attention = run<AttentionCall, attention_range<T>>;
        table.attention_gradient = run<AttentionCall, attention_gradient_range<T>>;
    }
    return table;
}

}  // namespace

#define JOINED(a, b, c) a##_##b##_##c
#define TABLE(isa, storage) JOINED(kernels, isa, storage)

#if defined(TSALLIS_F32)
extern const Kernels TABLE(TSALLIS_ISA, f32);
constexpr Kernels TABLE(TSALLIS_ISA, f32) = kernels_of<float>();
#endif
#if defined(TSALLIS_F64)
extern const Kernels TABLE(TSALLIS_ISA, f64);
constexpr Kernels TABLE(TSALLIS_ISA, f64) = kernels_of<double>();
#endif
#if defined(TSALLIS_BF16)
extern const Kernels TABLE(TSALLIS_ISA, bf16);
constexpr Kernels TABLE(TSALLIS_ISA, bf16) = kernels_of<BFloat16>();
#endif
#if defined(TSALLIS_F16)
extern const Kernels TABLE(TSALLIS_ISA, f16);
constexpr Kernels TABLE(TSALLIS_ISA, f16) = kernels_of<Float16>();
#endif
