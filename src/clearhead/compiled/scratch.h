// Memory for intermediate results.
#pragma once

#include "vector.h"

namespace {

// Hands out pieces of a block; without a block it only counts what would be needed.
class Scratch {
    float *block;

  public:
    int64_t used = 0;
    explicit Scratch(float *from) : block(from) {}
    float *take(int64_t floats) {
        float *piece = block ? block + used : nullptr;
        used += up_to(floats, 16);
        return piece;
    }
};

// Sums that each member of a team adds up alone, the members' one after the other.
class Sums {
    float *first;
    int64_t size, members;

  public:
    Sums(Scratch &scratch, int64_t floats, int team) : size(up_to(floats, 16)), members(team) {
        first = scratch.take(size * members);
    }
    float *of(int member) const { return first + member * size; }
    float *cleared(int member) const { return (float *)memset(of(member), 0, sizeof(float) * size); }
    vec over_members(int64_t at) const {
        vec total = load(first + at);
        for (int64_t member = 1; member < members; ++member) total += load(first + member * size + at);
        return total;
    }
};

}  // namespace
