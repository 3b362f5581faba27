// Matrix products of tiles that are in cache, in blocks of rows by vectors that stay in registers.
#pragma once

#include "upcoming.h"
#include "vector.h"

namespace {

// Block size that fits the registers: 32 with 16 lanes, otherwise 16.
constexpr int ROWS = 6, VECTORS = LANES == 16 ? 4 : 2;

// Layout of the left factor: element (row, step) at [row + step * stride], or at [row * stride + step].
enum class Left { ROWS_ADJACENT, STEPS_ADJACENT };

// The part of a product that is computed. With a triangular left factor, steps outside of the triangle are skipped, to
// whole blocks: its other entries up to 2 ROWS from the diagonal must be zero.
enum class Part { ALL, TARGET_BELOW, LEFT_BELOW, LEFT_ABOVE };

struct Operands {
    const float *a;
    int64_t a_apart;
    const float *b;  // steps by columns, columns adjacent
    int64_t b_apart;
    int64_t steps;
};

// What becomes of a block of the product: it replaces the target, ...
struct Store {
    float *target;
    int64_t apart;

    template <int R, int V>
    __attribute__((always_inline)) void take(vec (&block)[R][V], int64_t row, int64_t column) const {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) store(target + (row + r) * apart + column + v * LANES, block[r][v]);
    }
};

// ... or is added to it once at the end, so that the rounding error of a long sum is that of a sum over tiles.
struct Sum {
    float *target;
    int64_t apart;

    template <int R, int V>
    __attribute__((always_inline)) void take(vec (&block)[R][V], int64_t row, int64_t column) const {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                float *at = target + (row + r) * apart + column + v * LANES;
                store(at, load(at) + block[r][v]);
            }
    }
};

template <Left LEFT, int R, int V, typename Into>
__attribute__((always_inline)) inline void block(Operands o, int64_t row, int64_t column, Part part, const Into &into) {
    vec total[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) total[r][v] = vec{};
    const float *a = o.a + (LEFT == Left::ROWS_ADJACENT ? row : row * o.a_apart);
    const float *b = o.b + column;
    const int64_t start = part == Part::LEFT_ABOVE ? row : 0;
    const int64_t end = part == Part::LEFT_BELOW && row + R < o.steps ? row + R : o.steps;
    a += LEFT == Left::ROWS_ADJACENT ? start * o.a_apart : start;
    b += start * o.b_apart;
    for (int64_t s = start; s < end; ++s) {
        vec right[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) right[v] = load(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float left = LEFT == Left::ROWS_ADJACENT ? a[r] : a[r * o.a_apart];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) total[r][v] += left * right[v];
        }
        a += LEFT == Left::ROWS_ADJACENT ? o.a_apart : 1;
        b += o.b_apart;
    }
    into.take(total, row, column);
}

template <Left LEFT, int V, typename Into>
inline void last_rows(Operands o, int64_t row, int64_t rows, int64_t column, Part part, const Into &into) {
    switch (rows) {
        case 5: return block<LEFT, 5, V>(o, row, column, part, into);
        case 4: return block<LEFT, 4, V>(o, row, column, part, into);
        case 3: return block<LEFT, 3, V>(o, row, column, part, into);
        case 2: return block<LEFT, 2, V>(o, row, column, part, into);
        case 1: return block<LEFT, 1, V>(o, row, column, part, into);
    }
}

template <Left LEFT, int V, typename Into>
inline void stripe(Operands o, int64_t from, int64_t rows, int64_t column, Part part, const Into &into, Upcoming &next) {
    int64_t row = from;
    if (V == 1)  // twice the rows, for as many parallel sums
        for (; row + 2 * ROWS <= rows; row += 2 * ROWS) {
            next.fetch();
            block<LEFT, 2 * ROWS, V>(o, row, column, part, into);
        }
    for (; row + ROWS <= rows; row += ROWS) {
        next.fetch();
        block<LEFT, ROWS, V>(o, row, column, part, into);
    }
    last_rows<LEFT, V>(o, row, rows - row, column, part, into);
}

// Computes rows by columns of a b, columns rounded up to whole vectors. With TARGET_BELOW, skips blocks above the diagonal.
template <Left LEFT, typename Into>
__attribute__((noinline)) void product(Operands o, int64_t rows, int64_t columns, const Into &into, Part part = Part::ALL) {
    int64_t column = 0;
    Upcoming &next = upcoming;  // one lookup of the thread's memory for many blocks
    const auto first = [&] { return part == Part::TARGET_BELOW ? column : 0; };
    // Narrow blocks leave out more of what is above the diagonal.
    const bool narrow = VECTORS > 2 && part == Part::TARGET_BELOW;
    for (; !narrow && column + VECTORS * LANES <= columns; column += VECTORS * LANES)
        stripe<LEFT, VECTORS>(o, first(), rows, column, part, into, next);
    if (VECTORS > 2 && !narrow)
        for (; column + 2 * LANES <= columns; column += 2 * LANES) stripe<LEFT, 2>(o, first(), rows, column, part, into, next);
    for (; column < columns; column += LANES) stripe<LEFT, 1>(o, first(), rows, column, part, into, next);
}

}  // namespace
