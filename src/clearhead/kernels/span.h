// How much of centred keys lies in the span of values, in double precision, for many values with the same keys:
//   W = V l,   P = W K,   U^T U = W P^T,   C = P f minus the mean of each row,   energy |U^-T C|^2
// with K (tokens, tokens) symmetric, and l and f one factor for each token. What is between stays in cache.
#pragma once

#include <math.h>

#include "interface.h"
#include "scratch.h"

namespace {

constexpr int HALF = LANES / 2;  // doubles in a vector
typedef double wide __attribute__((vector_size(LANES * 4)));

inline wide load_wide(const double *at) {
    wide x;
    memcpy(&x, at, sizeof x);
    return x;
}

inline void store_wide(double *at, wide x) { memcpy(at, &x, sizeof x); }

inline double sum_wide(wide x) {
    double total = 0;
    for (int lane = 0; lane < HALF; ++lane) total += x[lane];
    return total;
}

// Rows and vectors of a block whose sums stay in registers.
constexpr int SPAN_ROWS = LANES == 16 ? 8 : 4, SPAN_VECTORS = 2;

// Sums over steps of left(row, step) right(step, column), for R rows and V vectors of columns.
template <int R, int V>
__attribute__((always_inline)) inline void sum_block(wide (&total)[R][V], const double *left, int64_t left_row,
                                                     int64_t left_step, const double *right, int64_t right_step,
                                                     int64_t steps) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) total[r][v] = wide{};
    for (int64_t s = 0; s < steps; ++s) {
        wide of_step[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) of_step[v] = load_wide(right + v * HALF);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const double factor = left[r * left_row];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) total[r][v] += factor * of_step[v];
        }
        left += left_step;
        right += right_step;
    }
}

// c = a b for a (rows, steps) and b (steps, columns), columns rounded up to whole vectors.
struct WideProduct {
    const double *a;
    int64_t a_apart;
    const double *b;
    int64_t b_apart;
    double *c;
    int64_t c_apart, steps;

    template <int R, int V>
    void block(int64_t row, int64_t column) const {
        wide total[R][V];
        sum_block(total, a + row * a_apart, a_apart, 1, b + column, b_apart, steps);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) store_wide(c + (row + r) * c_apart + column + v * HALF, total[r][v]);
    }

    // With `upper`, blocks below the diagonal are left out.
    template <int V>
    void stripe(int64_t rows, int64_t column, bool upper) const {
        const int64_t end = upper && column + V * HALF < rows ? column + V * HALF : rows;
        int64_t row = 0;
        for (; row + SPAN_ROWS <= end; row += SPAN_ROWS) block<SPAN_ROWS, V>(row, column);
        for (; row < end; ++row) block<1, V>(row, column);
    }

    void compute(int64_t rows, int64_t columns, bool upper) const {
        int64_t column = 0;
        for (; column + SPAN_VECTORS * HALF <= columns; column += SPAN_VECTORS * HALF) stripe<SPAN_VECTORS>(rows, column, upper);
        for (; column < columns; column += HALF) stripe<1>(rows, column, upper);
    }
};

class SpanHead {
    const Spans &call;
    const int64_t e, m, wide_e, wide_m, stride;
    double *kernel;    // K, in rows of whole vectors
    double *factors;   // f, to whole vectors
    double *weighted;  // W
    double *product;   // P
    double *across;    // P, transposed
    double *rows;      // W P^T | C, then U | U^-T C, to whole vectors and one vector more

    static double *doubles(Scratch &scratch, int64_t count) { return (double *)scratch.take(2 * count); }

    void prepare(const double *values, const double *lengths) const {
        for (int64_t i = 0; i < e; ++i)
            for (int64_t j = 0; j < m; ++j) weighted[i * m + j] = values[i * call.value_step + j] * lengths[j];
        WideProduct{weighted, m, kernel, wide_m, product, wide_m, m}.compute(e, m, false);
        for (int64_t j = 0; j < m; ++j) {
            for (int64_t i = 0; i < e; ++i) across[j * wide_e + i] = product[i * wide_m + j];
            for (int64_t i = e; i < wide_e; ++i) across[j * wide_e + i] = 0;
        }
        WideProduct{weighted, m, across, wide_e, rows, stride, m}.compute(e, e, true);
        for (int64_t i = 0; i < e; ++i) {
            double *centred = rows + i * stride + wide_e;
            wide total = wide{};
            for (int64_t j = 0; j < wide_m; j += HALF) {
                const wide x = load_wide(product + i * wide_m + j) * load_wide(factors + j);
                store_wide(centred + j, x);
                total += x;
            }
            const double mean = sum_wide(total) / (double)m;
            for (int64_t j = 0; j < m; ++j) centred[j] -= mean;
            for (int64_t j = m; j < stride - wide_e; ++j) centred[j] = 0;
        }
    }

    // Factors R rows from `first`, and subtracts from them what the rows before explain. Returns the least squared pivot
    // relative to the diagonal of W P^T, 0 if there is none.
    template <int R>
    double eliminate(int64_t first) const {
        constexpr int V = (R + HALF - 1) / HALF;
        double *own = rows + first * stride, block[R][V * HALF], triangle[R][R];
        const auto reduced = [&](auto &total, int64_t column, auto keep) {
            constexpr int vectors = sizeof(total[0]) / sizeof(wide);
            sum_block(total, rows + first, 1, stride, rows + column, stride, first);
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < vectors; ++v)
                    keep(r, v, load_wide(own + r * stride + column + v * HALF) - total[r][v]);
        };
        wide corner[R][V];
        reduced(corner, first, [&](int r, int v, wide x) { store_wide(block[r] + v * HALF, x); });
        double least = INFINITY;
        for (int r = 0; r < R; ++r) {
            for (int q = 0; q < r; ++q)
                for (int j = r; j < R; ++j) block[r][j] -= triangle[q][r] * triangle[q][j];
            const double pivot = block[r][r], relative = pivot / own[r * stride + first + r];
            least = !(relative > 0) ? 0 : relative < least ? relative : least;  // 0 if it is NaN
            const double inverse = pivot > 0 ? 1 / sqrt(pivot) : 0;
            for (int j = r + 1; j < R; ++j) triangle[r][j] = block[r][j] * inverse;
            triangle[r][r] = inverse;
        }
        const auto solve = [&](auto &total, int64_t column) {
            constexpr int vectors = sizeof(total[0]) / sizeof(wide);
            reduced(total, column, [&](int r, int v, wide x) { total[r][v] = x; });
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 16
                    for (int q = 0; q < r; ++q) total[r][v] -= triangle[q][r] * total[q][v];
                    total[r][v] *= triangle[r][r];
                    store_wide(own + r * stride + column + v * HALF, total[r][v]);
                }
        };
        wide total[R][SPAN_VECTORS];
        for (int64_t column = first; column < wide_e + m; column += SPAN_VECTORS * HALF) solve(total, column);
        return least;
    }

  public:
    SpanHead(Scratch &scratch, const Spans &from)
        : call(from),
          e(from.width),
          m(from.tokens),
          wide_e(up_to(e, HALF)),
          wide_m(up_to(m, HALF)),
          stride(wide_e + wide_m + SPAN_VECTORS * HALF),
          kernel(doubles(scratch, m * wide_m)),
          factors(doubles(scratch, wide_m)),
          weighted(doubles(scratch, e * m)),
          product(doubles(scratch, e * wide_m)),
          across(doubles(scratch, m * wide_e)),
          rows(doubles(scratch, e * stride)) {}

    // Call before `run` with the same head.
    void take_keys(int64_t head) const {
        for (int64_t i = 0; i < m; ++i) {
            memcpy(kernel + i * wide_m, call.kernels + (head * m + i) * m, sizeof(double) * m);
            for (int64_t j = m; j < wide_m; ++j) kernel[i * wide_m + j] = 0;
        }
        for (int64_t j = 0; j < wide_m; ++j) factors[j] = j < m ? call.factors[head * m + j] : 0;
    }

    void run(int64_t head, int64_t draw) const {
        prepare(call.values + head * call.head_step + draw * call.draw_step, call.lengths + head * m);
        double least = INFINITY, energy = 0;
        int64_t first = 0;
        const auto done = [&](double found, int count) {
            least = found < least ? found : least;
            first += count;
        };
        while (first + SPAN_ROWS <= e) done(eliminate<SPAN_ROWS>(first), SPAN_ROWS);
        while (first < e) done(eliminate<1>(first), 1);
        for (int64_t i = 0; i < e; ++i) {
            wide total = wide{};
            for (int64_t j = 0; j < wide_m; j += HALF) {
                const wide x = load_wide(rows + i * stride + wide_e + j);
                total += x * x;
            }
            energy += sum_wide(total);
        }
        call.energies[head * call.draws + draw] = energy;
        call.pivots[head * call.draws + draw] = least;
    }
};

}  // namespace
