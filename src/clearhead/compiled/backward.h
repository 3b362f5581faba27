// The gradient of symmetric attention, from the same exponentials and as symmetric as they are. With A = dO / total,
// B = w v and a_i = A_i . o_i, and totals without the exponentials' lift, so that small gradients stay above zero:
//   dv_i = w_i sum_j G_ij A_j
//   dk_i = scale sum_j T_ij k_j,   T_ij = G_ij (A_i . B_j + A_j . B_i - a_i w_j - a_j w_i)
#pragma once

#include "head.h"

namespace {

class BackwardHead {
    const Sizes &z;
    const Tiling tiling;
    const int64_t key_apart, value_apart;  // of rows: whole vectors
    Keys keys;
    float *k_rows, *a_rows;  // root k, and A
    float *a_dot_o;
    float *three;    // tiles of A, B and A again, turned over, so that A|B and B|A each lie together
    Sums g, t;       // of a pair of tiles
    Sums to_k, to_v;  // of T k and of G A

    void prepare_row(Rows k, Rows out, Rows gradient, const float *totals, float root, int64_t token) {
        float *a = a_rows + token * value_apart, *own_k = k_rows + token * key_apart;
        const float share = keys.some_seen ? LIFTED / totals[token] : 0;
        vec products = vec{};
        for (int64_t d = 0; d < value_apart; d += LANES) {
            const vec x = load_some(gradient[token] + d, z.value_width - d) * share;
            store(a + d, x);
            products += x * load_some(out[token] + d, z.value_width - d);
        }
        a_dot_o[token] = sum(products);
        for (int64_t d = 0; d < key_apart; d += LANES) store(own_k + d, load_some(k[token] + d, z.key_width - d) * root);
    }

    void prepare_tile(Rows v, int64_t tile) {
        const int64_t size = tiling.size, whole = size * z.value_width;
        float *a = three + tile * 3 * whole, *b = a + whole;
        const float *weight = keys.weight + tile * size;
        turn({a_rows, value_apart}, tiling, tile, z.value_width, 1, a);
        turn(v, tiling, tile, z.value_width, 1, b);
        for (int64_t d = 0; d < z.value_width; ++d)
            for (int64_t at = 0; at < size; at += LANES)
                store(b + d * size + at, load(b + d * size + at) * load(weight + at));
        memcpy(b + whole, a, sizeof(float) * whole);
        for (int64_t token = tiling.n; token < (tile + 1) * size; ++token) a_dot_o[token] = 0;
    }

    void pair(int64_t first, int64_t second, int member) const {
        const int64_t size = tiling.size, at_i = first * size, at_j = second * size, whole = size * z.value_width;
        keys.scores(first, second, g.of(member));
        dots(three + first * 3 * whole, three + second * 3 * whole + whole, 2 * z.value_width, tiling, first, second,
             t.of(member));
        for (int64_t i = 0; i < tiling.tokens(first); ++i) {
            const float c_i = keys.c[at_i + i], w_i = keys.weight[at_i + i], a_i = a_dot_o[at_i + i];
            float *g_row = g.of(member) + i * size, *t_row = t.of(member) + i * size;
            for (int64_t j = 0; j < tiling.tokens(second); j += LANES) {
                const vec x = gaussian(load(g_row + j), c_i, load(keys.c + at_j + j));
                store(g_row + j, x);
                const vec less = a_i * load(keys.weight + at_j + j) + load(a_dot_o + at_j + j) * w_i;
                store(t_row + j, x * (load(t_row + j) - less));
            }
        }
        exchange(g.of(member), a_rows, value_apart, tiling, first, second, to_v.of(member));
        exchange(t.of(member), k_rows, key_apart, tiling, first, second, to_k.of(member));
    }

    // Writes a row of sums times a factor; whether all of it is finite.
    static bool finish(const Sums &sums, int64_t at, int64_t width, float factor, float *to) {
        vec zeros = vec{};
        for (int64_t d = 0; d < width; d += LANES) {
            const vec total = sums.over_members(at + d) * factor;
            zeros += total * 0.0f;
            store_some(to + d, total, width - d);
        }
        return sum(zeros) == 0;
    }

  public:
    BackwardHead(Scratch &scratch, const Sizes &sizes, int members)
        : z(sizes),
          tiling(z.tokens),
          key_apart(up_to(z.key_width, LANES)),
          value_apart(up_to(z.value_width, LANES)),
          keys(scratch, tiling, z.key_width),
          k_rows(scratch.take(tiling.padded * key_apart)),
          a_rows(scratch.take(tiling.padded * value_apart)),
          a_dot_o(scratch.take(tiling.padded)),
          three(scratch.take(tiling.padded * 3 * z.value_width)),
          g(scratch, tiling.size * tiling.size, members),
          t(scratch, tiling.size * tiling.size, members),
          to_k(scratch, tiling.padded * key_apart, members),
          to_v(scratch, tiling.padded * value_apart, members) {}

    const Tiling &tiles() const { return tiling; }

    // As ForwardHead::run: a member may have written its own tiles' rows just before, and reads them just after.
    void run(const Call &call, Rows k, Rows v, Rows out, Rows gradient, const uint8_t *seen, const float *totals,
             Rows k_gradient, Rows v_gradient, uint8_t *refused, Team team) {
        const float root = root_of(call.scale), unscaled = root > 0 ? call.scale / root / LIFTED : 0;
        tiling.for_own_tiles(team, [&](int64_t tile) { keys.pack(k, seen, root, tile); });
        wait_for(team);
        keys.find_range();
        tiling.for_own_tokens(team, [&](int64_t token) { prepare_row(k, out, gradient, totals, root, token); });
        tiling.for_own_tiles(team, [&](int64_t tile) {
            keys.weigh(seen, tile);
            prepare_tile(v, tile);
        });
        to_k.cleared(team.rank);
        to_v.cleared(team.rank);
        wait_for(team);
        tiling.for_own_pairs(team, [&](int64_t first, int64_t second) { pair(first, second, team.rank); });
        wait_for(team);
        bool sound = true;
        tiling.for_own_tokens(team, [&](int64_t token) {
            sound = finish(to_k, token * key_apart, z.key_width, unscaled, k_gradient[token]) && sound;
            sound = finish(to_v, token * value_apart, z.value_width, keys.weight[token] / LIFTED, v_gradient[token]) && sound;
        });
        if (!sound) __atomic_store_n(refused, 1, __ATOMIC_RELAXED);
        wait_for(team);
    }
};

}  // namespace
