// The gradient of symmetric attention, from the same exponentials and equally symmetric. With A = dO / total,
// B = w v and a_i = A_i . o_i, and totals without the exponentials' lift, so that small gradients stay above zero:
//   dv_i = w_i sum_j G_ij A_j
//   dk_i = scale sum_j T_ij k_j,   T_ij = G_ij (A_i . B_j + A_j . B_i - a_i w_j - a_j w_i)
// In causal attention S_ij = G_ij (A_i . B_j - a_i w_j) for i >= j takes the place of T_ij, and
//   dv_j = w_j sum_i G_ij A_i,   dk_i = scale sum_j (S_ij + S_ji) k_j
// Heads computed row by row have P_ij = 2^(score - the row's logarithm) in place of G_ij w_j / total, and
//   dv_j = sum_i P_ij dO_i,   dk_i = scale sum_j (S_ij + S_ji) k_j,   S_ij = P_ij (dO_i . v_j - dO_i . o_i)
#pragma once

#include "head.h"

namespace {

// T_ij = G_ij (block - a_i - a_j) with all weights 1, or S_ij without a_j.
template <bool SYMMETRIC>
struct TimesGaussian {
    const float *g;
    float *target;
    int64_t apart;
    const float *a_i, *a_j;

    template <int R, int V>
    __attribute__((always_inline)) void take(vec (&block)[R][V], int64_t row, int64_t column) const {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                const int64_t at = (row + r) * apart + column + v * LANES;
                const vec less = SYMMETRIC ? a_i[row + r] + load(a_j + column + v * LANES) : all(a_i[row + r]);
                store(target + at, load(g + at) * (block[r][v] - less));
            }
    }
};

class BackwardHead {
    const Call &call;
    const Sizes &z;
    const Tiling tiling;
    const int64_t key_stride, value_stride;  // row strides: whole vectors
    Keys keys;
    float *k_copied, *a_rows;  // k padded to whole vectors if needed, and A
    float *a_dot_o, *logarithms;
    float *unreliable, *largest_gradients;  // by member; `unreliable` is 1 if a gradient is too small or not finite
    float *a_b_a;    // transposed tiles of A, B and A again, so that A|B and B|A are each contiguous
    Sums g, t;       // of a pair of tiles
    Sums to_k, to_v;  // of T k and of G A

    // Returns the largest entry of the row's gradient.
    float prepare_row(Rows k, Rows out, Rows gradient, float share, int64_t token) {
        float *a = a_rows + token * value_stride;
        vec products = vec{}, most = vec{};
        for (int64_t d = 0; d < value_stride; d += LANES) {
            const vec entries = load_some(gradient[token] + d, z.value_width - d), x = entries * share;
            const vec size = entries < 0 ? -entries : entries;
            most = size > most ? size : most;
            store(a + d, x);
            products += x * load_some(out[token] + d, z.value_width - d);
        }
        a_dot_o[token] = sum(products);
        if (z.key_width != key_stride)
            for (int64_t d = 0; d < key_stride; d += LANES)
                store(k_copied + token * key_stride + d, load_some(k[token] + d, z.key_width - d));
        return largest(most);
    }

    void prepare_tile(Rows v, int64_t tile) {
        const int64_t size = tiling.size, whole = size * z.value_width;
        float *a = a_b_a + tile * 3 * whole, *b = a + whole;
        const float *weight = keys.weight + tile * size;
        transpose({a_rows, value_stride}, tiling, tile, z.value_width, a);
        transpose(v, tiling, tile, z.value_width, b);
        for (int64_t d = 0; !keys.uniform && d < z.value_width; ++d)
            for (int64_t at = 0; at < size; at += LANES)
                store(b + d * size + at, load(b + d * size + at) * load(weight + at));
        memcpy(b + whole, a, sizeof(float) * whole);
        for (int64_t token = tiling.n; token < (tile + 1) * size; ++token) a_dot_o[token] = 0;
    }

    template <Form FORM>
    void fill(int64_t first, int64_t second, int member) const {
        const int64_t size = tiling.size, at_i = first * size, at_j = second * size, whole = size * z.value_width;
        const float *a_b = a_b_a + first * 3 * whole, *b_a = a_b_a + second * 3 * whole + whole;
        keys.start<FORM>(first, second, g.of(member));
        if (FORM == Form::UNIFORM)
            return dots_once(a_b, b_a, 2 * z.value_width, tiling, first, second,
                             TimesGaussian<true>{g.of(member), t.of(member), size, a_dot_o + at_i, a_dot_o + at_j});
        dots_once(a_b, b_a, 2 * z.value_width, tiling, first, second, Store{t.of(member), size});
        for (int64_t i = 0; i < tiling.tokens(first); ++i) {
            const float c_i = keys.c[at_i + i], w_i = keys.weight[at_i + i], a_i = a_dot_o[at_i + i];
            float *g_row = g.of(member) + i * size, *t_row = t.of(member) + i * size;
            for (int64_t j = 0; j < (first == second ? i + 1 : tiling.tokens(second)); j += LANES) {
                const vec x = keys.gaussian<FORM>(load(g_row + j), c_i, load(keys.c + at_j + j));
                store(g_row + j, x);
                const vec less = a_i * load(keys.weight + at_j + j) + load(a_dot_o + at_j + j) * w_i;
                store(t_row + j, x * (load(t_row + j) - less));
            }
        }
    }

    template <Form FORM>
    void pair(int64_t first, int64_t second, Rows k, int member) const {
        fill<FORM>(first, second, member);
        if (first == second) {
            mirror(tiling, first, g.of(member));
            mirror(tiling, first, t.of(member));
        }
        exchange(g.of(member), {a_rows, value_stride}, tiling, first, second, to_v.of(member), value_stride);
        exchange(t.of(member), k, tiling, first, second, to_k.of(member), key_stride);
    }

    // Adds the rows' contributions, from weights G or P and S (rows of queries, columns of keys).
    void spread(int64_t query, int64_t key, Rows k, int member) const {
        const int64_t size = tiling.size, at_i = query * size, at_j = key * size;
        const int64_t rows = tiling.tokens(query), columns = tiling.tokens(key);
        const bool diagonal = call.causal && query == key;
        const Part below = diagonal ? Part::LEFT_BELOW : Part::ALL, above = diagonal ? Part::LEFT_ABOVE : Part::ALL;
        const float *p = g.of(member), *s = t.of(member);
        float *v_j = to_v.of(member) + at_j * value_stride;
        product<Left::ROWS_ADJACENT>({p, size, a_rows + at_i * value_stride, value_stride, rows}, columns, value_stride,
                                     Sum{v_j, value_stride}, above);
        float *k_i = to_k.of(member) + at_i * key_stride, *k_j = to_k.of(member) + at_j * key_stride;
        product<Left::STEPS_ADJACENT>({s, size, k[at_j], k.step, columns}, rows, key_stride, Sum{k_i, key_stride}, below);
        product<Left::ROWS_ADJACENT>({s, size, k[at_i], k.step, rows}, columns, key_stride, Sum{k_j, key_stride}, above);
    }

    template <Form FORM>
    void pair_causal(int64_t query, int64_t key, Rows k, int member) const {
        const int64_t size = tiling.size, at_i = query * size, at_j = key * size, whole = size * z.value_width;
        const bool same = query == key, direct = FORM == Form::UNIFORM && !same;
        const float *a = a_b_a + query * 3 * whole, *b = a_b_a + key * 3 * whole + whole;
        keys.start<FORM>(query, key, g.of(member));
        if (direct)
            dots_once(a, b, z.value_width, tiling, query, key,
                      TimesGaussian<false>{g.of(member), t.of(member), size, a_dot_o + at_i, nullptr});
        else
            dots_once(a, b, z.value_width, tiling, query, key, Store{t.of(member), size});
        for (int64_t i = 0; !direct && i < tiling.tokens(query); ++i) {
            const float c_i = keys.c[at_i + i], a_i = a_dot_o[at_i + i];
            float *g_row = g.of(member) + i * size, *t_row = t.of(member) + i * size;
            const int64_t end = same ? i + 1 : tiling.tokens(key);
            int64_t j = 0;
            for (; j < end; j += LANES) {
                vec x = keys.gaussian<FORM>(load(g_row + j), c_i, load(keys.c + at_j + j));
                if (same) x = first_lanes(x, end - j);
                store(g_row + j, x);
                store(t_row + j, x * (load(t_row + j) - a_i * load(keys.weight + at_j + j)));
            }
            if (same)
                for (; j < smaller(end + 2 * ROWS, size); j += LANES) {
                    store(g_row + j, vec{});
                    store(t_row + j, vec{});
                }
        }
        spread(query, key, k, member);
    }

    template <Form FORM>
    void all_pairs(Rows k, Team team) const {
        if (call.causal)
            tiling.for_own_causal_pairs(team, [&](int64_t query, int64_t key) { pair_causal<FORM>(query, key, k, team.rank); });
        else
            tiling.for_own_pairs(team, [&](int64_t first, int64_t second) { pair<FORM>(first, second, k, team.rank); });
    }

    void all_pairs(Rows k, Team team, Form form) const {
        switch (form) {
            case Form::FLOORED: return all_pairs<Form::FLOORED>(k, team);
            case Form::FREE: return all_pairs<Form::FREE>(k, team);
            case Form::UNIFORM: return all_pairs<Form::UNIFORM>(k, team);
        }
    }

    void pair_by_row(int64_t first, int64_t second, Rows k, int member) const {
        const int64_t size = tiling.size, at_i = first * size, at_j = second * size, whole = size * z.value_width;
        const int64_t rows = tiling.tokens(first), columns = tiling.tokens(second);
        float *p = g.of(member), *s = t.of(member);
        keys.scores(first, second, Store{p, size});
        if (first == second) mirror(tiling, first, p);
        dots(a_b_a + first * 3 * whole, a_b_a + second * 3 * whole + whole, z.value_width, tiling, first, second, Store{s, size});
        for (int64_t at = 0; at < rows * size; at += LANES) store(p + at, load(p + at) * keys.bits);
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; j += LANES) {
                const vec weight = load(keys.weight + at_j + j);
                const vec visible = call.causal && first == second ? first_lanes(weight, i + 1 - j) : weight;
                const vec x = visible > 0 ? load(p + i * size + j) - logarithms[at_i + i] : vec{};
                const vec share = lifted_exp2(x) * (visible / LIFTED);
                store(p + i * size + j, share);
                store(s + i * size + j, share * (load(s + i * size + j) - a_dot_o[at_i + i]));
            }
        spread(first, second, k, member);
    }

    // Returns the base-2 logarithm of a row's divisor.
    float logarithm(const float *totals, bool was_by_row, int64_t token) const {
        return was_by_row ? totals[token] : log2f(totals[token]) - LIFT + keys.c_of(token) + keys.middle;
    }

    // Writes a row of sums times a factor; returns whether all of it is finite.
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
    BackwardHead(Scratch &scratch, const Call &from, int members)
        : call(from),
          z(from.sizes),
          tiling(z.tokens),
          key_stride(up_to(z.key_width, LANES)),
          value_stride(up_to(z.value_width, LANES)),
          keys(scratch, tiling, z.key_width, call.scale),
          k_copied(scratch.take(z.key_width == key_stride ? 0 : tiling.padded * key_stride)),
          a_rows(scratch.take(tiling.padded * value_stride)),
          a_dot_o(scratch.take(tiling.padded)),
          logarithms(scratch.take(tiling.padded)),
          unreliable(scratch.take(members)),
          largest_gradients(scratch.take(members)),
          a_b_a(scratch.take(tiling.padded * 3 * z.value_width)),
          g(scratch, tiling.size * tiling.size, members),
          t(scratch, tiling.size * tiling.size, members),
          to_k(scratch, tiling.padded * key_stride, members),
          to_v(scratch, tiling.padded * value_stride, members) {}

    const Tiling &tiles() const { return tiling; }

    // As in ForwardHead::run, a member may write its own tiles' rows just before and read them just after.
    void run(Rows k, Rows v, Rows out, Rows gradient, const uint8_t *visible, const float *totals,
             bool was_by_row, Rows k_gradient, Rows v_gradient, Team team) {
        tiling.for_own_tiles(team, [&](int64_t tile) { keys.pack(k, visible, tile); });
        wait_for(team);
        keys.find_range(visible, call.causal);
        bool reliable = !was_by_row;
        const Rows whole_k = z.key_width == key_stride ? k : Rows{k_copied, key_stride};
        const auto finish_row = [&](int64_t token, float k_factor, float v_factor) {
            const bool k_reliable = finish(to_k, token * key_stride, z.key_width, k_factor, k_gradient[token]);
            return finish(to_v, token * value_stride, z.value_width, v_factor, v_gradient[token]) && k_reliable;
        };
        if (reliable) {
            float most = 0;
            tiling.for_own_tokens(team, [&](int64_t token) {
                const float row_largest = prepare_row(k, out, gradient, token >= keys.sees_from ? LIFTED / totals[token] : 0, token);
                most = row_largest > most ? row_largest : most;
            });
            largest_gradients[team.rank] = most;
            tiling.for_own_tiles(team, [&](int64_t tile) {
                keys.weigh(visible, tile);
                prepare_tile(v, tile);
            });
            to_k.cleared(team.rank);
            to_v.cleared(team.rank);
            wait_for(team);
            for (int member = 0; member < team.size; ++member)
                most = largest_gradients[member] > most ? largest_gradients[member] : most;
            reliable = !keys.any_visible || keys.holds(most / (float)tiling.n);
            if (reliable) all_pairs(whole_k, team, keys.form());
            wait_for(team);
            tiling.for_own_tokens(team, [&](int64_t token) {
                reliable = reliable && finish_row(token, call.scale / LIFTED, keys.weight[token] / LIFTED);
            });
        }
        unreliable[team.rank] = !reliable;
        wait_for(team);
        bool all_reliable = true;
        for (int member = 0; member < team.size; ++member) all_reliable = all_reliable && !unreliable[member];
        if (!all_reliable) {
            tiling.for_own_tokens(team, [&](int64_t token) {
                prepare_row(k, out, gradient, 1, token);
                logarithms[token] = logarithm(totals, was_by_row, token);
            });
            tiling.for_own_tiles(team, [&](int64_t tile) {
                keys.mark(visible, tile);
                prepare_tile(v, tile);
            });
            to_k.cleared(team.rank);
            to_v.cleared(team.rank);
            wait_for(team);
            tiling.for_own_tiles(team, [&](int64_t first) {
                for (int64_t second = 0; second < (call.causal ? first + 1 : tiling.count); ++second)
                    pair_by_row(first, second, whole_k, team.rank);
            });
            wait_for(team);
            tiling.for_own_tokens(team, [&](int64_t token) { finish_row(token, call.scale, 1); });
        }
        wait_for(team);
    }
};

}  // namespace
