// Calls the kernel on random shapes, strides, masks and numbers, under sanitizers, and checks its results.
//   stress SHAPES [SEED [FIRST [short | other]]]: prints a summary and one line for each failure; exits with 1 if there
//   is a failure. The last argument is a control that must fail.
// Outputs must be averages of the visible values and, in small heads, accurate to rounding; NaN must propagate; exactly
// the heads with widely spread scores must be computed row by row; two runs must be bit-identical; only rows may be
// written. Energies of spans must equal those of a plain elimination.
#include "stress_spans.h"
#include "vector.h"

class Checked : SpansOfValues {
    struct Attended {
        Flags by_row;
        Floats out, to_k, to_v;
    };

    void attention() {
        const Block<float> totals(rows);
        const Block<uint8_t> by_row(heads);
        Attended a;
        const Forward forward = call_of<Forward>(totals.get(), by_row.get());
        called(clearhead_forward, forward);
        a.by_row = Flags(by_row.get(), by_row.get() + heads);
        a.out = out.dense();
        const Floats divisors(totals.get(), totals.get() + rows);
        if (draw.one_in(3)) {
            called(clearhead_forward, forward);
            if (a.by_row != Flags(by_row.get(), by_row.get() + heads)) fail("the second run computed other heads row by row");
            if (!same_bits(a.out, out.dense())) fail("the second run has other outputs");
            if (!same_bits(divisors, Floats(totals.get(), totals.get() + rows))) fail("the second run has other totals");
        }
        if (draw.one_in(3)) {  // nothing is stored for the gradient
            called(clearhead_forward, call_of<Forward>(nullptr, nullptr));
            if (!same_bits(a.out, out.dense())) fail("other outputs without stored totals");
        }
        Backward backward = call_of<Backward>(totals.get(), by_row.get());
        backward.out_gradient = gradient.view;
        backward.k_gradient = k_gradient.view;
        backward.v_gradient = v_gradient.view;
        called(clearhead_backward, backward);
        a.to_k = k_gradient.dense();
        a.to_v = v_gradient.dense();
        if (draw.one_in(3)) {
            called(clearhead_backward, backward);
            if (!same_bits(a.to_k, k_gradient.dense())) fail("the second run has another gradient for k");
            if (!same_bits(a.to_v, v_gradient.dense())) fail("the second run has another gradient for v");
        }
        if (a.by_row != Flags(by_row.get(), by_row.get() + heads)) fail("the gradient overwrote its input");
        for (int64_t head = 0; head < heads; ++head) check_head(head, a);
        check_rows_only();
    }

    void check_head(int64_t at, const Attended &a) {
        const int64_t keys = z.tokens * z.key_width, values = z.tokens * z.value_width;
        const bool by_row = a.by_row[(size_t)at];
        const Head head = head_of(at);
        const Numbers k_at = part(k_dense, at, keys), v_at = part(v_dense, at, values), g_at = part(gradient_dense, at, values);
        const Numbers result = part(a.out, at, values), to_k = part(a.to_k, at, keys), to_v = part(a.to_v, at, values);
        const Range range(head, k_at, v_at, magnitudes(k_at));
        count(at, by_row);
        check_verdict("attention went row by row, or not", range.verdict, by_row);
        check_average("no average", result, v_at, range, head);
        // A bound on every term of the gradient for k and on each product in it; larger numbers may overflow.
        const double terms = largest(g_at) * largest(v_at) * (double)z.value_width * fmax(1, largest(k_at)) * fmax(1, head.scale);
        const bool bounded = range.all_fine && finite(v_at) && finite(g_at) && largest(g_at) <= 1e6 && terms < 1e30;
        if (bounded && !(finite(to_k) && finite(to_v))) fail("a gradient is not finite");
        if (!is_small() && finite(v_at)) return;
        const Reference forward = check_attention("attention", result, k_at, v_at, range, head, by_row);
        const double relative = rounding(range);
        if (relative > 0.05) return;
        ++tally.checked;
        tally.by_row_checked += by_row;
        if (!bounded) return;
        const Gradients gradients(head, forward, g_at, magnitudes(g_at), k_at, v_at);
        compare("gradient for k", to_k, gradients.k, gradients.k_size, relative, by_row);
        compare("gradient for v", to_v, gradients.v, gradients.v_size, relative, by_row);
    }

  public:
    using SpansOfValues::SpansOfValues;

    void run() {
        attention();
        if (z.key_width == z.value_width) pursuit();
        spans();
    }
};

int main(int count, char **arguments) {
    const int64_t shapes = count > 1 ? atoll(arguments[1]) : 200;
    const uint64_t seed = count > 2 ? (uint64_t)atoll(arguments[2]) : 1;
    const int64_t first = count > 3 ? atoll(arguments[3]) : 0;
    if (count > 4) control = !strcmp(arguments[4], "short") ? Control::SHORT : Control::OTHER;
    Tally tally;
    for (int64_t index = first; index < first + shapes; ++index) Checked(tally, index, seed).run();
    printf("%d lanes: %lld shapes, %lld calls, %lld heads, of them %lld row by row, %lld of these by several threads; %lld "
           "compared with double precision, %lld of these row by row; %lld tensors far apart; %lld failures\n",
           LANES, (long long)tally.shapes, (long long)tally.calls, (long long)tally.heads, (long long)tally.by_row,
           (long long)tally.shared, (long long)tally.checked, (long long)tally.by_row_checked, (long long)tally.far,
           (long long)tally.failures);
    return tally.failures ? 1 : 0;
}
