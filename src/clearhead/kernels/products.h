// Matrix products of tiles that are in cache, in blocks of rows by vectors that stay in registers.
#pragma once

#include "upcoming.h"
#include "vector.h"

namespace {

// Block size that fits the registers: 32 with 16 lanes, otherwise 16.
constexpr int ROWS = 6, VECTORS = LANES == 16 ? 4 : 2;

// Layout of the left factor: element (row, step) at [row + step * stride], or at [row * stride + step].
enum class Left { ROWS_ADJACENT, STEPS_ADJACENT };

// The product replaces the target, or is added to it once at the end, so that the rounding error of a long sum is that of
// a sum over tiles.
enum class Into { STORE, SUM };

// The part of a product that is computed. With a triangular left factor, steps outside of the triangle are skipped, to
// whole blocks: its other entries up to 2 ROWS from the diagonal must be zero.
enum class Part { ALL, TARGET_BELOW, LEFT_BELOW, LEFT_ABOVE };

struct Operands {
    const float *a;
    int64_t a_apart;
    const float *b;  // steps by columns, columns adjacent
    int64_t b_apart;
    float *c;
    int64_t c_apart;
    int64_t steps;
};

template <Left LEFT, Into INTO, int R, int V>
__attribute__((always_inline)) inline void block(Operands o, int64_t row, int64_t column, Part part) {
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
    float *c = o.c + row * o.c_apart + column;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            float *at = c + r * o.c_apart + v * LANES;
            store(at, INTO == Into::SUM ? load(at) + total[r][v] : total[r][v]);
        }
}

template <Left LEFT, Into INTO, int V>
inline void last_rows(Operands o, int64_t row, int64_t rows, int64_t column, Part part) {
    switch (rows) {
        case 5: return block<LEFT, INTO, 5, V>(o, row, column, part);
        case 4: return block<LEFT, INTO, 4, V>(o, row, column, part);
        case 3: return block<LEFT, INTO, 3, V>(o, row, column, part);
        case 2: return block<LEFT, INTO, 2, V>(o, row, column, part);
        case 1: return block<LEFT, INTO, 1, V>(o, row, column, part);
    }
}

template <Left LEFT, Into INTO, int V>
inline void stripe(Operands o, int64_t from, int64_t rows, int64_t column, Part part) {
    int64_t row = from;
    Upcoming &next = upcoming;  // one lookup of the thread's memory for many blocks
    if (V == 1)  // twice the rows, for as many parallel sums
        for (; row + 2 * ROWS <= rows; row += 2 * ROWS) {
            next.fetch();
            block<LEFT, INTO, 2 * ROWS, V>(o, row, column, part);
        }
    for (; row + ROWS <= rows; row += ROWS) {
        next.fetch();
        block<LEFT, INTO, ROWS, V>(o, row, column, part);
    }
    last_rows<LEFT, INTO, V>(o, row, rows - row, column, part);
}

// Computes rows by columns of a b, columns rounded up to whole vectors. With TARGET_BELOW, skips blocks above the diagonal.
template <Left LEFT, Into INTO>
__attribute__((noinline)) void product(Operands o, int64_t rows, int64_t columns, Part part = Part::ALL) {
    int64_t column = 0;
    const auto first = [&] { return part == Part::TARGET_BELOW ? column : 0; };
    // Narrow blocks leave out more of what is above the diagonal.
    const bool narrow = VECTORS > 2 && part == Part::TARGET_BELOW;
    for (; !narrow && column + VECTORS * LANES <= columns; column += VECTORS * LANES)
        stripe<LEFT, INTO, VECTORS>(o, first(), rows, column, part);
    if (VECTORS > 2 && !narrow)
        for (; column + 2 * LANES <= columns; column += 2 * LANES) stripe<LEFT, INTO, 2>(o, first(), rows, column, part);
    for (; column < columns; column += LANES) stripe<LEFT, INTO, 1>(o, first(), rows, column, part);
}

}  // namespace
