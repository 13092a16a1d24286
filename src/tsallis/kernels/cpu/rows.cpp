// The row kernels for one instruction set, TSALLIS_ISA: what the library calls.

#include "gradients.h"
#include "lists.h"
#include "losses.h"
#include "maps.h"

namespace {

// A bijection of 32 bits in which every bit depends on every other (constants by C. Wellons' search for low bias).
INLINE uint32_t scrambled(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du;
    x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

template <class T> void drop_range(const DropCall& call, int64_t first, int64_t last) {
    const T *in = (const T*)call.in, scale = (T)(1 / call.stays);
    T* out = (T*)call.out;
    const uint32_t low = (uint32_t)call.seed, high = (uint32_t)(call.seed >> 32);
    const double limit = call.stays * 4294967296.0;
    const uint32_t below = limit >= 4294967295.0 ? 4294967295u : (uint32_t)limit;
    const int64_t end = smaller(last * DROP_GROUP, call.n);
    for (int64_t i = first * DROP_GROUP; i < end; i++) {
        const uint32_t draw = scrambled(scrambled((uint32_t)i * 0x9e3779b1u + low) ^ high);
        out[i] = draw < below ? in[i] * scale : (T)0;
    }
}

#define BY_STORAGE(storage, function, ...)                              \
    switch (storage) {                                                  \
        case STORE_F64: return function<double, double>(__VA_ARGS__);   \
        case STORE_BF16: return function<float, BFloat16>(__VA_ARGS__); \
        case STORE_F16: return function<float, Float16>(__VA_ARGS__);   \
        default: return function<float, float>(__VA_ARGS__);            \
    }

void map(const MapCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, map_range, *call, first, last)
}
void probs(const ProbsCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, probs_range, *call, first, last)
}
void map_gradient(const MapGradientCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, map_gradient_range, *call, first, last)
}
void loss(const LossCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, loss_range, *call, first, last)
}
void loss_gradient(const LossGradientCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, loss_gradient_range, *call, first, last)
}
void relu_loss(const ReluLossCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, relu_loss_range, *call, first, last)
}
void support(const SupportCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->layout.storage, support_range, *call, first, last)
}
void gather(const GatherCall* call, int64_t first, int64_t last) {
    BY_STORAGE(call->storage, gather_range, *call, first, last)
}
void drop(const DropCall* call, int64_t first, int64_t last) {
    if (call->storage == STORE_F64) drop_range<double>(*call, first, last);
    else drop_range<float>(*call, first, last);
}

}  // namespace

#define NAME_OF(isa) #isa
#define NAMED(isa) NAME_OF(isa)
#define JOINED(a, b) a##b
#define TABLE(isa) JOINED(kernels_, isa)

extern const Kernels TABLE(TSALLIS_ISA) = {NAMED(TSALLIS_ISA), rows_together, map,     probs,  map_gradient, loss,
                                           loss_gradient,      relu_loss,     support, gather, drop};
