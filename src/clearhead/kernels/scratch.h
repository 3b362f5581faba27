// Memory for intermediate results.
#pragma once

#include "vector.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

// Poisons the gaps between pieces for the address sanitizer; each member of a team does the same.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t BETWEEN_PIECES = 64;
inline void poison_gap(float *piece, int64_t floats, int64_t with_gap) {
    if (!piece) return;
    ASAN_UNPOISON_MEMORY_REGION(piece, sizeof(float) * floats);
    ASAN_POISON_MEMORY_REGION(piece + floats, sizeof(float) * (with_gap - floats));
}
#else
constexpr int64_t BETWEEN_PIECES = 0;
inline void poison_gap(float *, int64_t, int64_t) {}
#endif

// Allocates pieces of a block; without a block it only counts the floats needed.
class Scratch {
    float *block;

  public:
    int64_t used = 0;
    explicit Scratch(float *from) : block(from) {}
    float *take(int64_t floats) {
        float *piece = block ? block + used : nullptr;
        const int64_t with_gap = up_to(floats, 16) + BETWEEN_PIECES;
        poison_gap(piece, floats, with_gap);
        used += with_gap;
        return piece;
    }
};

// One buffer of sums per member of a team, contiguous.
class Sums {
    float *first;
    int64_t size, members;

  public:
    Sums(Scratch &scratch, int64_t floats, int team) : size(up_to(floats, 16)), members(team) {
        first = scratch.take(size * members);
    }
    float *of(int member) const { return first + member * size; }
    float *cleared(int member) const { return (float *)memset(of(member), 0, sizeof(float) * size); }
    float one_over_members(int64_t at) const {
        float total = first[at];
        for (int64_t member = 1; member < members; ++member) total += first[member * size + at];
        return total;
    }
    vec over_members(int64_t at) const {
        vec total = load(first + at);
        for (int64_t member = 1; member < members; ++member) total += load(first + member * size + at);
        return total;
    }
};

}  // namespace
