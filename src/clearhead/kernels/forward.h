// o_i = sum_j G_ij w_j v_j / sum_j G_ij w_j, each G_ij computed once for both of its tokens, or, in causal attention, once for
// the later one. Heads whose scores spread too widely for that are computed row by row, with the largest score of a row
// subtracted.
#pragma once

#include "head.h"
#include "repeats.h"

namespace {

// Stores the exponentials of a block of scores and adds them to the sums of their rows, by lane, and of their columns if they
// are needed.
template <bool COLUMNS>
struct SummedExponentials {
    const Exp2 exp2;
    float *target;
    int64_t apart;
    float *by_lane, *by_column;

    template <int R, int V>
    __attribute__((always_inline)) void take(vec (&block)[R][V], int64_t row, int64_t column) const {
        vec columns[V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            vec total = vec{};
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                const vec x = exp2(block[r][v]);
                store(target + (row + r) * apart + column + v * LANES, x);
                if (COLUMNS) columns[v] = r ? columns[v] + x : x;
                total = v ? total + x : x;
            }
            float *totals = by_lane + (row + r) * LANES;
            store(totals, load(totals) + total);
        }
#pragma GCC unroll 16
        for (int v = 0; COLUMNS && v < V; ++v) {
            float *totals = by_column + column + v * LANES;
            store(totals, load(totals) + columns[v]);
        }
    }
};

class ForwardHead {
    const Sizes &z;
    const bool causal;
    const Tiling tiling;
    const int64_t stride;  // row stride: whole vectors
    Keys keys;
    float *values;            // w v
    float *unreliable;           // by member: 1 if scores spread too widely
    float *repeated;          // 1 if some keys are equal
    Repeats repeats;
    float *largest_values;    // by tile
    Sums g;                   // exponentials of a pair of tiles
    Sums outputs;             // sums of G w v
    Sums by_lane, by_column;  // sums of G w: over the columns of a row by lane; over the rows of a column

    // Stores w v of a tile; returns its largest value, or infinity if one is too large or NaN.
    float weigh_values(Rows v, int64_t tile) {
        const int64_t from = tile * tiling.size;
        ivec small = ~ivec{};
        vec most = vec{};
        prefetch(v, from, from + AHEAD, tiling.n, z.value_width);
        for (int64_t token = from; token < from + tiling.tokens(tile); ++token) {
            prefetch(v, token + AHEAD, token + AHEAD + 1, tiling.n, z.value_width);
            const float weight = keys.weight[token];
            for (int64_t d = 0; d < z.value_width; d += LANES) {
                const vec x = load_some(v[token] + d, z.value_width - d), size = x < 0 ? -x : x;
                small &= size <= LARGEST_VALUE;
                most = size > most ? size : most;
                store(values + token * stride + d, x * weight);
            }
        }
        bool all_small = true;
        for (int lane = 0; lane < LANES; ++lane) all_small = all_small && small[lane];
        return all_small ? largest(most) : INFINITY;
    }

    float largest_of(const float *by_tile) const {
        float most = 0;
        for (int64_t tile = 0; tile < tiling.count; ++tile) most = by_tile[tile] > most ? by_tile[tile] : most;
        return most;
    }

    // Adds sums over the rows of one tile, so that rounding does not grow with the number of tokens.
    void add_to_columns(const float *sums_j, int64_t tile, int member) const {
        float *totals_j = by_column.of(member) + tile * tiling.size;
        for (int64_t j = 0; j < tiling.tokens(tile); j += LANES) store(totals_j + j, load(totals_j + j) + load(sums_j + j));
    }

    template <Form FORM>
    void exponentiate(int64_t first, int64_t second, int member) const {
        const int64_t size = tiling.size, at_i = first * size, at_j = second * size, columns = tiling.tokens(second);
        float sums_j[LARGEST_TILE + LANES] = {};
        keys.start<FORM>(first, second, g.of(member));
        for (int64_t i = 0; i < tiling.tokens(first); ++i) {
            const float c_i = keys.c[at_i + i], w_i = keys.weight[at_i + i];
            float *row = g.of(member) + i * size, *totals_i = by_lane.of(member) + (at_i + i) * LANES;
            vec total = vec{};
            for (int64_t j = 0; j < columns; j += LANES) {
                const vec x = keys.gaussian<FORM>(load(row + j), c_i, load(keys.c + at_j + j));
                store(row + j, x);
                total += x * load(keys.weight + at_j + j);
                store(sums_j + j, load(sums_j + j) + x * w_i);
            }
            store(totals_i, load(totals_i) + total);
        }
        add_to_columns(sums_j, second, member);
    }

    // The same with one number for all c.
    void exponentiate_uniform(int64_t first, int64_t second, int member) const {
        float sums_j[LARGEST_TILE + LANES] = {};
        float *totals_i = by_lane.of(member) + first * tiling.size * LANES;
        keys.scores(first, second, SummedExponentials<true>{keys.uniform_gaussian(), g.of(member), tiling.size, totals_i, sums_j});
        add_to_columns(sums_j, second, member);
    }

    // The same for a tile with itself.
    template <Form FORM>
    void exponentiate_once(int64_t tile, int member) const {
        const int64_t size = tiling.size, at = tile * size, tokens = tiling.tokens(tile);
        float *weights = g.of(member);
        keys.start<FORM>(tile, tile, weights);
        for (int64_t i = 0; FORM != Form::UNIFORM && i < tokens; ++i)
            for (int64_t j = 0; j <= i; j += LANES) {
                float *entry = weights + i * size + j;
                store(entry, keys.gaussian<FORM>(load(entry), keys.c[at + i], load(keys.c + at + j)));
            }
        mirror(tiling, tile, weights);
        for (int64_t i = 0; i < tokens; ++i) {
            float *totals_i = by_lane.of(member) + (at + i) * LANES;
            vec total = vec{};
            for (int64_t j = 0; j < tokens; j += LANES)
                total += first_lanes(load(weights + i * size + j), tokens - j) * load(keys.weight + at + j);
            store(totals_i, load(totals_i) + total);
        }
    }

    template <Form FORM>
    void attend(int64_t first, int64_t second, int member) const {
        if (first == second)
            exponentiate_once<FORM>(first, member);
        else if (FORM == Form::UNIFORM)
            exponentiate_uniform(first, second, member);
        else
            exponentiate<FORM>(first, second, member);
        exchange(g.of(member), {values, stride}, tiling, first, second, outputs.of(member), stride);
    }

    template <Form FORM, bool SAME>
    void exponentiate_causal(int64_t query, int64_t key, int member) const {
        const int64_t size = tiling.size, at_i = query * size, at_j = key * size, columns = tiling.tokens(key);
        if (FORM == Form::UNIFORM && !SAME) {
            float *totals = by_lane.of(member) + at_i * LANES;
            return keys.scores(query, key, SummedExponentials<false>{keys.uniform_gaussian(), g.of(member), size, totals, nullptr});
        }
        keys.start<FORM>(query, key, g.of(member));
        for (int64_t i = 0; i < tiling.tokens(query); ++i) {
            const float c_i = keys.c[at_i + i];
            float *row = g.of(member) + i * size, *totals_i = by_lane.of(member) + (at_i + i) * LANES;
            const int64_t end = SAME ? i + 1 : columns;
            vec total = vec{};
            int64_t j = 0;
            for (; j < end; j += LANES) {
                vec x = keys.gaussian<FORM>(load(row + j), c_i, load(keys.c + at_j + j));
                if (SAME) x = first_lanes(x, end - j);
                store(row + j, x);
                total += x * load(keys.weight + at_j + j);
            }
            if (SAME)
                for (; j < smaller(end + 2 * ROWS, size); j += LANES) store(row + j, vec{});
            store(totals_i, load(totals_i) + total);
        }
    }

    template <Form FORM>
    void attend_causal(int64_t query, int64_t key, int member) const {
        const int64_t size = tiling.size;
        const bool same = query == key;
        float *to = outputs.of(member) + query * size * stride;
        same ? exponentiate_causal<FORM, true>(query, key, member) : exponentiate_causal<FORM, false>(query, key, member);
        product<Left::STEPS_ADJACENT>({g.of(member), size, values + key * size * stride, stride, tiling.tokens(key)},
                                      tiling.tokens(query), stride, Sum{to, stride}, same ? Part::LEFT_BELOW : Part::ALL);
    }

    template <Form FORM>
    void attend_all(Team team) const {
        if (causal)
            tiling.for_own_causal_pairs(team, [&](int64_t query, int64_t key) { attend_causal<FORM>(query, key, team.rank); });
        else
            tiling.for_own_pairs(team, [&](int64_t first, int64_t second) { attend<FORM>(first, second, team.rank); });
    }

    void attend_all(Team team, Form form) const {
        switch (form) {
            case Form::FLOORED: return attend_all<Form::FLOORED>(team);
            case Form::FREE: return attend_all<Form::FREE>(team);
            case Form::UNIFORM: return attend_all<Form::UNIFORM>(team);
        }
    }

    // Writes one row divided by its total; returns whether the total is reliable.
    bool finish(int64_t token, float *to, float *total_to) const {
        const bool sees = token >= keys.sees_from;
        const float sums = sum(by_lane.over_members(token * LANES)) + by_column.one_over_members(token);
        const float total = sees ? sums : 1;
        for (int64_t d = 0; d < z.value_width; d += LANES) {
            // Zero where no token is visible, even for NaN.
            const vec x = sees ? outputs.over_members(token * stride + d) * (1 / total) : vec{};
            store_some(to + d, x, z.value_width - d);
        }
        if (total_to) *total_to = total;
        return !sees || (total >= keys.least_total && total < INFINITY);
    }

    // Computes the rows of one tile over all columns that they see.
    void attend_by_row(int64_t first, Rows out, float *totals, int member) const {
        const int64_t size = tiling.size, rows = tiling.tokens(first);
        float *scores = g.of(member), *sums = outputs.of(member), *top = by_lane.of(member), *total = top + size;
        float largest_total = 1;  // 2^m: weights are divided by it, so that no sum exceeds the largest value
        while (largest_total < (float)tiling.n) largest_total *= 2;
        memset(sums, 0, sizeof(float) * size * stride);
        for (int64_t i = 0; i < rows; ++i) {
            top[i] = -INFINITY;
            total[i] = 0;
        }
        for (int64_t second = 0; second < (causal ? first + 1 : tiling.count); ++second) {
            const bool diagonal = causal && first == second;
            const float *weight_j = keys.weight + second * size;
            keys.scores(first, second, Store{scores, size});
            if (first == second) mirror(tiling, first, scores);
            for (int64_t i = 0; i < rows; ++i) {
                float *row = scores + i * size;
                const auto visible_j = [&](int64_t j) {
                    return diagonal ? first_lanes(load(weight_j + j), i + 1 - j) : load(weight_j + j);
                };
                vec row_largest = all(top[i]);
                for (int64_t j = 0; j < tiling.tokens(second); j += LANES) {
                    // Rounded and stored, so that the row's largest minus itself is zero, here and in the gradient.
                    const vec x = load(row + j) * keys.bits;
                    store(row + j, x);
                    row_largest = (visible_j(j) > 0) & (x > row_largest) ? x : row_largest;
                }
                const float highest = largest(row_largest), subtracted = highest > -INFINITY ? highest : 0;
                const float rescaling = top[i] == highest ? 1 : exp2f(top[i] - highest);
                vec share = vec{};
                for (int64_t j = 0; j < tiling.tokens(second); j += LANES) {
                    const vec visible = visible_j(j), x = visible > 0 ? load(row + j) - subtracted : vec{};
                    const vec weight = lifted_exp2(x) * (visible / (LIFTED * largest_total));
                    store(row + j, weight);
                    share += weight;
                }
                total[i] = total[i] * rescaling + sum(share);
                top[i] = highest;
                if (rescaling != 1)
                    for (int64_t d = 0; d < stride; d += LANES) store(sums + i * stride + d, load(sums + i * stride + d) * rescaling);
            }
            const float *v_j = values + second * size * stride;
            product<Left::STEPS_ADJACENT>({scores, size, v_j, stride, tiling.tokens(second)}, rows, stride, Sum{sums, stride},
                                          diagonal ? Part::LEFT_BELOW : Part::ALL);
        }
        for (int64_t i = 0; i < rows; ++i) {
            const bool sees = first * size + i >= keys.sees_from;
            for (int64_t d = 0; d < z.value_width; d += LANES)
                store_some(out[first * size + i] + d, sees ? load(sums + i * stride + d) / total[i] : vec{}, z.value_width - d);
            if (totals) totals[first * size + i] = top[i] + log2f(total[i] * largest_total);
        }
    }

    void run_by_row(Rows v, Rows out, const uint8_t *visible, float *totals, Team team) {
        tiling.for_own_tiles(team, [&](int64_t tile) {
            keys.mark(visible, tile);
            weigh_values(v, tile);
        });
        wait_for(team);
        tiling.for_own_tiles(team, [&](int64_t tile) { attend_by_row(tile, out, totals, team.rank); });
    }

  public:
    ForwardHead(Scratch &scratch, const Call &call, int members)
        : z(call.sizes),
          causal(call.causal),
          tiling(z.tokens),
          stride(up_to(z.value_width, LANES)),
          keys(scratch, tiling, z.key_width, call.scale),
          values(scratch.take(tiling.padded * stride)),
          unreliable(scratch.take(members)),
          repeated(scratch.take(1)),
          repeats(scratch, keys),
          largest_values(scratch.take(tiling.count)),
          g(scratch, tiling.size * tiling.size, members),
          outputs(scratch, tiling.padded * stride, members),
          by_lane(scratch, tiling.padded * LANES, members),
          by_column(scratch, tiling.padded, members) {}

    const Tiling &tiles() const { return tiling; }

    // Each member prepares and finishes the rows of `for_own_tiles`: it may write those of k and v just before, and read
    // those of `out` just after, without a barrier. The gradient needs `by_row` and `totals`; they may be null.
    void run(Rows k, Rows v, Rows out, const uint8_t *visible, float *totals, uint8_t *by_row, Team team) {
        tiling.for_own_tiles(team, [&](int64_t tile) { keys.pack(k, visible, tile); });
        wait_for(team);
        keys.find_range(visible, causal);
        bool reliable = !keys.too_wide;
        if (reliable) {
            tiling.for_own_tiles(team, [&](int64_t tile) {
                keys.weigh(visible, tile);
                largest_values[tile] = weigh_values(v, tile);
            });
            outputs.cleared(team.rank);
            by_lane.cleared(team.rank);
            by_column.cleared(team.rank);
            wait_for(team);
            const float most = largest_of(largest_values);
            reliable = !keys.any_visible || (most <= LARGEST_VALUE && keys.holds(most));
            if (reliable) attend_all(team, keys.form());
            wait_for(team);
            tiling.for_own_tokens(team, [&](int64_t token) {
                reliable = reliable && finish(token, out[token], totals ? totals + token : nullptr);
            });
        }
        unreliable[team.rank] = !reliable;
        wait_for(team);
        bool all_reliable = true;
        for (int member = 0; member < team.size; ++member) all_reliable = all_reliable && !unreliable[member];
        if (by_row && team.rank == 0) *by_row = !all_reliable;
        if (!all_reliable) {
            run_by_row(v, out, visible, totals, team);  // adds the terms of all rows in one order
        } else if (!causal) {  // in causal attention equal tokens see different keys
            if (team.rank == 0) *repeated = repeats.find(k);
            wait_for(team);
            if (*repeated)
                tiling.for_own_tokens(team, [&](int64_t token) { repeats.copy(out, z.value_width, totals, token); });
        }
        wait_for(team);
    }
};

}  // namespace
