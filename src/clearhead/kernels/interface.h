// The plain C interface: what Python fills in, and what every variant of the kernel takes.
#pragma once

#include <stdint.h>

extern "C" {

// (batch, heads, tokens, width): the numbers of a token lie side by side; steps are counted in floats.
struct View {
    float *data;
    int64_t batch_step, head_step, token_step;
};

struct Sizes {
    int64_t batch, heads, tokens, key_width, value_width;
};

// What all four calls have in common.
struct Call {
    Sizes sizes;
    float scale;
    int32_t threads;
    View k, v, out;
    const uint8_t *seen;  // (batch, tokens): which tokens may be looked at; null: all
    // What the gradient will ask for, (iterations, batch, heads, tokens) and (iterations, batch, heads); null: nothing.
    // Heads whose numbers spread widely are computed row by row, `plain` is 1 for them, and `totals` are the logarithms,
    // in bits, of what rows were divided by; for all others the totals themselves, times the factors that cancel.
    float *totals;
    uint8_t *plain;
};

struct Forward : Call {};

struct Backward : Call {
    View out_gradient, k_gradient, v_gradient;
};

// Iterations of principal attention pursuit, all in one call:
//   z = k - l + u;  c = clamp(z, +-threshold);  q = l - pull u + c;  l <- attention(q, q, v);  u <- c + l before - l after
struct Pursuit : Call {
    int64_t iterations;
    float pull;
    const float *thresholds;  // (batch, heads)
    float *between;           // (iterations - 1, batch, heads, tokens, width): every l but the last; null: not kept
};

struct PursuitBackward : Pursuit {
    View out_gradient, k_gradient, v_gradient;
    float *threshold_gradients;  // (batch, heads)
};
}

// Members of one team work on one head together; a team of one needs nobody.
struct Team {
    int rank, size;
};

template <typename Kind>
struct Kernel {
    int64_t (*floats)(const Kind &, int members);  // of memory for one head and a team of so many
    void (*work)(const Kind &, Team, float *solo, float *shared);
};

struct Variant {
    Kernel<Forward> forward;
    Kernel<Backward> backward;
    Kernel<Pursuit> pursuit;
    Kernel<PursuitBackward> pursuit_backward;
};
