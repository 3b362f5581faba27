// One head cut into tiles of tokens: its keys, the weights of their norms, and the scores of pairs of tiles.
#pragma once

#include <math.h>

#include "interface.h"
#include "products.h"
#include "scratch.h"

namespace {

constexpr int64_t LARGEST_TILE = 96;
constexpr int64_t TILES_HELD = 4;  // tiles that stay in cache while the others are read
constexpr int64_t AHEAD = 8;       // rows prefetched before they are read
// A head is computed row by row if the keys' c spread by more bits than this (75 nats), ...
constexpr float WIDEST = 108.2f;
// ... or c is so large that tokens attend to little but themselves, which is exact row by row, ...
constexpr float LARGEST_HALF = 256;
// ... or a value is larger than this (sums of thousands of 2^84 times it would overflow), ...
constexpr float LARGEST_VALUE = 0x1p28f;
// ... or the total of a row, which may be hidden from itself, is smaller than this, ...
constexpr float LEAST_TOTAL = 0x1p-70f;
// ... or smaller than this factor times the sum of exponentials at their floor, ...
constexpr float ABOVE_FLOOR = 0x1p24f;
// ... or the largest value or gradient times the least weight is smaller than this: smaller ones would be lost.
constexpr float LEAST_PRODUCT = 0x1p-90f;
// If no c is larger than this, no exponential is at its floor: |k_i - k_j|^2 <= 2 |k_i|^2 + 2 |k_j|^2.
constexpr float NEVER_AT_FLOOR = -FLOOR / 4 - 0.5f;

// If no c is larger than this and no token is hidden, `middle` takes the place of every c. Exponentials then lie between about
// 2^(-4 times this) and 2^(this), so that no floor is needed.
constexpr float LARGEST_UNIFORM = 24;

constexpr double LOG2_E = 1.4426950408889634;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline void wait_for(Team team) {
    if (team.size > 1) {
#pragma omp barrier
    }
}

// n tokens in tiles of one size, a multiple of the vector size. The last tile may be shorter.
struct Tiling {
    int64_t n, size, count, padded;

    explicit Tiling(int64_t tokens) : n(tokens) {
        const int64_t fewest = (n + LARGEST_TILE - 1) / LARGEST_TILE;
        size = fewest ? up_to((n + fewest - 1) / fewest, LANES) : LANES;
        count = (n + size - 1) / size;
        padded = count * size;
    }
    int64_t tokens(int64_t tile) const { return smaller(n - tile * size, size); }

    // Calls `work` on the tiles whose rows this member prepares and finishes, ...
    template <typename Work>
    void for_own_tiles(Team team, Work work) const {
        for (int64_t tile = team.rank; tile < count; tile += team.size) work(tile);
    }
    // ... on their tokens, ...
    template <typename Work>
    void for_own_tokens(Team team, Work work) const {
        for_own_tiles(team, [&](int64_t tile) {
            for (int64_t token = tile * size; token < tile * size + tokens(tile); ++token) work(token);
        });
    }
    // ... on this member's pairs of tiles, each unordered pair once, the later tile first: the last one may be short, and
    // columns are padded where rows are not, ...
    template <typename Work>
    void for_own_pairs(Team team, Work work) const {
        int64_t block = 0;
        for (int64_t held = 0; held < count; held += TILES_HELD)
            for (int64_t second = held; second < count; ++second, ++block) {
                if (block % team.size != team.rank) continue;
                const int64_t end = smaller(held + TILES_HELD, second + 1);
                for (int64_t first = held; first < end; ++first) work(second, first);
            }
    }
    // ... or on this member's pairs of a tile of queries and one of keys that its queries see, the same or an earlier one.
    template <typename Work>
    void for_own_causal_pairs(Team team, Work work) const {
        int64_t block = 0;
        for (int64_t held = 0; held < count; held += TILES_HELD) {
            const int64_t end = smaller(held + TILES_HELD, count);
            for (int64_t key = 0; key < end; ++key, ++block) {
                if (block % team.size != team.rank) continue;
                for (int64_t query = held > key ? held : key; query < end; ++query) work(query, key);
            }
        }
    }
};

// Rows of one head.
struct Rows {
    float *data;
    int64_t step;
    float *operator[](int64_t token) const { return data + token * step; }
};

inline Rows rows_of(const View &view, int64_t batch, int64_t head) {
    if (!view.data) return {nullptr, 0};  // an empty tensor has no address
    return {view.data + batch * view.batch_step + head * view.head_step, view.token_step};
}

// Prefetches rows that will be read soon: the processor does not predict their strides.
inline void prefetch(Rows rows, int64_t from, int64_t to, int64_t n, int64_t width) {
    for (int64_t token = from; token < smaller(to, n); ++token)
        for (int64_t d = 0; d < width; d += 16) __builtin_prefetch(rows[token] + d);
}

// Transposes a tile (tokens, width): tokens adjacent, missing tokens of the last tile zero.
inline void transpose(Rows rows, const Tiling &tiling, int64_t tile, int64_t width, float *to) {
    const int64_t n = tiling.n, size = tiling.size, from = tile * size, tokens = tiling.tokens(tile);
    const int64_t whole = tokens / 4 * 4, wide = width / 4 * 4;
    prefetch(rows, from, from + AHEAD, n, width);
    for (int64_t token = 0; token < whole; token += 4) {
        prefetch(rows, from + token + AHEAD, from + token + AHEAD + 4, n, width);
        for (int64_t d = 0; d < wide; d += 4)
            transpose_quads(rows[from + token] + d, rows.step, to + d * size + token, size);
        for (int64_t d = wide; d < width; ++d)
            for (int64_t t = token; t < token + 4; ++t) to[d * size + t] = rows[from + t][d];
    }
    for (int64_t d = 0; d < width; ++d) {
        for (int64_t token = whole; token < tokens; ++token) to[d * size + token] = rows[from + token][d];
        for (int64_t token = tokens; token < size; ++token) to[d * size + token] = 0;
    }
}

// Dot products of the tokens of two transposed tiles. Rows are padded to whole vectors.
template <typename Into>
inline void dots(const float *left, const float *right, int64_t width, const Tiling &tiling, int64_t first, int64_t second,
                 const Into &into) {
    const int64_t size = tiling.size, rows = tiling.tokens(first), columns = tiling.tokens(second);
    product<Left::ROWS_ADJACENT>({left, size, right, size, width}, rows, columns, into);
}

// The same, but of a tile with itself only (i, j) with i >= j, up to whole vectors.
template <typename Into>
inline void dots_once(const float *left, const float *right, int64_t width, const Tiling &tiling, int64_t first,
                      int64_t second, const Into &into) {
    if (first != second) return dots(left, right, width, tiling, first, second, into);
    const int64_t size = tiling.size, rows = up_to(tiling.tokens(first), 4);  // missing tokens are zeros
    product<Left::ROWS_ADJACENT>({left, size, right, size, width}, rows, rows, into, Part::TARGET_BELOW);
}

// Copies numbers of a tile with itself from below the diagonal to above it.
inline void mirror(const Tiling &tiling, int64_t tile, float *weights) {
    const int64_t size = tiling.size;
    for (int64_t i = 0; i < tiling.tokens(tile); i += 4)
        for (int64_t j = 0; j <= i; j += 4) transpose_quads(weights + i * size + j, size, weights + j * size + i, size);
}

// Adds to each tile's sums the rows of the other, weighted by a tile (rows of the first, columns of the second).
inline void exchange(const float *weights, Rows from, const Tiling &tiling, int64_t first, int64_t second, float *to,
                     int64_t stride) {
    const int64_t size = tiling.size, rows = tiling.tokens(first), columns = tiling.tokens(second);
    const float *from_i = from[first * size], *from_j = from[second * size];
    float *to_i = to + first * size * stride, *to_j = to + second * size * stride;
    product<Left::STEPS_ADJACENT>({weights, size, from_j, from.step, columns}, rows, stride, Sum{to_i, stride});
    if (first != second)
        product<Left::ROWS_ADJACENT>({weights, size, from_i, from.step, rows}, columns, stride, Sum{to_j, stride});
}

// How exponentials G_ij of a head are computed: from scores with c_i and c_j subtracted, with or without a floor, or, if all c
// are small, with one number for all of them: then each block of scores is exponentiated before it is stored.
enum class Form { FLOORED, FREE, UNIFORM };

struct Exponentials {
    const Exp2 exp2;
    float *target;
    int64_t apart;

    template <int R, int V>
    __attribute__((always_inline)) void take(vec (&block)[R][V], int64_t row, int64_t column) const {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) block[r][v] = exp2(block[r][v]);
        Store{target, apart}.take(block, row, column);
    }
};

struct Keys {
    const Tiling tiling;
    const int64_t width;
    const float bits;     // exponent per unit of a dot product of two keys, base 2
    float *across;        // keys in transposed tiles
    float *c;             // bits |k|^2 / 2: exponents of factors that cancel
    float *weight;        // 2^(c - middle), 0 for hidden tokens
    float *least, *most;  // of c over the visible tokens of a tile; infinity and -infinity if no token is visible
    float middle = 0, least_weight = 1, least_total = LEAST_TOTAL;
    bool any_visible = false, too_wide = false;
    bool floored = true;  // some exponentials may be at their floor
    bool uniform = false;  // every c is taken to be `middle`, and every weight 1
    int64_t sees_from = 0;  // the first token that sees a key, also if it is hidden itself

    Keys(Scratch &scratch, const Tiling &tiles, int64_t key_width, float scale)
        : tiling(tiles),
          width(key_width),
          bits((float)(scale * LOG2_E)),
          across(scratch.take(tiling.padded * width)),
          c(scratch.take(tiling.padded)),
          weight(scratch.take(tiling.padded)),
          least(scratch.take(tiling.count)),
          most(scratch.take(tiling.count)) {}

    void pack(Rows k, const uint8_t *visible, int64_t tile) {
        const int64_t size = tiling.size;
        float *transposed = across + tile * size * width, *half = c + tile * size;
        transpose(k, tiling, tile, width, transposed);
        for (int64_t at = 0; at < size; at += LANES) {
            vec square = vec{};
            for (int64_t d = 0; d < width; ++d) {
                const vec x = load(transposed + d * size + at);
                square += x * x;
            }
            store(half + at, square * (0.5f * bits));
        }
        float low = INFINITY, high = -INFINITY;
        bool finite = true;
        for (int64_t token = 0; token < tiling.tokens(tile); ++token) {
            if (visible && !visible[tile * size + token]) continue;
            finite = finite && half[token] < INFINITY;
            low = half[token] < low ? half[token] : low;
            high = half[token] > high ? half[token] : high;
        }
        least[tile] = finite ? low : 0;
        most[tile] = finite ? high : INFINITY;
    }

    // Call after all tiles are packed. Each member computes the same.
    void find_range(const uint8_t *visible, bool causal) {
        float low = INFINITY, high = -INFINITY;
        for (int64_t tile = 0; tile < tiling.count; ++tile) {
            low = least[tile] < low ? least[tile] : low;
            high = most[tile] > high ? most[tile] : high;
        }
        any_visible = low < INFINITY;
        sees_from = any_visible ? 0 : tiling.n;
        while (causal && visible && sees_from < tiling.n && !visible[sees_from]) ++sees_from;
        uniform = !visible && high <= LARGEST_UNIFORM;
        middle = any_visible ? low + (high - low) / 2 : 0;
        if (uniform) middle = rintf(2 * middle) / 2;  // so that it can be added to exponents
        too_wide = any_visible && !(high <= LARGEST_HALF && high - low <= WIDEST);
        floored = visible || !(high <= NEVER_AT_FLOOR);  // the c of hidden tokens are not in the range
        least_weight = any_visible && !uniform ? exp2f(low - middle) : 1;
        const float at_floor = exp2f(FLOOR + LIFT + (high - middle)) * (float)tiling.n;
        least_total = at_floor * ABOVE_FLOOR > LEAST_TOTAL ? at_floor * ABOVE_FLOOR : LEAST_TOTAL;
    }

    // Returns whether numbers up to this size can be weighted.
    bool holds(float largest) const { return largest == 0 || largest * least_weight >= LEAST_PRODUCT; }

    void weigh(const uint8_t *visible, int64_t tile) const {
        if (uniform) return mark(visible, tile);
        for (int64_t at = tile * tiling.size; at < (tile + 1) * tiling.size; at += LANES)
            store(weight + at, lifted_exp2(load(c + at) - middle) * (1 / LIFTED));
        for (int64_t token = tile * tiling.size; token < (tile + 1) * tiling.size; ++token)
            if (token >= tiling.n || (visible && !visible[token])) weight[token] = 0;
    }

    // Sets weights to 1 for visible tokens, 0 for hidden ones.
    void mark(const uint8_t *visible, int64_t tile) const {
        for (int64_t token = tile * tiling.size; token < (tile + 1) * tiling.size; ++token)
            weight[token] = token < tiling.n && (!visible || visible[token]);
    }

    // Those of a tile with itself above the diagonal are undefined.
    template <typename Into>
    void scores(int64_t first, int64_t second, const Into &into) const {
        const int64_t tile = tiling.size * width;
        dots_once(across + first * tile, across + second * tile, width, tiling, first, second, into);
    }

    // 2^(x bits - 2 middle + LIFT): G_ij from the dot product, if every c is `middle`.
    Exp2 uniform_gaussian() const { return Exp2(bits, LIFT - (int)(2 * middle)); }

    // Stores G_ij if UNIFORM, otherwise the scores.
    template <Form FORM>
    void start(int64_t first, int64_t second, float *to) const {
        if (FORM == Form::UNIFORM)
            scores(first, second, Exponentials{uniform_gaussian(), to, tiling.size});
        else
            scores(first, second, Store{to, tiling.size});
    }

    // G_ij from what was stored. In this order close tokens lose no digits: both differences are small.
    template <Form FORM>
    vec gaussian(vec started, float c_i, vec c_j) const {
        if (FORM == Form::UNIFORM) return started;
        return lifted_exp2<FORM == Form::FLOORED>((started * bits - c_i) - c_j);
    }

    // The number that was subtracted from the scores of a token.
    float c_of(int64_t token) const { return uniform ? middle : c[token]; }

    Form form() const { return uniform ? Form::UNIFORM : floored ? Form::FLOORED : Form::FREE; }
};

}  // namespace
