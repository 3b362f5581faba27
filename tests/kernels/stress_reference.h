// Symmetric attention and its gradient in double precision by their definition, with bounds on their rounding errors.
#pragma once

#include <math.h>
#include <stdint.h>

#include <algorithm>
#include <vector>

using Numbers = std::vector<double>;

// One head, rows dense.
struct Head {
    int64_t n, d, e;
    double scale;
    const uint8_t *visible;  // or null
    bool causal;
    bool visible_at(int64_t j) const { return !visible || visible[j]; }
    bool sees(int64_t i, int64_t j) const { return visible_at(j) && (!causal || j <= i); }
};

inline double dot(const double *a, const double *b, int64_t width) {
    double total = 0;
    for (int64_t at = 0; at < width; ++at) total += a[at] * b[at];
    return total;
}

inline double absolute_dot(const double *a, const double *b, int64_t width) {
    double total = 0;
    for (int64_t at = 0; at < width; ++at) total += fabs(a[at] * b[at]);
    return total;
}

struct Reference {
    Numbers weights, out, size;  // size: sum_j w_ij |v_j|; infinite where a hidden value is NaN

    Reference(const Head &head, const Numbers &k, const Numbers &v)
        : weights((size_t)(head.n * head.n)), out((size_t)(head.n * head.e)), size(out.size()) {
        for (int64_t i = 0; i < head.n; ++i) {
            double *w = weights.data() + i * head.n, most = -INFINITY, total = 0;
            for (int64_t j = 0; j < head.n; ++j) {
                w[j] = head.scale * dot(&k[(size_t)(i * head.d)], &k[(size_t)(j * head.d)], head.d);
                if (head.sees(i, j)) most = fmax(most, w[j]);
            }
            for (int64_t j = 0; j < head.n; ++j) total += w[j] = head.sees(i, j) ? exp(w[j] - most) : 0;
            for (int64_t j = 0; j < head.n; ++j) {
                w[j] = head.sees(i, j) ? w[j] / total : 0;
                for (int64_t x = 0; x < head.e; ++x) {
                    const double v_j = v[(size_t)(j * head.e + x)];
                    if (head.sees(i, j)) out[(size_t)(i * head.e + x)] += w[j] * v_j;
                    size[(size_t)(i * head.e + x)] += head.sees(i, j) ? w[j] * fabs(v_j) : isfinite(v_j) ? 0 : INFINITY;
                }
            }
        }
    }
};

// The gradient, and the sum of the absolute values of all its terms.
struct Gradients {
    Numbers k, v, k_size, v_size;

    // gradient_size: of `gradient`, which may itself be a sum
    Gradients(const Head &head, const Reference &forward, const Numbers &gradient, const Numbers &gradient_size,
              const Numbers &keys, const Numbers &values)
        : k(keys.size()), v(values.size()), k_size(keys.size()), v_size(values.size()) {
        const int64_t n = head.n, d = head.d, e = head.e;
        for (int64_t i = 0; i < n; ++i) {
            const double *g = gradient.data() + i * e, *g_size = gradient_size.data() + i * e;
            const double mean = dot(g, forward.out.data() + i * e, e);
            const double mean_size = absolute_dot(g_size, forward.size.data() + i * e, e);
            for (int64_t j = 0; j < n; ++j) {
                const double w = forward.weights[(size_t)(i * n + j)], *v_j = values.data() + j * e;
                const double s = w * head.scale * (dot(g, v_j, e) - mean);
                const double s_size = w * head.scale * (absolute_dot(g_size, v_j, e) + mean_size);
                for (int64_t x = 0; x < e; ++x) {
                    v[(size_t)(j * e + x)] += w * g[x];
                    v_size[(size_t)(j * e + x)] += w * g_size[x];
                }
                for (int64_t x = 0; x < d; ++x) {
                    const double k_i = keys[(size_t)(i * d + x)], k_j = keys[(size_t)(j * d + x)];
                    k[(size_t)(i * d + x)] += s * k_j;
                    k[(size_t)(j * d + x)] += s * k_i;
                    k_size[(size_t)(i * d + x)] += s_size * fabs(k_j);
                    k_size[(size_t)(j * d + x)] += s_size * fabs(k_i);
                }
            }
        }
    }
};

// The largest number of entries of one size, other than zero.
inline double most_equal(const double *x, int64_t width) {
    Numbers sizes;
    for (int64_t at = 0; at < width; ++at)
        if (isfinite(x[at]) && x[at] != 0) sizes.push_back(fabs(x[at]));
    std::sort(sizes.begin(), sizes.end());
    size_t most = 0, first = 0;
    for (size_t at = 0; at < sizes.size(); ++at) {
        if (sizes[at] != sizes[first]) first = at;
        most = std::max(most, at - first + 1);
    }
    return (double)most;
}

// Whether a head must be computed row by row, must not be, or may be.
enum class Verdict { BY_ROW, EITHER, SYMMETRIC };

// What single precision can represent of a key: its squared length, only its entries, or neither.
enum class Held { FINE, LARGE, STRANGE };

struct Range {
    Verdict verdict = Verdict::SYMMETRIC;
    double most = 0;  // of scale |k|^2 over the tokens with finite squared length
    double equal = 0;  // the largest number of entries of one size in a key: clamped keys have many
    std::vector<Held> held;
    bool any_visible = false, all_fine = true, visible_fine = true;

    // sizes: sums of absolute values of the terms of each entry of k
    Range(const Head &head, const Numbers &k, const Numbers &v, const Numbers &sizes) {
        const double bits = 1.4426950408889634 / 2;
        double low = INFINITY, high = -INFINITY;
        bool small = true;
        for (int64_t i = 0; i < head.n; ++i) {
            const double *key = &k[(size_t)(i * head.d)], *size = &sizes[(size_t)(i * head.d)];
            const double square = dot(key, key, head.d), c = head.scale * square, room = dot(size, size, head.d);
            bool numbers = true;
            for (int64_t x = 0; x < head.d; ++x) numbers = numbers && isfinite(key[x]);
            held.push_back(!numbers ? Held::STRANGE : fmax(1, head.scale) * room < 1e37 ? Held::FINE : Held::LARGE);
            const bool fine = held.back() == Held::FINE;
            if (fine) most = fmax(most, head.scale * room);
            all_fine = all_fine && fine;
            equal = fmax(equal, most_equal(key, head.d));
            if (!head.visible_at(i)) continue;
            any_visible = true;
            visible_fine = visible_fine && fine;
            low = fmin(low, c * bits);
            high = numbers ? fmax(high, c * bits) : INFINITY;
        }
        double largest = 0;
        for (double x : v) {
            small = small && fabs(x) <= 0x1p28;
            largest = fmax(largest, fabs(x));
        }
        const double doubt = 0.01 + 1e-5 * most, spread = high - low;
        if (any_visible && (high > 256 + doubt || spread > 108.2 + doubt || !small)) verdict = Verdict::BY_ROW;
        // A hidden token may lie so far from all visible ones that its head must be computed row by row.
        else if (!all_fine || !small || (largest > 0 && largest < 1e-10) || most > 1e4 || (any_visible && (high > 256 - doubt || spread > 108.2 - doubt || head.visible)))
            verdict = Verdict::EITHER;
    }
};

inline Numbers magnitudes(Numbers x) {
    for (double &number : x) number = fabs(number);
    return x;
}

inline bool finite(const Numbers &numbers) {
    for (double x : numbers)
        if (!isfinite(x)) return false;
    return true;
}

inline double largest(const Numbers &numbers) {
    double found = 0;
    for (double x : numbers) found = fmax(found, fabs(x));
    return found;
}
