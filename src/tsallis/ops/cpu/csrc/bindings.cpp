// The exported functions. They pick the instruction set, distribute rows among torch's threads, and
// hold the scratch memory of each thread.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(TSALLIS_WITH_X86)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#include "api.h"
#include "beams.h"
#include "ensemble.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifndef TSALLIS_SOURCE
#define TSALLIS_SOURCE ""
#endif

#define STORAGES(of) of(f32), of(f64), of(bf16), of(f16)  // in the order of Storage
#define PORTABLE(storage) kernels_portable_##storage
#define AVX2(storage) kernels_avx2_##storage
#define AVX512(storage) kernels_avx512_##storage
extern const Kernels STORAGES(PORTABLE);
extern const DecodingKernels decoding_portable;
#if defined(TSALLIS_WITH_X86)
extern const Kernels STORAGES(AVX2), STORAGES(AVX512), kernels_avx512bf16_bf16;
extern const DecodingKernels decoding_avx2, decoding_avx512, decoding_avx512bf16;
#endif

namespace {

struct InstructionSet {
    const char* name;
    const Kernels* kernels[4];  // indexed by Storage
    const DecodingKernels* decoding;
};

#define AT_PORTABLE(storage) &PORTABLE(storage)
#define AT_AVX2(storage) &AVX2(storage)
#define AT_AVX512(storage) &AVX512(storage)
// In ascending order: a machine that supports one set supports all sets before it.
const InstructionSet INSTRUCTION_SETS[] = {
    {"portable", {STORAGES(AT_PORTABLE)}, &decoding_portable},
#if defined(TSALLIS_WITH_X86)
    {"avx2", {STORAGES(AT_AVX2)}, &decoding_avx2},
    {"avx512", {STORAGES(AT_AVX512)}, &decoding_avx512},
    {"avx512bf16",
     {AT_AVX512(f32), AT_AVX512(f64), &kernels_avx512bf16_bf16, AT_AVX512(f16)},
     &decoding_avx512bf16},
#endif
};

// Return the last instruction set that this machine supports.
const InstructionSet* best() {
#if defined(TSALLIS_WITH_X86)
    // Check all features of -march=x86-64-v3 and -v4; older compilers lack the names of some.
    __builtin_cpu_init();
    unsigned a, b, c = 0, d, extended = 0;
    constexpr unsigned F16C = 1u << 29, MOVBE = 1u << 22, LZCNT = 1u << 5;
    __get_cpuid(1, &a, &b, &c, &d);
    __get_cpuid(0x80000001, &a, &b, &extended, &d);
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && (c & F16C) &&
                    (c & MOVBE) && (extended & LZCNT);
    if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return INSTRUCTION_SETS +
               (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") ? 3
                                                                                             : 2);
    if (v3) return INSTRUCTION_SETS + 1;
#endif
    return INSTRUCTION_SETS;
}

const InstructionSet* instructions = best();

const Kernels& kernels_of(int32_t storage) { return *instructions->kernels[storage]; }

// GOMP_parallel and omp_get_thread_num of the OpenMP runtime that torch has loaded. With it the
// process has one pool of threads, not two that wait for each other. Null if there is no such
// runtime.
typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*ThreadNumber)();
Parallel runtime = nullptr;
ThreadNumber thread_number = nullptr;

struct Memory {
    void* memory = nullptr;
    int64_t bytes = 0;
    ~Memory() { std::free(memory); }
};
thread_local Memory memories[SCRATCHES];

// While an instance exists, subnormal results of this thread are flushed to zero. Powers of entries
// at the edge of a support often produce them, and each costs some processors a hundred cycles.
struct FlushSubnormals {
#if defined(TSALLIS_WITH_X86)
    const unsigned before = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON); }
    ~FlushSubnormals() { _mm_setcsr(before); }
#else
    FlushSubnormals() {}
#endif
};

constexpr int MAX_THREADS = 128;
constexpr int64_t CHUNK_DIVISOR = 6;  // a chunk is 1 / CHUNK_DIVISOR of what is left of a share

template <class Call> using Work = void (*)(const Call*, int64_t first, int64_t last);

// Work stealing. Each thread has a share of consecutive rows. The shares are divided as in torch's
// own operations, so that a thread finds in its core's cache what it wrote there. A thread works on
// its share in chunks of falling size, and then on chunks of the other threads' shares. A thread
// that is held up delays the others by at most one chunk.
template <class Call> struct WorkStealing {
    Work<Call> work;
    const Call* call;
    int64_t rows, share, block;
    int threads;
    struct alignas(64) Share {
        std::atomic<int64_t> next{0};
    };
    Share shares[MAX_THREADS];

    void run(int own) {
        const FlushSubnormals flush;
        for (int k = 0; k < threads; k++) {
            const int owner = (own + k) % threads;
            const int64_t start = owner * share,
                          end_of_share = start + share < rows ? share : rows - start;
            std::atomic<int64_t>& next = shares[owner].next;
            for (int64_t first = next; first < end_of_share;) {
                const int64_t chunk = (end_of_share - first) / CHUNK_DIVISOR / block * block;
                const int64_t size = chunk > block ? chunk : block,
                              end = first + size < end_of_share ? first + size : end_of_share;
                if (!next.compare_exchange_weak(first, end)) continue;
                work(call, start + first, start + end);
                first = next;
            }
        }
    }
    static void run_on_thread(void* argument) { ((WorkStealing*)argument)->run(thread_number()); }
};

constexpr int64_t ELEMENTS_PER_THREAD = 16384;  // with fewer elements a thread is not worth waking

template <class Call>
void run_rows(Work<Call> work, const Call* call, int64_t rows, int64_t width, int64_t block,
              int threads) {
    const int64_t max_threads = rows * width / ELEMENTS_PER_THREAD;
    if (threads > max_threads) threads = (int)max_threads;
    if (threads <= 1) {
        const FlushSubnormals flush;
        return work(call, 0, rows);
    }
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    WorkStealing<Call> work_stealing;
    work_stealing.work = work, work_stealing.call = call, work_stealing.rows = rows,
    work_stealing.threads = threads;
    work_stealing.share = (rows + threads - 1) / threads, work_stealing.block = block;
    if (runtime)
        return runtime(WorkStealing<Call>::run_on_thread, &work_stealing, (unsigned)threads, 0);
    std::vector<std::thread> workers;
    for (int k = 1; k < threads; k++)
        workers.emplace_back([&work_stealing, k] { work_stealing.run(k); });
    work_stealing.run(0);
    for (auto& worker : workers) worker.join();
}

template <class Call> void run_rows(Work<Call> work, const Call* call, int threads) {
    const Layout& layout = call->layout;
    run_rows(work, call, layout.rows, layout.d, kernels_of(layout.storage).block_rows(layout.d),
             threads);
}

// The first access to each page of fresh memory costs more than the computation. Huge pages of two
// megabytes, if the system has them, make that cost small.
void request_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t PAGE = 1 << 21;
    if (bytes < (int64_t)(2 * PAGE)) return;
    uintptr_t from = ((uintptr_t)memory + PAGE - 1) & ~(PAGE - 1),
              to = ((uintptr_t)memory + (uintptr_t)bytes) & ~(PAGE - 1);
    if (to > from) madvise((void*)from, to - from, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

int64_t bytes_of(const Layout& layout) {
    const int64_t size = layout.storage == STORE_F64 ? 8 : layout.storage == STORE_F32 ? 4 : 2;
    return layout.rows * layout.d * size;
}

}  // namespace

void* scratch_memory(int64_t bytes, Scratch which) {
    Memory& scratch = memories[which];
    if (scratch.bytes < bytes) {
        std::free(scratch.memory);
        scratch.bytes = (bytes + 4095) / 4096 * 4096;
        scratch.memory = std::aligned_alloc(4096, (size_t)scratch.bytes);
        if (!scratch.memory) {
            std::fprintf(stderr, "out of memory: %lld bytes\n", (long long)scratch.bytes);
            std::abort();
        }
    }
    return scratch.memory;
}

void release_scratch(int64_t limit, Scratch which) {
    Memory& scratch = memories[which];
    if (scratch.bytes <= limit) return;
    std::free(scratch.memory);
    scratch.memory = nullptr, scratch.bytes = 0;
}

// Return the size of a structure of api.h in bytes, or the number STATS; 0 for an unknown name. The
// caller compares them with its own sizes when it loads the library.
EXPORT int64_t tsallis_size(const char* name) {
    static const struct {
        const char* name;
        int64_t size;
    } SIZES[] = {
        {"layout", sizeof(Layout)},
        {"heads", sizeof(Heads)},
        {"map", sizeof(MapCall)},
        {"map_gradient", sizeof(MapGradientCall)},
        {"loss", sizeof(LossCall)},
        {"loss_gradient", sizeof(LossGradientCall)},
        {"relu_loss", sizeof(ReluLossCall)},
        {"support", sizeof(SupportCall)},
        {"gather", sizeof(GatherCall)},
        {"drop", sizeof(DropCall)},
        {"attention", sizeof(AttentionCall)},
        {"attention_gradient", sizeof(AttentionCall)},
        {"rank", sizeof(RankCall)},
        {"decoder", sizeof(DecoderCall)},
        {"encoder", sizeof(EncoderCall)},
        {"project", sizeof(ProjectCall)},
        {"begin", sizeof(BeamCall)},
        {"beam", sizeof(BeamCall)},
        {"search", sizeof(SearchCall)},
        {"screen", sizeof(ScreenCall)},
        {"screened", sizeof(ScreenCall)},
        {"stats", STATS},
    };
    for (const auto& one : SIZES)
        if (std::strcmp(one.name, name) == 0) return one.size;
    return 0;
}

EXPORT const char* tsallis_source() { return TSALLIS_SOURCE; }
EXPORT const char* tsallis_isa() { return instructions->name; }
EXPORT void tsallis_set_parallel(void* parallel, void* number) {
    runtime = (Parallel)parallel, thread_number = (ThreadNumber)number;
}

// For tests: use another instruction set. Return 0 if this machine does not support it, else 1.
EXPORT int32_t tsallis_use_isa(const char* name) {
    for (const InstructionSet* one = INSTRUCTION_SETS; one <= best(); one++) {
        if (std::strcmp(one->name, name)) continue;
        instructions = one;
        return 1;
    }
    return 0;
}

EXPORT void tsallis_map(const MapCall* call, int threads) {
    request_huge_pages(call->probs, bytes_of(call->layout));
    run_rows(kernels_of(call->layout.storage).map, call, threads);
}
EXPORT void tsallis_map_gradient(const MapGradientCall* call, int threads) {
    request_huge_pages(call->scores_grad, bytes_of(call->layout));
    run_rows(kernels_of(call->layout.storage).map_gradient, call, threads);
}
EXPORT void tsallis_loss(const LossCall* call, int threads) {
    run_rows(kernels_of(call->layout.storage).loss, call, threads);
}
EXPORT void tsallis_loss_gradient(const LossGradientCall* call, int threads) {
    request_huge_pages(call->scores_grad, bytes_of(call->layout));
    run_rows(kernels_of(call->layout.storage).loss_gradient, call, threads);
}
EXPORT void tsallis_relu_loss(const ReluLossCall* call, int threads) {
    run_rows(kernels_of(call->layout.storage).relu_loss, call, threads);
}
EXPORT void tsallis_support(const SupportCall* call, int threads) {
    run_rows(kernels_of(call->layout.storage).support, call, threads);
}
EXPORT void tsallis_drop(const DropCall* call, int threads) {
    run_rows(kernels_of(call->storage).drop, call, (call->n + call->d - 1) / call->d, call->d, 1,
             threads);
}
EXPORT void tsallis_gather(const GatherCall* call, int threads) {
    run_rows(kernels_of(call->storage).gather, call, call->rows, call->m * 16, 1, threads);
}

EXPORT void tsallis_rank(const RankCall* call, int threads) {
    run_rows(instructions->decoding->rank, call, call->rows, call->d, 1, threads);
}
// Each thread takes its share of the rows in one chunk: smaller chunks would read the weights more
// often.
EXPORT void tsallis_decoder(const DecoderCall* call, int threads) {
    const int64_t numbers = call->layers * call->d * call->hidden + call->d * call->rank.d;
    run_rows(instructions->decoding->decoder, call, call->rows, numbers,
             (call->rows + threads - 1) / threads, threads);
}

EXPORT void tsallis_encoder(EncoderCall* call, int threads) {
    const int64_t tokens = call->batch * call->width;
    for (int64_t i = 0; i < tokens; i++) {
        if (call->token[i] >= 0 && call->token[i] < call->symbols) continue;
        call->unknown_token = i;
        return;
    }
    call->unknown_token = -1;
    const int64_t numbers = call->width * call->layers * call->d * call->hidden;
    run_rows(instructions->decoding->encoder, (const EncoderCall*)call, call->batch, numbers,
             (call->batch + threads - 1) / threads, threads);
}

EXPORT void tsallis_project(const ProjectCall* call, int threads) {
    run_rows(instructions->decoding->project, call, call->batch,
             call->width * call->d * call->columns, (call->batch + threads - 1) / threads, threads);
}

// Start all sources of a search with a prefix of one token.
EXPORT void tsallis_begin(BeamCall* call, int token) { Beams(*call).begin(token); }

// Advance the search by the step whose results are in the call.
EXPORT void tsallis_beam(BeamCall* call, int) { Beams(*call).follow(call->rank, call->attended); }

EXPORT void tsallis_search(SearchCall* call, int threads) {
    BeamCall& beam = call->beam;
    Beams beams(beam);
    SearchModel* const models = call->models;
    std::vector<DecoderCall> steps((size_t)call->num_models);
    while (beam.rows && beams.fit()) {
        const int64_t first = beam.base + beam.used;
        const bool forced = beams.write_forced(call->only);
        call->unknown_symbol = forced ? *std::max_element(call->only, call->only + beam.rows) : -1;
        if (call->unknown_symbol >= models->decoder.rank.d) return;
        call->unknown_symbol = -1;
        for (size_t m = 0; m < steps.size(); m++) {
            DecoderCall& step = steps[m] = models[m].decoder;
            step.rows = step.rank.rows = beam.rows;
            step.token = beams.tokens();
            const int64_t row = step.growth ? beam.used : beam.length % 2 * beam.capacity;
            step.cache = (float*)step.cache + row * step.cache_row;
            if (step.attention)
                step.attention = (float*)step.attention + beam.used * step.attention_row;
            if (forced) step.rank.only = call->only;
            tsallis_decoder(&step, threads);
        }
        if (steps.size() > 1) Ensemble(steps.data(), call->num_models).average();
        beams.follow(steps[0].rank, steps[0].attended);
        if (beam.nan_source >= 0) return;
        for (size_t m = 0; m < steps.size(); m++) {
            const int64_t columns = models[m].decoder.state_row += steps[m].growth;
            models[m].decoder.state = models[m].states;
            for (int64_t r = 0; r < beam.rows; r++)
                std::memcpy(models[m].states + r * columns,
                            steps[m].next_state + beams.parent(r, first) * columns,
                            (size_t)columns * 8);
        }
    }
}

// Return the call. If its slopes may limit windows, it gets memory for the blocks' bounds of key
// norms, set to -1 (not computed yet).
static AttentionCall with_block_norms(const AttentionCall& from, std::vector<double>& norms) {
    AttentionCall call = from;
    if (call.slopes && !call.key_norms && call.queries >= MIN_PANEL_QUERIES &&
        call.keys >= MIN_WINDOW_KEYS)
        norms.assign((size_t)(call.batch * call.key_heads * norm_blocks(call.keys)), -1);
    call.block_norms = norms.empty() ? nullptr : norms.data();
    return call;
}

EXPORT void tsallis_attention(const AttentionCall* call, int threads) {
    const int64_t bytes = call->storage == STORE_F64 ? 8 : 4;
    request_huge_pages(call->out.memory, call->batch * call->key_heads * call->group *
                                             call->queries * call->value_size * bytes);
    const int64_t tiles = (call->queries + call->tile_rows - 1) / call->tile_rows;
    std::vector<double> norms;
    const AttentionCall own = with_block_norms(*call, norms);
    run_rows(kernels_of(call->storage).attention, &own,
             call->batch * call->key_heads * call->group * tiles, call->tile_rows * call->keys, 1,
             threads);
}
EXPORT void tsallis_screen(const ScreenCall* call, int threads) {
    const AttentionCall& of = call->attention;
    run_rows(instructions->decoding->screen, call, of.batch * of.key_heads,
             (of.keys - call->begin) * of.size, 1, threads);
}
EXPORT void tsallis_screened(const ScreenCall* call, int threads) {
    const AttentionCall& of = call->attention;
    run_rows(instructions->decoding->screened, call,
             of.batch * of.key_heads * of.group * of.queries, of.keys, 1, threads);
}
EXPORT void tsallis_attention_gradient(const AttentionCall* call, int threads) {
    const int64_t parts = call->batch * call->key_heads * call->splits,
                  bytes = call->storage == STORE_F64 ? 8 : 4;
    request_huge_pages(call->query_grad.memory, call->batch * call->key_heads * call->group *
                                                    call->queries * call->size * bytes);
    request_huge_pages(call->key_grad.memory, parts * call->keys * call->size * bytes);
    request_huge_pages(call->value_grad.memory, parts * call->keys * call->value_size * bytes);
    const int64_t width = call->group * call->queries * call->keys / call->splits;
    const MaskSharing sharing(*call);
    const int64_t block = sharing.batch * sharing.heads;
    std::vector<double> norms;
    const AttentionCall own = with_block_norms(*call, norms);
    run_rows(kernels_of(call->storage).attention_gradient, &own, parts / block, width * block, 1,
             threads);
}

// Transpose CSR rows [rows] to CSR rows by class [classes]. An entry of row r with class c and
// value v becomes an entry of class c with index r and value v times the row's weight. A row with a
// target y >= 0 also adds -weight to class y; rows without a target are skipped.
template <class T>
static void transpose(int64_t rows, int64_t classes, const int64_t* offsets, const int32_t* index,
                      const T* value, const T* weight, const int64_t* target, int64_t* out_offsets,
                      int32_t* out_index, T* out_value) {
    for (int64_t c = 0; c <= classes; c++) out_offsets[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = offsets[r]; k < offsets[r + 1]; k++) out_offsets[index[k] + 1]++;
        if (target[r] >= 0) out_offsets[target[r] + 1]++;
    }
    for (int64_t c = 0; c < classes; c++) out_offsets[c + 1] += out_offsets[c];
    std::vector<int64_t> next(out_offsets, out_offsets + classes);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = offsets[r]; k < offsets[r + 1]; k++) {
            int64_t at = next[index[k]]++;
            out_index[at] = (int32_t)r, out_value[at] = value[k] * weight[r];
        }
        if (target[r] < 0) continue;
        int64_t at = next[target[r]]++;
        out_index[at] = (int32_t)r, out_value[at] = -weight[r];
    }
}

EXPORT void tsallis_transpose(int32_t storage, int64_t rows, int64_t classes,
                              const int64_t* offsets, const int32_t* index, const void* value,
                              const void* weight, const int64_t* target, int64_t* out_offsets,
                              int32_t* out_index, void* out_value) {
    if (storage == STORE_F64)
        transpose(rows, classes, offsets, index, (const double*)value, (const double*)weight,
                  target, out_offsets, out_index, (double*)out_value);
    else
        transpose(rows, classes, offsets, index, (const float*)value, (const float*)weight, target,
                  out_offsets, out_index, (float*)out_value);
}
