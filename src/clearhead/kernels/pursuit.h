// Iterations of principal attention pursuit on one head, and their gradient. With l = u = 0 at first:
//   z = k - l + u;  c = clamp(z, +-t of the token);  q = l - pull u + c;  l' = attention(q, q, v);  u' = c + l - l'
// u is never stored: reach = c + l is, and u' = reach - l'.
#pragma once

#include "backward.h"
#include "forward.h"

namespace {

// As torch.clamp: NaN stays NaN, a NaN threshold gives NaN, and a negative threshold replaces everything.
inline vec clamped(vec z, float t) {
    if (t != t) return all(t);
    z = z < -t ? all(-t) : z;
    return z > t ? all(t) : z;
}

// One step for entries of a row, from the last iteration's l and reach, which are zero at first.
struct Step {
    vec z, q, reach;
    Step(vec k, vec l, vec last_reach, float t, float pull) {
        const vec u = last_reach - l;
        z = (k - l) + u;
        const vec c = clamped(z, t);
        q = (l - pull * u) + c;
        reach = c + l;
    }
};

inline vec row_or_zero(const float *row, int64_t d, int64_t count) { return row ? load_some(row + d, count) : vec{}; }

struct PursuitRows {
    Rows k, v, out;
    const uint8_t *visible;
    const float *thresholds;  // by token

    PursuitRows(const Pursuit &call, int64_t index) {
        const int64_t batch = index / call.sizes.heads, head = index % call.sizes.heads;
        k = rows_of(call.k, batch, head);
        v = rows_of(call.v, batch, head);
        out = rows_of(call.out, batch, head);
        visible = call.visible ? call.visible + batch * call.sizes.tokens : nullptr;
        thresholds = call.thresholds + index * call.sizes.tokens;
    }
};

// l after an iteration (counted from 0): in `out` if it is the last or none is stored, otherwise in `between`.
inline Rows l_after(const Pursuit &call, Rows out, int64_t iteration, int64_t index) {
    const Sizes &z = call.sizes;
    if (!call.between || iteration == call.iterations - 1) return out;
    const int64_t head = z.tokens * z.key_width;
    return {call.between + (iteration * z.batch * z.heads + index) * head, z.key_width};
}

inline float *totals_of(const Pursuit &call, int64_t iteration, int64_t index) {
    const Sizes &z = call.sizes;
    return call.totals ? call.totals + (iteration * z.batch * z.heads + index) * z.tokens : nullptr;
}

inline uint8_t *by_row_of(const Pursuit &call, int64_t iteration, int64_t index) {
    return call.by_row ? call.by_row + iteration * call.sizes.batch * call.sizes.heads + index : nullptr;
}

class PursuitHead {
    const Pursuit &call;
    ForwardHead attention;
    float *q, *reach;

  public:
    PursuitHead(Scratch &scratch, const Pursuit &from, int members)
        : call(from),
          attention(scratch, from, members),
          q(scratch.take(from.sizes.tokens * from.sizes.key_width)),
          reach(scratch.take(from.sizes.tokens * from.sizes.key_width)) {}

    void run(int64_t index, Team team) {
        const int64_t width = call.sizes.key_width;
        const PursuitRows rows(call, index);
        for (int64_t iteration = 0; iteration < call.iterations; ++iteration) {
            const Rows l = l_after(call, rows.out, iteration - 1, index);
            attention.tiles().for_own_tokens(team, [&](int64_t token) {
                prefetch(rows.k, token + AHEAD, token + AHEAD + 1, call.sizes.tokens, width);
                const float *l_row = iteration ? l[token] : nullptr, *reach_row = iteration ? reach + token * width : nullptr;
                for (int64_t d = 0; d < width; d += LANES) {
                    const int64_t left = width - d;
                    const Step step(load_some(rows.k[token] + d, left), row_or_zero(l_row, d, left),
                                    row_or_zero(reach_row, d, left), rows.thresholds[token], call.pull);
                    store_some(q + token * width + d, step.q, left);
                    store_some(reach + token * width + d, step.reach, left);
                }
            });
            attention.run({q, width}, rows.v, l_after(call, rows.out, iteration, index), rows.visible,
                          totals_of(call, iteration, index), by_row_of(call, iteration, index), team);
        }
    }
};

class PursuitBackwardHead {
    const PursuitBackward &call;
    const int64_t n, width, size;
    BackwardHead attention;
    float *q, *reaches;               // reach of every iteration but the last
    float *to_l, *to_u, *to_q, *to_v;  // gradients; that of l minus that of u, as both depend on the iteration's output

  public:
    PursuitBackwardHead(Scratch &scratch, const PursuitBackward &from, int members)
        : call(from),
          n(from.sizes.tokens),
          width(from.sizes.key_width),
          size(n * width),
          attention(scratch, from, members),
          q(scratch.take(size)),
          reaches(scratch.take(size * (from.iterations - 1))),
          to_l(scratch.take(size)),
          to_u(scratch.take(size)),
          to_q(scratch.take(size)),
          to_v(scratch.take(size)) {}

  private:
    Step step_at(const PursuitRows &rows, int64_t iteration, int64_t index, int64_t token, int64_t d) const {
        const int64_t left = width - d;
        const float *l = iteration ? l_after(call, rows.out, iteration - 1, index)[token] : nullptr;
        const float *reach = iteration ? reaches + (iteration - 1) * size + token * width : nullptr;
        return Step(load_some(rows.k[token] + d, left), row_or_zero(l, d, left), row_or_zero(reach, d, left),
                    rows.thresholds[token], call.pull);
    }

    template <typename Work>
    void for_own_numbers(Team team, Work work) const {
        attention.tiles().for_own_tokens(team, [&](int64_t token) {
            for (int64_t d = 0; d < width; d += LANES) work(token, d, token * width + d, width - d);
        });
    }

  public:
    void run(int64_t index, Team team) {
        const Sizes &z = call.sizes;
        const PursuitRows rows(call, index);
        const Rows d_out = rows_of(call.out_gradient, index / z.heads, index % z.heads);
        const Rows d_k = rows_of(call.k_gradient, index / z.heads, index % z.heads);
        const Rows d_v = rows_of(call.v_gradient, index / z.heads, index % z.heads);
        float *const d_thresholds = call.threshold_gradients + index * n;
        attention.tiles().for_own_tokens(team, [&](int64_t token) { d_thresholds[token] = 0; });
        for (int64_t i = 0; i + 1 < call.iterations; ++i)
            for_own_numbers(team, [&](int64_t token, int64_t d, int64_t at, int64_t left) {
                store_some(reaches + i * size + at, step_at(rows, i, index, token, d).reach, left);
            });
        for_own_numbers(team, [&](int64_t token, int64_t d, int64_t at, int64_t left) {
            store_some(to_l + at, load_some(d_out[token] + d, left), left);
            store_some(to_u + at, vec{}, left);
            store_some(d_k[token] + d, vec{}, left);
            store_some(d_v[token] + d, vec{}, left);
        });
        for (int64_t i = call.iterations - 1; i >= 0; --i) {
            for_own_numbers(team, [&](int64_t token, int64_t d, int64_t at, int64_t left) {
                store_some(q + at, step_at(rows, i, index, token, d).q, left);
            });
            attention.run({q, width}, rows.v, l_after(call, rows.out, i, index), {to_l, width}, rows.visible,
                          totals_of(call, i, index), *by_row_of(call, i, index), {to_q, width}, {to_v, width}, team);
            for_own_numbers(team, [&](int64_t token, int64_t d, int64_t at, int64_t left) {
                const Step step = step_at(rows, i, index, token, d);
                const float t = rows.thresholds[token];
                const vec by_q = load_some(to_q + at, left), by_u = load_some(to_u + at, left), by_c = by_u + by_q;
                const vec by_z = ((step.z > t) | (step.z < -t)) ? vec{} : by_c;
                const ivec above = t < 0 ? ~ivec{} : step.z > t;
                const ivec below = t > 0 ? step.z < -t : ivec{};
                d_thresholds[token] += sum(above ? by_c : below ? -by_c : vec{});
                store_some(d_k[token] + d, load_some(d_k[token] + d, left) + by_z, left);
                store_some(d_v[token] + d, load_some(d_v[token] + d, left) + load_some(to_v + at, left), left);
                const vec by_last_u = by_z - call.pull * by_q;
                store_some(to_u + at, by_last_u, left);
                store_some(to_l + at, (by_c - by_z) - by_last_u, left);
            });
        }
    }
};

}  // namespace
