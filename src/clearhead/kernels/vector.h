// Vectors of floats, mapped by the compiler to the registers of the variant, and 2^x on them.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace {

// CLEARHEAD_LANES lets the widest code be tested on processors without such registers.
#if defined(CLEARHEAD_LANES)
constexpr int LANES = CLEARHEAD_LANES;
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));

// Not memcpy: a store of bytes may change anything, so that sizes and pointers would be read again after it.
typedef float unaligned_vec __attribute__((vector_size(LANES * 4), aligned(4)));

inline vec load(const float *at) { return *(const unaligned_vec *)at; }

inline void store(float *at, vec x) { *(unaligned_vec *)at = x; }

// Loads the first `count` lanes, at most all; the others are zero.
inline vec load_some(const float *at, int64_t count) {
    if (count >= LANES) return load(at);
    vec x = vec{};
    for (int64_t lane = 0; lane < count; ++lane) x[lane] = at[lane];
    return x;
}

inline void store_some(float *at, vec x, int64_t count) {
    if (count >= LANES) return store(at, x);
    const vec copied = x;  // so that x itself need not be in memory
    for (int64_t lane = 0; lane < count; ++lane) at[lane] = copied[lane];
}

// Returns the first `count` lanes of x; the others are zero.
inline vec first_lanes(vec x, int64_t count) {
    ivec lane;
    for (int at = 0; at < LANES; ++at) lane[at] = at;
    return lane < (int32_t)(count < LANES ? count : LANES) ? x : vec{};
}

inline vec all(float x) { return x - vec{}; }

typedef float quad __attribute__((vector_size(16)));

inline float sum(vec x) {
    quad parts[LANES / 4], total = {};
    memcpy(parts, &x, sizeof x);
    for (quad part : parts) total += part;
    return (total[0] + total[1]) + (total[2] + total[3]);
}

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define PICK(x, y, a, b, c, d) __builtin_shuffle(x, y, (int32_t __attribute__((vector_size(16)))){a, b, c, d})
#endif

// Transposes a 4 x 4 block.
inline void transpose_quads(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    quad row[4];
    for (int r = 0; r < 4; ++r) memcpy(&row[r], from + r * from_stride, sizeof(quad));
    const quad ab_low = PICK(row[0], row[1], 0, 4, 1, 5), ab_high = PICK(row[0], row[1], 2, 6, 3, 7);
    const quad cd_low = PICK(row[2], row[3], 0, 4, 1, 5), cd_high = PICK(row[2], row[3], 2, 6, 3, 7);
    const quad column[4] = {PICK(ab_low, cd_low, 0, 1, 4, 5), PICK(ab_low, cd_low, 2, 3, 6, 7),
                            PICK(ab_high, cd_high, 0, 1, 4, 5), PICK(ab_high, cd_high, 2, 3, 6, 7)};
    for (int c = 0; c < 4; ++c) memcpy(to + c * to_stride, &column[c], sizeof(quad));
}

inline float largest(vec x) {
    float most = x[0];
    for (int lane = 1; lane < LANES; ++lane) most = x[lane] > most ? x[lane] : most;
    return most;
}

constexpr int64_t up_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Exponentials are multiplied by 2^LIFT, so that numbers far below the largest keep all their bits.
constexpr int LIFT = 30;
constexpr float LIFTED = 1 << LIFT;
// Below 2^FLOOR the exponential is constant: a weight under 2^-150 of the row's own.
constexpr float FLOOR = -150;

// 2^(n + f) for |f| <= 1/2: 2^f by the polynomial of least relative error (1.6e-8 with these rounded coefficients); n, the low
// bits of `moved`, is added to the exponent's bits.
inline vec exp2_near_zero(vec f, vec moved) {
    vec p = f * 0.000153458124f + 0.00133999309f;
    p = p * f + 0.00961848907f;
    p = p * f + 0.0555032864f;
    p = p * f + 0.240226462f;
    p = p * f + 0.693147182f;
    p = p * f + 1.0f;
    return (vec)((uvec)p + ((uvec)moved << 23));  // unsigned: out of range the result is arbitrary but defined
}

// 2^(x + LIFT) for FLOOR <= x < 90, to one unit in the last place. NaN stays NaN. Without FLOORED, no x may be below the floor.
template <bool FLOORED = true>
inline vec lifted_exp2(vec x) {
    if (FLOORED) x = x < FLOOR ? all(FLOOR) : x;
    const float shift = 12582912.0f + LIFT;  // 1.5 * 2^23: adding rounds to an integer in the low bits
    vec moved = x + shift;
    return exp2_near_zero(x - (moved - shift), moved);
}

// 2^(bits x + lift) of numbers x that are multiplied by the same factor, for results from 2^-120 to 2^120, to one unit in the
// last place. NaN stays NaN.
#if defined(__AVX512F__) && (!defined(CLEARHEAD_LANES) || CLEARHEAD_LANES == 16)
// In 32nds: bits x = n/32 + f, |f| <= 1/64, 2^(n/32) from a table, 2^f by the polynomial of least relative error (5.3e-8, but as
// often above as below), n added to the bits.
class Exp2 {
    const float bits;
    vec low, high;  // the table, the bits that come with n subtracted

  public:
    Exp2(float bits_per_unit, int lift) : bits(bits_per_unit) {
        static constexpr float table[2 * LANES] = {
            1.0f, 1.0218972f, 1.04427373f, 1.06714046f, 1.09050775f, 1.1143868f, 1.13878858f, 1.1637249f,
            1.18920708f, 1.21524739f, 1.24185777f, 1.26905096f, 1.29683959f, 1.32523668f, 1.35425556f, 1.38390994f,
            1.41421354f, 1.44518077f, 1.47682619f, 1.50916445f, 1.54221082f, 1.5759809f, 1.61049032f, 1.64575553f,
            1.68179286f, 1.71861935f, 1.75625217f, 1.79470909f, 1.8340081f, 1.87416768f, 1.91520655f, 1.95714414f
        };
        uvec entry[2];
        memcpy(entry, table, sizeof table);
        for (int at = 0; at < 2 * LANES; ++at)
            entry[at / LANES][at % LANES] += ((uint32_t)lift << 23) - ((uint32_t)at << 18);
        low = (vec)entry[0], high = (vec)entry[1];
    }

    vec operator()(vec x) const {
        const float shift = 0x1.8p18f;  // adding rounds to 32nds in the low bits
        const vec moved = x * bits + shift;
        const vec f = x * bits - (moved - shift);
        const uvec entry = (uvec)_mm512_permutex2var_ps((__m512)low, (__m512i)moved, (__m512)high);
        const vec power = (vec)(entry + ((uvec)moved << 18));
        return power + (power * f) * (f * 0.240228862f + 0.693157315f);
    }
};
#else
class Exp2 {
    const float bits, shift;

  public:
    Exp2(float bits_per_unit, int lift) : bits(bits_per_unit), shift(12582912.0f + (float)lift) {}

    vec operator()(vec x) const {
        const vec moved = x * bits + shift;
        return exp2_near_zero(x * bits - (moved - shift), moved);
    }
};
#endif

// Flushes denormal numbers to zero in this thread during its lifetime: they cost a hundred cycles each.
class NoDenormals {
#if defined(__SSE__)
    unsigned before = _mm_getcsr();

  public:
    NoDenormals() { _mm_setcsr(before | 0x8040); }
    ~NoDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

  public:
    NoDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" ::"r"(before | (1u << 24)));
    }
    ~NoDenormals() { asm volatile("msr fpcr, %0" ::"r"(before)); }
#else
  public:
    NoDenormals() {}
    ~NoDenormals() {}
#endif
    NoDenormals(const NoDenormals &) = delete;
};

}  // namespace
