// The C interface: structures filled in by Python and passed to each variant of the kernel.
#pragma once

#include <stdint.h>

extern "C" {

// (batch, heads, tokens, width): the last axis is contiguous; steps are in floats.
struct View {
    float *data;
    int64_t batch_step, head_step, token_step;
};

struct Sizes {
    int64_t batch, heads, tokens, key_width, value_width;
};

// Arguments of all four calls of attention.
struct Call {
    Sizes sizes;
    float scale;
    int32_t threads;
    int32_t causal;  // 1: a token sees itself and earlier tokens only
    View k, v, out;
    const uint8_t *visible;  // (batch, tokens): 1 for visible tokens; null: all are
    // Outputs for the gradient, (iterations, batch, heads, tokens) and (iterations, batch, heads); null: not needed.
    // `by_row` is 1 for heads computed row by row, and their `totals` are base-2 logarithms of the rows' divisors; for other
    // heads `totals` are the divisors, times factors that cancel.
    float *totals;
    uint8_t *by_row;
};

struct Forward : Call {};

struct Backward : Call {
    View out_gradient, k_gradient, v_gradient;
};

// Iterations of principal attention pursuit, all in one call:
//   z = k - l + u;  c = clamp(z, +-threshold of the token);  q = l - pull u + c;  l <- attention(q, q, v);  u <- c + l before - l after
struct Pursuit : Call {
    int64_t iterations;
    float pull;
    const float *thresholds;  // (batch, heads, tokens)
    float *between;           // (iterations - 1, batch, heads, tokens, width): all l but the last; null: not stored
};

struct PursuitBackward : Pursuit {
    View out_gradient, k_gradient, v_gradient;
    float *threshold_gradients;  // (batch, heads, tokens)
};

// Energies of keys in spans of values (see span.h).
struct Spans {
    int64_t heads, draws, width, tokens;
    int32_t threads;
    const double *values;  // (heads, draws, width, tokens): tokens are adjacent
    int64_t head_step, draw_step, value_step;
    const double *kernels;            // (heads, tokens, tokens)
    const double *lengths, *factors;  // (heads, tokens)
    double *energies;                 // (heads, draws)
    double *pivots;  // (heads, draws): the least squared pivot relative to the diagonal; 0: no energy
};
}

// The members of a team, one thread each, work on one head together.
struct Team {
    int rank, size;
};

template <typename Kind>
struct Kernel {
    int64_t (*floats)(const Kind &, int members);  // memory for one head and a team of this size
    void (*work)(const Kind &, Team, float *solo, float *shared);
};

struct Variant {
    Kernel<Forward> forward;
    Kernel<Backward> backward;
    Kernel<Pursuit> pursuit;
    Kernel<PursuitBackward> pursuit_backward;
    Kernel<Spans> spans;
};
