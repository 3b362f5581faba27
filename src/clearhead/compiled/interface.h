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
    float *totals;        // (iterations, batch, heads, tokens): what each row was divided by
    // (batch, heads): set to 1 where the numbers' range is too wide, and what was written there is meaningless. A head
    // that is refused before a backward call is left alone.
    uint8_t *refused;
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
