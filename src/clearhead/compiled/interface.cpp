// What Python calls. Plain C, compiled for the machine's baseline: code here runs before the processor is known.

#define EXPORT extern "C" __attribute__((visibility("default")))

// Raised whenever a function here changes what it takes or gives; library.py holds the number that it expects.
EXPORT int clearhead_abi() { return 1; }

// Sets of instructions that this library was built for and that this processor has: 1 generic, 2 avx2, 4 avx512.
EXPORT int clearhead_instructions() {
    int sets = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
#ifdef CLEARHEAD_HAS_AVX2
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2) sets |= 2;
#ifdef CLEARHEAD_HAS_AVX512
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        sets |= 4;
#endif
#endif
#endif
    return sets;
}

EXPORT int clearhead_openmp() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
