// One random shape: its tensors, and the parts that all checks share.
#pragma once

#include <stdio.h>

#include "stress_draws.h"
#include "stress_reference.h"

extern "C" {
int clearhead_forward(const Forward *, int);
int clearhead_backward(const Backward *, int);
int clearhead_pursuit(const Pursuit *, int);
int clearhead_pursuit_backward(const PursuitBackward *, int);
}

struct Tally {
    int64_t shapes = 0, calls = 0, heads = 0, by_row = 0, shared = 0, checked = 0, by_row_checked = 0, far = 0, failures = 0;
};

using Floats = std::vector<float>;
using Flags = std::vector<uint8_t>;

// A block with exactly this number of elements, checked by the sanitizer; null if it is zero.
template <typename T>
class Block {
    T *data;

  public:
    explicit Block(int64_t size) : data(size ? (T *)malloc(sizeof(T) * (size_t)size) : nullptr) {}
    ~Block() { free(data); }
    Block(const Block &) = delete;
    T *get() const { return data; }
};

class Shape {
  protected:
    Tally &tally;
    const int64_t number;
    Draw draw;
    const Sizes z;
    const int64_t heads = z.batch * z.heads, rows = heads * z.tokens;
    const int threads = 1 + (int)draw.below(4);
    const float scale;
    Tensor k, v, out, gradient, k_gradient, v_gradient;
    const double comparable = draw.one_in(8) ? 4e6 : 3e5;  // largest amount of work that is repeated in double precision
    Block<uint8_t> visible;
    bool masked, causal;
    Floats k_dense, v_dense, gradient_dense;

    void fail(const char *what, double by = 0) {
        if (++tally.failures > 20) return;
        printf("shape %lld: %s (%g); batch %lld, heads %lld, tokens %lld, widths %lld and %lld, threads %d, scale %g%s%s\n",
               (long long)number, what, by, (long long)z.batch, (long long)z.heads, (long long)z.tokens,
               (long long)z.key_width, (long long)z.value_width, threads, (double)scale, masked ? ", masked" : "",
               causal ? ", causal" : "");
    }

    static float draw_scale(Draw &draw, int64_t width) {
        static const float odd[] = {0, 1e-3f, 1, 3, 100, 1e30f};
        return draw.one_in(3) ? draw.of(odd) : 1 / sqrtf((float)width);
    }

    // Keys of one head have similar lengths, or mixed ones, or spread up to the limit of the symmetric form or beyond, most
    // of all the hidden ones; sometimes all are nearly equal, or one is NaN.
    void draw_numbers() {
        static const float lengths[] = {1, 1, 1, 1, 1e-3f, 10, 100, 1e3f}, sizes[] = {1, 1, 1, 1e-3f, 1e3f, 1e9f};
        static const float strange[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e20f}, wider[] = {1, 1, 1, 2, 10, 100};
        Floats to_k((size_t)(rows * z.key_width)), to_v((size_t)(rows * z.value_width)), to_g(to_v.size());
        const int64_t kind = draw.below(4);  // hidden tokens: none, few, half, all
        for (int64_t at = 0; masked && at < z.batch * z.tokens; ++at)
            visible.get()[at] = kind == 0 || (kind == 1 ? !draw.one_in(7) : kind == 2 && draw.one_in(2));
        for (int64_t head = 0; head < heads; ++head) {
            const float length = draw.of(lengths), v_size = draw.one_in(2) ? 1 : draw.of(sizes);
            const bool mixed = draw.one_in(4), wide = draw.one_in(6), close = draw.one_in(6), repeated = draw.one_in(8);
            const float closer = draw.one_in(2) ? 1e-6f : 3e-8f, longer = draw.one_in(4) ? 100 : 1;
            const float most = 2 * 74.9f * draw.of(wider) / scale;
            for (int64_t i = head * z.tokens; i < (head + 1) * z.tokens; ++i) {
                const float own = (mixed ? draw.of(lengths) : length) * longer / sqrtf((float)z.key_width);
                const bool hidden = masked && !visible.get()[head / z.heads * z.tokens + i % z.tokens];
                for (int64_t d = 0; d < z.key_width; ++d) {
                    const size_t at = (size_t)(i * z.key_width + d), first = (size_t)(head * z.tokens * z.key_width + d);
                    to_k[at] = own * draw.normal();
                    if (close && i > head * z.tokens) to_k[at] = to_k[first] * (1 + closer * draw.normal());
                    if (repeated && i > head * z.tokens && i % 3) to_k[at] = to_k[first];
                    if (wide) to_k[at] = 0;
                }
                if (wide && scale > 0)
                    to_k[(size_t)(i * z.key_width + draw.below(z.key_width))] =
                        (draw.one_in(2) ? 1 : -1) * sqrtf((float)draw.uniform() * most) * (hidden ? 3 : 1);
            }
            for (int64_t at = head * z.tokens * z.value_width; at < (head + 1) * z.tokens * z.value_width; ++at) {
                to_v[(size_t)at] = v_size * draw.normal();
                to_g[(size_t)at] = draw.normal();
            }
        }
        for (Floats *x : {&to_k, &to_v, &to_g})
            if (!x->empty() && draw.one_in(25)) (*x)[(size_t)draw.below((int64_t)x->size())] = draw.of(strange);
        k.write(to_k);
        v.write(to_v);
        gradient.write(to_g);
        k_dense = k.dense();
        v_dense = v.dense();
        gradient_dense = gradient.dense();
    }

    template <typename Kind>
    Kind call_of(float *totals, uint8_t *by_row) const {
        Kind call = {};
        call.sizes = z;
        call.scale = scale;
        call.threads = threads;
        call.causal = causal;
        call.k = k.view;
        call.v = v.view;
        call.out = out.view;
        call.visible = masked ? visible.get() : nullptr;
        call.totals = totals;
        call.by_row = by_row;
        return call;
    }
    static Numbers part(const Floats &from, int64_t head, int64_t size) {
        const auto at = from.begin() + head * size;
        return Numbers(at, at + size);
    }
    Head head_of(int64_t index) const {
        return {z.tokens, z.key_width, z.value_width, (double)scale * (control == Control::OTHER ? 1.01 : 1),
                masked ? visible.get() + index / z.heads * z.tokens : nullptr, causal};
    }
    // The relative error of sums over a head. Exponents are sums of terms that add up to at most `most`; rounding errors of
    // different terms are independent, those of equal terms may all have one sign: half of them in an exponent, and as many in
    // the row's total.
    double rounding(const Range &range) const {
        return 0x1p-24 * (64 + 8 * sqrt((double)(z.tokens + z.key_width + z.value_width)) + (16 + range.equal) * range.most);
    }
    bool is_small() const { return (double)(rows * z.tokens * (z.key_width + z.value_width)) <= comparable; }

    // NaN must propagate; entries of infinite size are not compared. In the symmetric form weights below 2^-150 are all
    // equal, and other weights are up to 2^108 of the row's own: hence the largest size. Row by row only underflow is
    // allowed.
    void compare(const char *what, const Numbers &got, const Numbers &expected, const Numbers &size, double relative,
                 bool by_row) {
        double worst = 0, most = 0;
        for (double x : size) most = isfinite(x) ? fmax(most, x) : most;
        for (size_t at = 0; at < got.size(); ++at) {
            if (isfinite(expected[at]) && size[at] == INFINITY) continue;
            double error = fabs(got[at] - expected[at]) / (relative * (size[at] + (by_row ? 0x1p-40 : 0x1p-18) * most) + 1e-30);
            if (!isfinite(expected[at])) error = isfinite(got[at]) ? INFINITY : 0;
            if (!(error <= worst)) worst = error;
        }
        if (!(worst <= 1)) fail(what, worst);
    }

    // Outputs are averages of visible values in heads of any size; a NaN key gives NaN in its row.
    void check_average(const char *what, const Numbers &result, const Numbers &values, const Range &range, const Head &head) {
        for (int64_t d = 0; d < head.e; ++d) {
            double low = INFINITY, high = -INFINITY;
            bool numbers = true;
            for (int64_t j = 0; j < head.n; ++j) numbers = numbers && isfinite(values[(size_t)(j * head.e + d)]);
            for (int64_t i = 0; i < head.n; ++i) {
                for (int64_t j = head.causal ? i : 0; j < (head.causal ? i + 1 : i ? 0 : head.n); ++j) {
                    const double v_j = values[(size_t)(j * head.e + d)];
                    if (head.visible_at(j)) low = fmin(low, v_j), high = fmax(high, v_j);
                }
                const bool sees_any = low <= high;
                const double least = sees_any ? low : 0, most = sees_any ? high : 0, slack = 1e-4 * fmax(fabs(least), fabs(most));
                const double x = result[(size_t)(i * head.e + d)];
                const Held held = range.held[(size_t)i];
                if (held == Held::STRANGE && (head.causal ? sees_any : range.any_visible) && isfinite(x)) return fail(what, x);
                if (held != Held::FINE || !range.visible_fine || !numbers) continue;
                if (!(x >= least - slack && x <= most + slack)) return fail(what, x);
            }
        }
    }

    // Checks one call of attention.
    Reference check_attention(const char *what, const Numbers &result, const Numbers &keys, const Numbers &values,
                              const Range &range, const Head &head, bool by_row) {
        Reference reference(head, keys, values);
        bool large = false;
        for (int64_t j = 0; j < head.n; ++j) large = large || (head.visible_at(j) && range.held[(size_t)j] == Held::LARGE);
        Numbers size = reference.size;
        for (int64_t at = 0; at < head.n * head.e; ++at)
            if (large || range.held[(size_t)(at / head.e)] == Held::LARGE) size[(size_t)at] = INFINITY;
        const double relative = rounding(range);
        compare(what, result, reference.out, size, relative <= 0.05 ? relative : 1e60, by_row);
        return reference;
    }

    void check_verdict(const char *what, Verdict verdict, bool was_by_row) {
        if (verdict == Verdict::BY_ROW && !was_by_row) fail(what, 0);
        if (verdict == Verdict::SYMMETRIC && was_by_row) fail(what, 1);
    }

    // All threads share each remaining head if it is long enough.
    void count(int64_t head, bool by_row) {
        ++tally.heads;
        tally.by_row += by_row;
        tally.shared += by_row && threads > 1 && z.tokens >= 128 * threads && head >= heads - heads % threads;
    }

    bool same_bits(const Floats &a, const Floats &b) const {
        return a.size() == b.size() && (a.empty() || !memcmp(a.data(), b.data(), sizeof(float) * a.size()));
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

  public:
    Shape(Tally &to, int64_t index, uint64_t seed)
        : tally(to),
          number(index),
          draw{seed * 0x2545f4914f6cdd1du + (uint64_t)index},
          z(draw_sizes(draw)),
          scale(draw_scale(draw, z.key_width)),
          k(draw, z, z.key_width, Role::INPUT),
          v(draw, z, z.value_width, Role::INPUT),
          out(draw, z, z.value_width, Role::OUTPUT),
          gradient(draw, z, z.value_width, Role::INPUT),
          k_gradient(draw, z, z.key_width, Role::OUTPUT),
          v_gradient(draw, z, z.value_width, Role::OUTPUT),
          visible(z.batch * z.tokens),
          masked(draw.one_in(2)),
          causal(draw.one_in(2)) {
        draw_numbers();
        ++tally.shapes;
        for (const Tensor *x : {&k, &v, &out, &gradient, &k_gradient, &v_gradient}) tally.far += x->is_far();
    }
};
