// One drawn shape: its tensors, and what all checks have in common.
#pragma once

#include <stdio.h>

#include "stress_draws.h"
#include "stress_reference.h"

struct Tally {
    int64_t shapes = 0, calls = 0, heads = 0, refused = 0, checked = 0, far = 0, failures = 0;
};

using Floats = std::vector<float>;
using Flags = std::vector<uint8_t>;

// A block of exactly so many elements, for the sanitizer to watch; null if there are none.
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
    Block<uint8_t> seen, refused;
    bool masked;
    Floats k_dense, v_dense, gradient_dense;

    void fail(const char *what, double by = 0) {
        if (++tally.failures > 20) return;
        printf("shape %lld: %s (%g); batch %lld, heads %lld, tokens %lld, widths %lld and %lld, threads %d, scale %g%s\n",
               (long long)number, what, by, (long long)z.batch, (long long)z.heads, (long long)z.tokens,
               (long long)z.key_width, (long long)z.value_width, threads, (double)scale, masked ? ", masked" : "");
    }

    static float draw_scale(Draw &draw, int64_t width) {
        static const float odd[] = {0, 1e-3f, 1, 3, 100, 1e30f};
        return draw.one_in(3) ? draw.of(odd) : 1 / sqrtf((float)width);
    }

    // Keys of one head are alike in length, or mixed, or spread as widely as is allowed, those that are hidden more widely;
    // at times all are close to one another, or one is not a number.
    void draw_numbers() {
        static const float lengths[] = {1, 1, 1, 1, 1e-3f, 10, 100, 1e3f}, sizes[] = {1, 1, 1, 1e-3f, 1e3f, 1e9f};
        static const float strange[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e20f};
        Floats to_k((size_t)(rows * z.key_width)), to_v((size_t)(rows * z.value_width)), to_g(to_v.size());
        const int64_t kind = draw.below(4);  // none, few, half, all
        for (int64_t at = 0; masked && at < z.batch * z.tokens; ++at)
            seen.get()[at] = kind == 0 || (kind == 1 ? !draw.one_in(7) : kind == 2 && draw.one_in(2));
        for (int64_t head = 0; head < heads; ++head) {
            const float length = draw.of(lengths), v_size = draw.one_in(2) ? 1 : draw.of(sizes);
            const bool mixed = draw.one_in(4), wide = draw.one_in(6), close = draw.one_in(6), repeated = draw.one_in(8);
            const float closer = draw.one_in(2) ? 1e-6f : 3e-8f, longer = draw.one_in(4) ? 100 : 1;
            for (int64_t i = head * z.tokens; i < (head + 1) * z.tokens; ++i) {
                const float own = (mixed ? draw.of(lengths) : length) * longer / sqrtf((float)z.key_width);
                const bool hidden = masked && !seen.get()[head / z.heads * z.tokens + i % z.tokens];
                for (int64_t d = 0; d < z.key_width; ++d) {
                    const size_t at = (size_t)(i * z.key_width + d), first = (size_t)(head * z.tokens * z.key_width + d);
                    to_k[at] = own * draw.normal();
                    if (close && i > head * z.tokens) to_k[at] = to_k[first] * (1 + closer * draw.normal());
                    if (repeated && i > head * z.tokens) to_k[at] = to_k[first];
                    if (wide) to_k[at] = 0;
                }
                if (wide && scale > 0)
                    to_k[(size_t)(i * z.key_width + draw.below(z.key_width))] =
                        (draw.one_in(2) ? 1 : -1) * sqrtf((float)draw.uniform() * 2 * 74.9f / scale) * (hidden ? 3 : 1);
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
    Kind call_of(float *totals) const {
        Kind call = {};
        call.sizes = z;
        call.scale = scale;
        call.threads = threads;
        call.k = k.view;
        call.v = v.view;
        call.out = out.view;
        call.seen = masked ? seen.get() : nullptr;
        call.totals = totals;
        call.refused = refused.get();
        return call;
    }
    Flags refusals() const { return heads ? Flags(refused.get(), refused.get() + heads) : Flags(); }
    void refuse(const Flags &flags) const { if (heads) memcpy(refused.get(), flags.data(), (size_t)heads); }

    static Numbers part(const Floats &from, int64_t head, int64_t size) {
        const auto at = from.begin() + head * size;
        return Numbers(at, at + size);
    }
    Head head_of(int64_t index) const {
        return {z.tokens, z.key_width, z.value_width, (double)scale * (control == Control::OTHER ? 1.01 : 1),
                masked ? seen.get() + index / z.heads * z.tokens : nullptr};
    }
    // The relative error of sums over a head whose exponents are sums of terms up to `most`.
    double rounding(double most) const {
        return 0x1p-24 * (64 + 8 * sqrt((double)(z.tokens + z.key_width + z.value_width)) + 16 * most);
    }
    bool is_small() const { return z.tokens <= 50 && rows * z.tokens * (z.key_width + z.value_width) <= 300'000; }

    // Weights below 2^-150 are not told apart, and what others weigh is up to 2^108 of a row's own: hence the largest size.
    void compare(const char *what, const Numbers &got, const Numbers &expected, const Numbers &size, double relative) {
        double worst = 0, largest = 0;
        for (double x : size) largest = fmax(largest, x);
        for (size_t at = 0; at < got.size(); ++at) {
            const double error = fabs(got[at] - expected[at]) / (relative * (size[at] + 0x1p-18 * largest) + 1e-30);
            if (!(error <= worst)) worst = error;
        }
        if (!(worst <= 1)) fail(what, worst);
    }

    // Of a head that was not refused: averages of what is seen.
    void check_average(const char *what, const Floats &result, int64_t head) {
        const Head h = head_of(head);
        for (int64_t d = 0; d < z.value_width; ++d) {
            double low = INFINITY, high = -INFINITY;
            for (int64_t j = 0; j < z.tokens; ++j) {
                const double x = v_dense[(size_t)((head * z.tokens + j) * z.value_width + d)];
                if (h.sees(j)) low = fmin(low, x), high = fmax(high, x);
            }
            if (low > high) low = high = 0;  // nothing is seen
            const double room = 1e-4 * fmax(fabs(low), fabs(high));
            for (int64_t i = 0; i < z.tokens; ++i) {
                const double x = result[(size_t)((head * z.tokens + i) * z.value_width + d)];
                if (!(x >= low - room && x <= high + room)) return fail(what, x);
            }
        }
    }

    void check_verdict(const char *what, Verdict verdict, bool was_refused) {
        if (verdict == Verdict::REFUSE && !was_refused) fail(what, 0);
        if (verdict == Verdict::TAKE && was_refused) fail(what, 1);
    }

    static bool finite(const Numbers &numbers) {
        for (double x : numbers)
            if (!isfinite(x)) return false;
        return true;
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
          seen(z.batch * z.tokens),
          refused(heads),
          masked(draw.one_in(2)) {
        draw_numbers();
        ++tally.shapes;
        for (const Tensor *x : {&k, &v, &out, &gradient, &k_gradient, &v_gradient}) tally.far += x->is_far();
    }
};
