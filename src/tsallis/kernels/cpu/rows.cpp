// The row kernels for one instruction set, TSALLIS_ISA: what the library calls.

#include "attention.h"
#include "drop.h"
#include "gradients.h"
#include "lists.h"
#include "losses.h"
#include "maps.h"

namespace {

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
void attention(const AttentionCall* call, int64_t first, int64_t last) {
    if (call->storage == STORE_F64) attention_range<double>(*call, first, last);
    else attention_range<float>(*call, first, last);
}
void attention_gradient(const AttentionCall* call, int64_t first, int64_t last) {
    if (call->storage == STORE_F64) attention_gradient_range<double>(*call, first, last);
    else attention_gradient_range<float>(*call, first, last);
}

}  // namespace

#define NAME_OF(isa) #isa
#define NAMED(isa) NAME_OF(isa)
#define JOINED(a, b) a##b
#define TABLE(isa) JOINED(kernels_, isa)

extern const Kernels TABLE(TSALLIS_ISA) = {
    NAMED(TSALLIS_ISA), rows_together, map,    map_gradient, loss,      loss_gradient,
    relu_loss,          support,       gather, drop,         attention, attention_gradient};
