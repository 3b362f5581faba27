// The stress driver's checks of pursuits.
#pragma once

#include "stress_shape.h"

// As torch.clamp between -t and t: NaN stays NaN, a NaN threshold gives NaN, and a negative threshold replaces everything.
inline double clamped(double x, double t) { return x != x ? x : t != t ? t : fmin(t, fmax(-t, x)); }

class Pursuits : protected Shape {
    struct Pursued {
        int64_t iterations;
        float pull;
        Flags by_row;  // (iterations, heads)
        Floats thresholds, between, out, to_k, to_v, to_t;
    };

    struct Iteration {
        Numbers z, q;
        Reference attention;
    };

    // The iterations of a head, each computed from the kernel's previous iterate, so that errors do not add up.
    struct Path {
        std::vector<Iteration> done;  // if they are compared
        double relative = 0, edge = INFINITY;  // the smallest distance to the threshold, where the gradient jumps
        double q_most = 0;
        bool fine = true, any_by_row = false, all_by_row = true;
    };

    Path check_path(int64_t at, const Pursued &p, const Numbers &k, const Numbers &v) {
        const int64_t size = z.tokens * z.key_width;
        const Head head = head_of(at);
        Path path;
        Numbers l((size_t)size), u((size_t)size);
        for (int64_t i = 0; i < p.iterations; ++i) {
            Numbers zs((size_t)size), q((size_t)size), c((size_t)size), sizes((size_t)size);
            for (size_t x = 0; x < zs.size(); ++x) {
                const double t = p.thresholds[(size_t)(at * z.tokens) + x / (size_t)z.key_width];
                zs[x] = k[x] - l[x] + u[x];
                c[x] = clamped(zs[x], t);
                q[x] = l[x] - p.pull * u[x] + c[x];
                sizes[x] = fabs(k[x]) + 2 * fabs(l[x]) + 3 * fabs(u[x]) + (t < 0 ? -t : 0);
                if (i || t > 0) path.edge = fmin(path.edge, fabs(fabs(zs[x]) - fabs(t)) - 1e-5 * sizes[x]);
            }
            const bool by_row = p.by_row[(size_t)(i * heads + at)];
            const Numbers next = i + 1 < p.iterations ? part(p.between, i * heads + at, size) : part(p.out, at, size);
            const Range range(head, q, v, sizes);
            check_verdict("an iteration went row by row, or not", range.verdict, by_row);
            check_average("an iteration is no average", next, v, range, head);
            path.relative = fmax(path.relative, rounding(range));
            path.q_most = fmax(path.q_most, largest(q));
            path.fine = path.fine && range.all_fine;
            path.any_by_row = path.any_by_row || by_row;
            path.all_by_row = path.all_by_row && by_row;
            if (is_small() || !finite(v))
                path.done.push_back({zs, q, check_attention("an iteration of pursuit", next, q, v, range, head, by_row)});
            for (size_t x = 0; x < l.size(); ++x) u[x] = c[x] + l[x] - next[x];
            l = next;
        }
        return path;
    }

    void check_pursuit(int64_t at, const Pursued &p) {
        const int64_t size = z.tokens * z.key_width;
        const Head head = head_of(at);
        const Numbers k_at = part(k_dense, at, size), v_at = part(v_dense, at, size);
        const Path path = check_path(at, p, k_at, v_at);
        count(at, path.any_by_row);
        Numbers by_l = part(gradient_dense, at, size), by_l_size = magnitudes(by_l), by_u((size_t)size), by_u_size((size_t)size);
        // A bound on the gradient after an iteration; larger numbers may overflow.
        const double growth = 8 * (double)size * (1 + fmax(1, head.scale) * (1 + largest(v_at)) * (1 + path.q_most));
        const bool bounded = path.fine && finite(v_at) && finite(by_l) && largest(by_l) <= 1e6 &&
                             pow(growth, (double)p.iterations) < 1e24;
        if (bounded && !(finite(part(p.to_k, at, size)) && finite(part(p.to_v, at, size)) && finite(part(p.to_t, at, z.tokens))))
            fail("pursuit's gradient is not finite");
        if (path.done.empty() || !(path.relative <= 0.05)) return;
        ++tally.checked;
        tally.by_row_checked += path.any_by_row;
        if (!bounded || path.edge <= 0) return;
        Numbers to_k((size_t)size), to_k_size = to_k, to_v = to_k, to_v_size = to_k, to_t((size_t)z.tokens), to_t_size = to_t;
        for (int64_t i = p.iterations - 1; i >= 0; --i) {
            const Iteration &step = path.done[(size_t)i];
            Numbers by_out((size_t)size), by_out_size((size_t)size);
            for (size_t x = 0; x < by_out.size(); ++x) {
                by_out[x] = by_l[x] - by_u[x];
                by_out_size[x] = by_l_size[x] + by_u_size[x];
            }
            const Gradients gradients(head, step.attention, by_out, by_out_size, step.q, v_at);
            for (size_t x = 0; x < by_out.size(); ++x) {
                const size_t token = x / (size_t)z.key_width;
                const double t = p.thresholds[(size_t)(at * z.tokens) + token];
                const bool inside = fabs(step.z[x]) <= t;
                const double by_c = by_u[x] + gradients.k[x], by_c_size = by_u_size[x] + gradients.k_size[x];
                to_k[x] += inside ? by_c : 0;
                to_k_size[x] += inside ? by_c_size : 0;
                to_v[x] += gradients.v[x];
                to_v_size[x] += gradients.v_size[x];
                // As in torch, a threshold of zero has the derivative from above on one side only.
                to_t[token] += inside ? 0 : step.z[x] > 0 || t < 0 ? by_c : t > 0 ? -by_c : 0;
                to_t_size[token] += inside ? 0 : by_c_size;
                by_l[x] = inside ? 0 : by_c;
                by_l_size[x] = inside ? 0 : by_c_size;
                by_u[x] = (inside ? by_c : 0) - p.pull * gradients.k[x];
                by_u_size[x] = (inside ? by_c_size : 0) + p.pull * gradients.k_size[x];
            }
        }
        const double all = path.relative * (double)p.iterations;
        compare("pursuit's gradient for k", part(p.to_k, at, size), to_k, to_k_size, all, path.all_by_row);
        compare("pursuit's gradient for v", part(p.to_v, at, size), to_v, to_v_size, all, path.all_by_row);
        compare("pursuit's gradient for its threshold", part(p.to_t, at, z.tokens), to_t, to_t_size, all, path.all_by_row);
    }

  public:
    using Shape::Shape;

    void pursuit() {
        static const float usual[] = {0, 0.01f, 0.3f, 1, 1, 3, INFINITY}, odd[] = {NAN, -0.3f, -3};
        Pursued p = {1 + draw.below(5), draw.one_in(2) ? 2.0f : 0.0f, {}, {}, {}, {}, {}, {}, {}};
        const int64_t whole = rows * z.key_width, before = (p.iterations - 1) * whole;
        const Block<float> thresholds(rows), totals(p.iterations * rows), between(before), to_t(rows);
        const Block<uint8_t> by_row(p.iterations * heads);
        const auto flags = [&] { return Flags(by_row.get(), by_row.get() + p.iterations * heads); };
        for (int64_t head = 0; head < heads; ++head) {
            const float threshold = draw.one_in(12) ? draw.of(odd) : draw.of(usual);
            const bool by_token = draw.one_in(2);  // as under a causal mask, where each token has its own
            for (int64_t token = 0; token < z.tokens; ++token)
                p.thresholds.push_back(thresholds.get()[head * z.tokens + token] = by_token ? threshold * (1 + 0.01f * (float)(token % 7)) : threshold);
        }
        Pursuit forward = call_of<Pursuit>(totals.get(), by_row.get());
        forward.iterations = p.iterations;
        forward.pull = p.pull;
        forward.thresholds = thresholds.get();
        forward.between = between.get();
        called(clearhead_pursuit, forward);
        p.by_row = flags();
        p.out = out.dense();
        p.between = Floats(between.get(), between.get() + before);
        if (draw.one_in(2)) {  // nothing is stored for the gradient
            Pursuit alone = forward;
            alone.between = alone.totals = nullptr;
            alone.by_row = nullptr;
            called(clearhead_pursuit, alone);
            if (!same_bits(p.out, out.dense())) fail("pursuit has other outputs in the second run");
        }
        PursuitBackward backward = {};
        (Pursuit &)backward = forward;
        backward.out_gradient = gradient.view;
        backward.k_gradient = k_gradient.view;
        backward.v_gradient = v_gradient.view;
        backward.threshold_gradients = to_t.get();
        called(clearhead_pursuit_backward, backward);
        p.to_k = k_gradient.dense();
        p.to_v = v_gradient.dense();
        p.to_t = Floats(to_t.get(), to_t.get() + rows);
        if (draw.one_in(3)) {
            called(clearhead_pursuit_backward, backward);
            if (!same_bits(p.to_k, k_gradient.dense())) fail("pursuit has another gradient for k in the second run");
            if (!same_bits(p.to_v, v_gradient.dense())) fail("pursuit has another gradient for v in the second run");
            if (!same_bits(p.to_t, Floats(to_t.get(), to_t.get() + rows))) fail("pursuit has another gradient for thresholds in the second run");
        }
        if (p.by_row != flags()) fail("pursuit's gradient overwrote its input");
        for (int64_t head = 0; head < heads; ++head) check_pursuit(head, p);
        check_rows_only();
    }
};
