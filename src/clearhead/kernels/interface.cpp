// The functions that Python calls: choice of variant, memory, threads. Compiled without special instructions.
#include "interface.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#define PUBLIC extern "C" __attribute__((visibility("default")))

extern const Variant clearhead_generic, clearhead_avx2, clearhead_avx512;

namespace {

enum Instructions { GENERIC = 1, AVX2 = 2, AVX512 = 4 };
enum Outcome { DONE = 0, NO_SUCH_VARIANT = 1, NO_MEMORY = 2 };

int supported() {
    int flags = GENERIC;
#if defined(CLEARHEAD_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) flags |= AVX2;
#endif
#if defined(CLEARHEAD_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        flags |= AVX512;
#endif
    return flags;
}

const Variant *variant_for(int instructions) {
    if (!(instructions & supported())) return nullptr;
    switch (instructions) {
        case GENERIC: return &clearhead_generic;
#if defined(CLEARHEAD_HAS_AVX2)
        case AVX2: return &clearhead_avx2;
#endif
#if defined(CLEARHEAD_HAS_AVX512)
        case AVX512: return &clearhead_avx512;
#endif
    }
    return nullptr;
}

// A thread keeps its memory between calls unless it is large: new pages cost more than small calls.
class Memory {
    static constexpr int64_t LARGEST_RETAINED = 1 << 21;  // floats
    float *block = nullptr;
    int64_t size = 0;

  public:
    float *of(int64_t floats) {
        if (floats > size) {
            free(block);
            size = (floats + 1023) / 1024 * 1024;
            void *fresh = nullptr;
            block = posix_memalign(&fresh, 64, sizeof(float) * size) ? nullptr : (float *)fresh;
            if (!block) size = 0;
        }
        return block;
    }
    void release() {
        if (size <= LARGEST_RETAINED) return;
        free(block);
        block = nullptr;
        size = 0;
    }
    ~Memory() { free(block); }
};

thread_local Memory memory;
const pid_t loaded_in = getpid();

// Threads do not survive a fork, and the parent's pool would wait for them forever.
int threads_for(int wanted) {
#if defined(_OPENMP)
    return getpid() == loaded_in && wanted > 1 ? wanted : 1;
#else
    (void)wanted;
    return 1;
#endif
}

template <typename Kind>
int run(const Kind &call, int instructions, Kernel<Kind> Variant::*which) {
    const Variant *variant = variant_for(instructions);
    if (!variant) return NO_SUCH_VARIANT;
    const Kernel<Kind> kernel = variant->*which;
    const int threads = threads_for(call.threads);
    const int64_t solo = kernel.floats(call, 1), shared = threads > 1 ? kernel.floats(call, threads) : 0;
    float *block = memory.of(solo * threads + shared);
    if (!block) return NO_MEMORY;
    if (threads == 1) {
        kernel.work(call, {0, 1}, block, nullptr);
    } else {
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
        {
            const int rank = omp_get_thread_num();
            kernel.work(call, {rank, omp_get_num_threads()}, block + rank * solo, block + threads * solo);
        }
#endif
    }
    memory.release();
    return DONE;
}

}  // namespace

// The version of this interface: library.py refuses another number, and a library that does not match its checksum.
PUBLIC int clearhead_abi() { return 4; }
PUBLIC int clearhead_instructions() { return supported(); }
PUBLIC int clearhead_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}

PUBLIC int clearhead_forward(const Forward *call, int instructions) { return run(*call, instructions, &Variant::forward); }
PUBLIC int clearhead_backward(const Backward *call, int instructions) { return run(*call, instructions, &Variant::backward); }
PUBLIC int clearhead_pursuit(const Pursuit *call, int instructions) { return run(*call, instructions, &Variant::pursuit); }
PUBLIC int clearhead_pursuit_backward(const PursuitBackward *call, int instructions) {
    return run(*call, instructions, &Variant::pursuit_backward);
}
PUBLIC int clearhead_spans(const Spans *call, int instructions) { return run(*call, instructions, &Variant::spans); }
