// The decoding kernels of one instruction set, TSALLIS_ISA. They are compiled separately because
// they are small and change independently. Mappings and thresholds come from isa.cpp's tables.

#include "decoder_step.h"
#include "encoder.h"
#include "ranking.h"

#define JOINED(a, b, c) a##_##b##_##c
#define TABLE(isa, storage) JOINED(kernels, isa, storage)
#define PAIR(a, b) a##_##b
#define DECODING(isa) PAIR(decoding, isa)

extern const Kernels TABLE(TSALLIS_ISA, f32);

namespace {

void rank_range(const RankCall* call, int64_t first, int64_t last) {
    // Rank as many rows at a time as fit into the second-level cache.
    const int64_t together = max((int64_t)1, (int64_t)131072 / call->d);
    float* memory = (float*)scratch_memory(rank_memory(*call, together) * 4, FOR_DECODING);
    for (int64_t r = first; r < last; r += together)
        rank_rows(*call, TABLE(TSALLIS_ISA, f32), (const float*)call->scores + r * call->stride, r,
                  min(last, r + together), memory);
}

void decoder_range(const DecoderCall* call, int64_t first, int64_t last) {
    DecoderRows(*call, TABLE(TSALLIS_ISA, f32), first, last).run();
}

void encoder_range(const EncoderCall* call, int64_t first, int64_t last) {
    EncoderRows(*call, TABLE(TSALLIS_ISA, f32), first, last).run();
}

void project_range(const ProjectCall* call, int64_t first, int64_t last) {
    project_sources(*call, first, last);
}

}  // namespace

extern const DecodingKernels DECODING(TSALLIS_ISA);
constexpr DecodingKernels DECODING(TSALLIS_ISA) = {rank_range, decoder_range, encoder_range,
                                                   project_range};
