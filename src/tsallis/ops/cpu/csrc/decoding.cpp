// The decoding kernels of one instruction set, TSALLIS_ISA. They are compiled separately because
// they are small and change independently. Mappings and thresholds come from isa.cpp's tables.

#include "decoder_step.h"
#include "encoder.h"
#include "ranking.h"
#include "recurrent_step.h"
#include "screening.h"

#define JOINED(a, b, c) a##_##b##_##c
#define TABLE(isa, storage) JOINED(kernels, isa, storage)
#if defined(__AVX512BF16__)
#define FLOATS kernels_avx512_f32  // this set has a table for bfloat16 only
#else
#define FLOATS TABLE(TSALLIS_ISA, f32)
#endif
#define PAIR(a, b) a##_##b
#define DECODING(isa) PAIR(decoding, isa)

extern const Kernels FLOATS;

namespace {

void rank_range(const RankCall* call, int64_t first, int64_t last) {
    // Rank as many rows at a time as fit into the second-level cache.
    const int64_t together = max((int64_t)1, (int64_t)131072 / call->d);
    float* memory = (float*)scratch_memory(rank_memory(*call, together) * 4, FOR_DECODING);
    for (int64_t r = first; r < last; r += together)
        rank_rows(*call, FLOATS, (const float*)call->scores + r * call->stride, r,
                  min(last, r + together), memory);
}

void decoder_range(const DecoderCall* call, int64_t first, int64_t last) {
    if (call->kind == TRANSFORMER)
        DecoderRows(*call, FLOATS, first, last).run();
    else
        RecurrentRows(*call, FLOATS, first, last).run();
}

void encoder_range(const EncoderCall* call, int64_t first, int64_t last) {
    EncoderRows(*call, FLOATS, first, last).run();
}

void project_range(const ProjectCall* call, int64_t first, int64_t last) {
    project_sources(*call, first, last);
}

void screened_range(const ScreenCall* call, int64_t first, int64_t last) {
    screened_range(call, first, last, FLOATS);
}

}  // namespace

extern const DecodingKernels DECODING(TSALLIS_ISA);
constexpr DecodingKernels DECODING(TSALLIS_ISA) = {rank_range,    decoder_range, encoder_range,
                                                   project_range, screen_range,  screened_range};
