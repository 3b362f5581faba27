// Calls the kernel on drawn shapes, steps, masks and numbers, under sanitizers, and checks what it says.
//   stress SHAPES [SEED [FIRST [short | other]]]: one line in the end, a line for each failure; exits with 1 if there was
//   one. The last word is a control that must not pass.
// Every head that is not refused must be finite and, where the head is small, as exact as rounding allows; heads must be
// refused where their numbers say so; two runs must agree to the bit; nothing but rows may be written.
#include "stress_shape.h"
#include "vector.h"

extern "C" {
int clearhead_forward(const Forward *, int);
int clearhead_backward(const Backward *, int);
int clearhead_pursuit(const Pursuit *, int);
int clearhead_pursuit_backward(const PursuitBackward *, int);
}

class Checked : Shape {
    bool same_bits(const Floats &a, const Floats &b, const Flags &skipped, int64_t of_a_head) const {
        for (int64_t head = 0; head < heads; ++head)
            if (!skipped[(size_t)head] && of_a_head &&
                memcmp(&a[(size_t)(head * of_a_head)], &b[(size_t)(head * of_a_head)], sizeof(float) * (size_t)of_a_head))
                return false;
        return true;
    }
    void check_rows_only() {
        for (const Tensor *x : {&out, &k_gradient, &v_gradient})
            if (!x->only_rows_were_written()) fail("wrote between rows");
    }
    template <typename Kind>
    void called(int (*function)(const Kind *, int), const Kind &call) {
        ++tally.calls;
        if (const int outcome = function(&call, 1)) fail("did not run", outcome);
    }

    void attention() {
        const Block<float> totals(rows);
        refuse(Flags((size_t)heads));
        Forward forward = call_of<Forward>(totals.get());
        called(clearhead_forward, forward);
        const Flags first = refusals();
        const Floats result = out.dense(), divisors(totals.get(), totals.get() + rows);
        if (draw.one_in(3)) {
            called(clearhead_forward, forward);
            if (first != refusals()) fail("refused other heads the second time");
            if (!same_bits(result, out.dense(), first, z.tokens * z.value_width)) fail("other bits the second time");
            if (!same_bits(divisors, Floats(totals.get(), totals.get() + rows), first, z.tokens)) fail("other totals");
        }
        Backward backward = call_of<Backward>(totals.get());
        backward.out_gradient = gradient.view;
        backward.k_gradient = k_gradient.view;
        backward.v_gradient = v_gradient.view;
        called(clearhead_backward, backward);
        const Flags second = refusals();
        const Floats to_k = k_gradient.dense(), to_v = v_gradient.dense();
        if (draw.one_in(3)) {
            refuse(first);
            called(clearhead_backward, backward);
            if (second != refusals()) fail("refused other gradients the second time");
            if (!same_bits(to_k, k_gradient.dense(), second, z.tokens * z.key_width)) fail("other bits for k");
            if (!same_bits(to_v, v_gradient.dense(), second, z.tokens * z.value_width)) fail("other bits for v");
        }
        for (int64_t head = 0; head < heads; ++head)
            check_head(head, first[(size_t)head], second[(size_t)head], result, to_k, to_v);
        check_rows_only();
    }

    void check_head(int64_t at, bool was_refused, bool then, const Floats &result, const Floats &to_k, const Floats &to_v) {
        const int64_t keys = z.tokens * z.key_width, values = z.tokens * z.value_width;
        const Head head = head_of(at);
        const Numbers k_at = part(k_dense, at, keys), v_at = part(v_dense, at, values), g_at = part(gradient_dense, at, values);
        const Range range(head, k_at, v_at);
        ++tally.heads;
        tally.refused += was_refused;
        check_verdict("attention was refused, or not", range.verdict, was_refused);
        if (was_refused) return then ? void() : fail("a refusal was taken back");
        check_average("no average", result, at);
        if (!then && !(finite(part(to_k, at, keys)) && finite(part(to_v, at, values)))) fail("a gradient is not finite");
        const double relative = rounding(range.most);
        if (!is_small() || relative > 0.05) return;
        const Reference forward(head, k_at, v_at);
        compare("attention", part(result, at, values), forward.out, forward.size, relative);
        ++tally.checked;
        if (!finite(g_at)) return then ? void() : fail("a gradient of what is not a number was not refused");
        Numbers g_size = g_at;
        double largest = 0;
        for (double &x : g_size) largest = fmax(largest, x = fabs(x));
        if (largest > 1e6) return;
        if (then) return range.verdict == Verdict::TAKE ? fail("its gradient was refused") : void();
        const Gradients gradients(head, forward, g_at, g_size, k_at, v_at);
        compare("gradient for k", part(to_k, at, keys), gradients.k, gradients.k_size, relative);
        compare("gradient for v", part(to_v, at, values), gradients.v, gradients.v_size, relative);
    }

    struct Pursued {
        int64_t iterations;
        float pull;
        Floats thresholds, between, out, to_k, to_v, to_t;
    };

    void pursuit() {
        static const float odd[] = {0, 0.01f, 0.3f, 1, 1, 3, INFINITY};
        Pursued p = {1 + draw.below(5), draw.one_in(2) ? 2.0f : 0.0f, {}, {}, {}, {}, {}, {}};
        const int64_t whole = rows * z.key_width, before = (p.iterations - 1) * whole;
        const Block<float> thresholds(heads), totals(p.iterations * rows), between(before), to_t(heads);
        for (int64_t head = 0; head < heads; ++head) p.thresholds.push_back(thresholds.get()[head] = draw.of(odd));
        Pursuit forward = call_of<Pursuit>(totals.get());
        forward.iterations = p.iterations;
        forward.pull = p.pull;
        forward.thresholds = thresholds.get();
        forward.between = between.get();
        refuse(Flags((size_t)heads));
        called(clearhead_pursuit, forward);
        const Flags first = refusals();
        p.out = out.dense();
        p.between = Floats(between.get(), between.get() + before);
        if (draw.one_in(2)) {  // nothing is kept
            Pursuit alone = forward;
            alone.between = alone.totals = nullptr;
            refuse(Flags((size_t)heads));
            called(clearhead_pursuit, alone);
            if (first != refusals()) fail("pursuit refused other heads the second time");
            if (!same_bits(p.out, out.dense(), first, z.tokens * z.key_width)) fail("other bits of pursuit");
        }
        PursuitBackward backward = {};
        (Pursuit &)backward = forward;
        backward.out_gradient = gradient.view;
        backward.k_gradient = k_gradient.view;
        backward.v_gradient = v_gradient.view;
        backward.threshold_gradients = to_t.get();
        refuse(first);
        called(clearhead_pursuit_backward, backward);
        const Flags second = refusals();
        p.to_k = k_gradient.dense();
        p.to_v = v_gradient.dense();
        p.to_t = Floats(to_t.get(), to_t.get() + heads);
        if (draw.one_in(3)) {
            refuse(first);
            called(clearhead_pursuit_backward, backward);
            if (second != refusals()) fail("pursuit refused other gradients the second time");
            if (!same_bits(p.to_k, k_gradient.dense(), second, z.tokens * z.key_width)) fail("other bits of pursuit for k");
            if (!same_bits(p.to_v, v_gradient.dense(), second, z.tokens * z.key_width)) fail("other bits of pursuit for v");
            if (!same_bits(p.to_t, Floats(to_t.get(), to_t.get() + heads), second, 1)) fail("other bits for thresholds");
        }
        for (int64_t head = 0; head < heads; ++head) check_pursuit(head, first[(size_t)head], second[(size_t)head], p);
        check_rows_only();
    }

    // Every iteration on its own, from what the kernel says came before, so that errors do not add up.
    void check_pursuit(int64_t at, bool was_refused, bool then, const Pursued &p) {
        const int64_t size = z.tokens * z.key_width;
        const Head head = head_of(at);
        const double t = p.thresholds[(size_t)at];
        const Numbers k_at = part(k_dense, at, size), v_at = part(v_dense, at, size);
        ++tally.heads;
        tally.refused += was_refused;
        if (was_refused) return then ? void() : fail("a refusal of pursuit was taken back");
        check_average("pursuit is no average", p.out, at);
        if (!then && !(finite(part(p.to_k, at, size)) && finite(part(p.to_v, at, size)))) fail("pursuit's gradient is not finite");
        if (!is_small()) return;
        struct Iteration {
            Numbers z, q;
            Reference attention;
        };
        std::vector<Iteration> done;
        Numbers l((size_t)size), u((size_t)size);
        double relative = 0, edge = INFINITY;  // the smallest distance to the threshold, where the gradient jumps
        for (int64_t i = 0; i < p.iterations; ++i) {
            Numbers zs((size_t)size), q((size_t)size), c((size_t)size);
            double most = 0;
            for (int64_t row = 0; row < z.tokens; ++row) {
                double square = 0;
                for (size_t x = (size_t)(row * z.key_width); x < (size_t)((row + 1) * z.key_width); ++x) {
                    zs[x] = k_at[x] - l[x] + u[x];
                    c[x] = fmax(-t, fmin(t, zs[x]));
                    q[x] = l[x] - p.pull * u[x] + c[x];
                    const double all = fabs(k_at[x]) + 2 * fabs(l[x]) + 3 * fabs(u[x]);
                    square += all * all;
                    if (i || t > 0) edge = fmin(edge, fabs(fabs(zs[x]) - t) - 1e-5 * all);
                }
                most = fmax(most, head.scale * square);
            }
            check_verdict("pursuit was refused, or not",
                          Range(head, q, v_at).verdict == Verdict::REFUSE ? Verdict::REFUSE : Verdict::EITHER, false);
            relative = fmax(relative, rounding(most));
            if (!(relative <= 0.05)) return;
            done.push_back({zs, q, Reference(head, q, v_at)});
            const Numbers next = i + 1 < p.iterations ? part(p.between, i * heads + at, size) : part(p.out, at, size);
            compare("an iteration of pursuit", next, done.back().attention.out, done.back().attention.size, relative);
            for (size_t x = 0; x < l.size(); ++x) u[x] = c[x] + l[x] - next[x];
            l = next;
        }
        ++tally.checked;
        Numbers by_l = part(gradient_dense, at, size), by_l_size = by_l, by_u((size_t)size), by_u_size((size_t)size);
        for (double &x : by_l_size) x = fabs(x);
        if (then || !finite(by_l) || edge <= 0) return;
        Numbers to_k((size_t)size), to_k_size = to_k, to_v = to_k, to_v_size = to_k, to_t(1), to_t_size(1);
        for (int64_t i = p.iterations - 1; i >= 0; --i) {
            const Iteration &step = done[(size_t)i];
            Numbers by_out((size_t)size), by_out_size((size_t)size);
            for (size_t x = 0; x < by_out.size(); ++x) {
                by_out[x] = by_l[x] - by_u[x];
                by_out_size[x] = by_l_size[x] + by_u_size[x];
            }
            const Gradients gradients(head, step.attention, by_out, by_out_size, step.q, v_at);
            for (size_t x = 0; x < by_out.size(); ++x) {
                const bool inside = fabs(step.z[x]) <= t;
                const double by_c = by_u[x] + gradients.k[x], by_c_size = by_u_size[x] + gradients.k_size[x];
                to_k[x] += inside ? by_c : 0;
                to_k_size[x] += inside ? by_c_size : 0;
                to_v[x] += gradients.v[x];
                to_v_size[x] += gradients.v_size[x];
                to_t[0] += inside ? 0 : step.z[x] > 0 ? by_c : -by_c;
                to_t_size[0] += inside ? 0 : by_c_size;
                by_l[x] = inside ? 0 : by_c;
                by_l_size[x] = inside ? 0 : by_c_size;
                by_u[x] = (inside ? by_c : 0) - p.pull * gradients.k[x];
                by_u_size[x] = (inside ? by_c_size : 0) + p.pull * gradients.k_size[x];
            }
        }
        const double all = relative * (double)p.iterations;
        compare("pursuit's gradient for k", part(p.to_k, at, size), to_k, to_k_size, all);
        compare("pursuit's gradient for v", part(p.to_v, at, size), to_v, to_v_size, all);
        compare("pursuit's gradient for its threshold", part(p.to_t, at, 1), to_t, to_t_size, all);
    }

  public:
    using Shape::Shape;

    void run() {
        attention();
        if (z.key_width == z.value_width) pursuit();
    }
};

int main(int count, char **arguments) {
    const int64_t shapes = count > 1 ? atoll(arguments[1]) : 200;
    const uint64_t seed = count > 2 ? (uint64_t)atoll(arguments[2]) : 1;
    const int64_t first = count > 3 ? atoll(arguments[3]) : 0;
    if (count > 4) control = !strcmp(arguments[4], "short") ? Control::SHORT : Control::OTHER;
    Tally tally;
    for (int64_t index = first; index < first + shapes; ++index) Checked(tally, index, seed).run();
    printf("%d lanes: %lld shapes, %lld calls, %lld heads, of them %lld refused and %lld compared with double precision; "
           "%lld tensors far apart; %lld failures\n",
           LANES, (long long)tally.shapes, (long long)tally.calls, (long long)tally.heads, (long long)tally.refused,
           (long long)tally.checked, (long long)tally.far, (long long)tally.failures);
    return tally.failures ? 1 : 0;
}
