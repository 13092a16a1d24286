// What Python calls: picks the instruction set, splits rows over torch's threads, and keeps each
// thread's scratch.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(TSALLIS_WITH_X86)
#include <cpuid.h>
#endif

#include "api.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifndef TSALLIS_SOURCE
#define TSALLIS_SOURCE ""
#endif

#define STORAGES(of) of(f32), of(f64), of(bf16), of(f16)  // as in Storage
#define PORTABLE(storage) kernels_portable_##storage
#define AVX2(storage) kernels_avx2_##storage
#define AVX512(storage) kernels_avx512_##storage
extern const Kernels STORAGES(PORTABLE);
#if defined(TSALLIS_WITH_X86)
extern const Kernels STORAGES(AVX2), STORAGES(AVX512), kernels_avx512bf16_bf16;
#endif

namespace {

struct InstructionSet {
    const char* name;
    const Kernels* kernels[4];  // by Storage
};

#define AT_PORTABLE(storage) &PORTABLE(storage)
#define AT_AVX2(storage) &AVX2(storage)
#define AT_AVX512(storage) &AVX512(storage)
// From the least to the most; a machine that has one has those before it.
const InstructionSet INSTRUCTION_SETS[] = {
    {"portable", {STORAGES(AT_PORTABLE)}},
#if defined(TSALLIS_WITH_X86)
    {"avx2", {STORAGES(AT_AVX2)}},
    {"avx512", {STORAGES(AT_AVX512)}},
    {"avx512bf16", {AT_AVX512(f32), AT_AVX512(f64), &kernels_avx512bf16_bf16, AT_AVX512(f16)}},
#endif
};

// The last instruction set that this machine has.
const InstructionSet* best() {
#if defined(TSALLIS_WITH_X86)
    // All of what -march=x86-64-v3 and -v4 let the compiler use; older compilers can't be asked for
    // some by name.
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
        return INSTRUCTION_SETS + (__builtin_cpu_supports("avx512bf16") ? 3 : 2);
    if (v3) return INSTRUCTION_SETS + 1;
#endif
    return INSTRUCTION_SETS;
}

const InstructionSet* instructions = best();

const Kernels& kernels_of(int32_t storage) { return *instructions->kernels[storage]; }

// GOMP_parallel and omp_get_thread_num of the OpenMP runtime that torch has loaded: one pool of
// threads in the process, not two that wait for each other. Null where there is none by that name.
typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*ThreadNumber)();
Parallel runtime = nullptr;
ThreadNumber thread_number = nullptr;

struct Memory {
    void* memory = nullptr;
    int64_t bytes = 0;
    ~Memory() { std::free(memory); }
};
thread_local Memory memories[2];

constexpr int MOST_THREADS = 128;
constexpr int64_t TURNS = 6;  // a turn is a part of what is left of a share: one in so many

template <class Call> using Work = void (*)(const Call*, int64_t first, int64_t last);

// Each thread has a share of consecutive rows, as torch's own operations divide them, so that it
// finds in its core's cache what it wrote there. It takes its share in turns, each smaller than the
// one before; when done, it takes turns of the others': a thread that is held up holds up no other
// for long.
template <class Call> struct Job {
    Work<Call> work;
    const Call* call;
    int64_t rows, share, together;
    int threads;
    struct alignas(64) Share {
        std::atomic<int64_t> taken{0};
    };
    Share shares[MOST_THREADS];

    void run(int own) {
        for (int k = 0; k < threads; k++) {
            const int whose = (own + k) % threads;
            const int64_t start = whose * share, all = start + share < rows ? share : rows - start;
            std::atomic<int64_t>& taken = shares[whose].taken;
            for (int64_t first = taken; first < all;) {
                const int64_t turn = (all - first) / TURNS / together * together;
                const int64_t some = turn > together ? turn : together,
                              end = first + some < all ? first + some : all;
                if (!taken.compare_exchange_weak(first, end)) continue;
                work(call, start + first, start + end);
                first = taken;
            }
        }
    }
    static void take_part(void* argument) { ((Job*)argument)->run(thread_number()); }
};

constexpr int64_t WORTH_A_THREAD = 16384;  // elements: less is done before a second thread wakes

template <class Call>
void over_rows(Work<Call> work, const Call* call, int64_t rows, int64_t width, int64_t together,
               int threads) {
    const int64_t worth = rows * width / WORTH_A_THREAD;
    if (threads > worth) threads = (int)worth;
    if (threads <= 1) return work(call, 0, rows);
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    Job<Call> job;
    job.work = work, job.call = call, job.rows = rows, job.threads = threads;
    job.share = (rows + threads - 1) / threads, job.together = together;
    if (runtime) return runtime(Job<Call>::take_part, &job, (unsigned)threads, 0);
    std::vector<std::thread> others;
    for (int k = 1; k < threads; k++) others.emplace_back([&job, k] { job.run(k); });
    job.run(0);
    for (auto& other : others) other.join();
}

template <class Call> void over_rows(Work<Call> work, const Call* call, int threads) {
    const Layout& layout = call->layout;
    over_rows(work, call, layout.rows, layout.d, kernels_of(layout.storage).rows_together(layout.d),
              threads);
}

// Fresh memory of many pages costs more to touch for the first time than to compute. Pages of two
// megabytes, where the system has them, make that a small part.
void ask_for_huge_pages(void* memory, int64_t bytes) {
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
        if (!scratch.memory) std::abort();
    }
    return scratch.memory;
}

void release_scratch(int64_t most, Scratch which) {
    Memory& scratch = memories[which];
    if (scratch.bytes <= most) return;
    std::free(scratch.memory);
    scratch.memory = nullptr, scratch.bytes = 0;
}

// The bytes of a structure of api.h, and the numbers that STATS are; 0 where there is none of that
// name. What calls the library compares them with its own before it does.
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

// For tests: use another instruction set that this machine has. Returns 0 if it has not.
EXPORT int32_t tsallis_use_isa(const char* name) {
    for (const InstructionSet* one = INSTRUCTION_SETS; one <= best(); one++) {
        if (std::strcmp(one->name, name)) continue;
        instructions = one;
        return 1;
    }
    return 0;
}

EXPORT void tsallis_map(const MapCall* call, int threads) {
    ask_for_huge_pages(call->probs, bytes_of(call->layout));
    over_rows(kernels_of(call->layout.storage).map, call, threads);
}
EXPORT void tsallis_map_gradient(const MapGradientCall* call, int threads) {
    ask_for_huge_pages(call->scores_grad, bytes_of(call->layout));
    over_rows(kernels_of(call->layout.storage).map_gradient, call, threads);
}
EXPORT void tsallis_loss(const LossCall* call, int threads) {
    over_rows(kernels_of(call->layout.storage).loss, call, threads);
}
EXPORT void tsallis_loss_gradient(const LossGradientCall* call, int threads) {
    ask_for_huge_pages(call->scores_grad, bytes_of(call->layout));
    over_rows(kernels_of(call->layout.storage).loss_gradient, call, threads);
}
EXPORT void tsallis_relu_loss(const ReluLossCall* call, int threads) {
    over_rows(kernels_of(call->layout.storage).relu_loss, call, threads);
}
EXPORT void tsallis_support(const SupportCall* call, int threads) {
    over_rows(kernels_of(call->layout.storage).support, call, threads);
}
EXPORT void tsallis_drop(const DropCall* call, int threads) {
    over_rows(kernels_of(call->storage).drop, call, (call->n + call->d - 1) / call->d, call->d, 1,
              threads);
}
EXPORT void tsallis_gather(const GatherCall* call, int threads) {
    over_rows(kernels_of(call->storage).gather, call, call->rows, call->m * 16, 1, threads);
}

EXPORT void tsallis_attention(const AttentionCall* call, int threads) {
    const int64_t bytes = call->storage == STORE_F64 ? 8 : 4;
    ask_for_huge_pages(call->out.memory, call->batch * call->heads * call->group * call->queries *
                                             call->value_size * bytes);
    const int64_t tiles = (call->queries + call->rows - 1) / call->rows;
    over_rows(kernels_of(call->storage).attention, call,
              call->batch * call->heads * call->group * tiles, call->rows * call->keys, 1, threads);
}
EXPORT void tsallis_attention_gradient(const AttentionCall* call, int threads) {
    const int64_t parts = call->batch * call->heads * call->splits,
                  bytes = call->storage == STORE_F64 ? 8 : 4;
    ask_for_huge_pages(call->query_grad.memory, call->batch * call->heads * call->group *
                                                    call->queries * call->size * bytes);
    ask_for_huge_pages(call->key_grad.memory, parts * call->keys * call->size * bytes);
    ask_for_huge_pages(call->value_grad.memory, parts * call->keys * call->value_size * bytes);
    const int64_t width = call->group * call->queries * call->keys / call->splits;
    const Sharing sharing(*call);
    const int64_t together = sharing.batch * sharing.heads;
    over_rows(kernels_of(call->storage).attention_gradient, call, parts / together,
              width * together, 1, threads);
}

// Lists by row [rows] turned into lists by class [classes]: entry k of row r, of class c and value
// v, becomes entry r of class c with value v times the row's weight; a row with a target y >= 0
// adds -weight to class y.
template <class T>
static void transpose(int64_t rows, int64_t classes, const int64_t* offsets, const int32_t* index,
                      const T* value, const T* weight, const int64_t* target, int64_t* out_offsets,
                      int32_t* out_index, T* out_value) {
    for (int64_t c = 0; c <= classes; c++) out_offsets[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (target[r] < 0) continue;
        for (int64_t k = offsets[r]; k < offsets[r + 1]; k++) out_offsets[index[k] + 1]++;
        out_offsets[target[r] + 1]++;
    }
    for (int64_t c = 0; c < classes; c++) out_offsets[c + 1] += out_offsets[c];
    std::vector<int64_t> next(out_offsets, out_offsets + classes);
    for (int64_t r = 0; r < rows; r++) {
        if (target[r] < 0) continue;
        for (int64_t k = offsets[r]; k < offsets[r + 1]; k++) {
            int64_t at = next[index[k]]++;
            out_index[at] = (int32_t)r, out_value[at] = value[k] * weight[r];
        }
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
