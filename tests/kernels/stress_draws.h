// Random numbers, sizes and tensors for the stress driver; tensors are in blocks that end with their last row.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "interface.h"

// Controls: blocks that are one float too short, which the sanitizer must report, or a reference with another scale,
// which the driver must report.
enum class Control { NONE, SHORT, OTHER };
inline Control control = Control::NONE;

// splitmix64: the same numbers on every platform.
struct Draw {
    uint64_t state;
    uint64_t bits() {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }
    int64_t below(int64_t n) { return (int64_t)(bits() % (uint64_t)n); }
    bool one_in(int64_t n) { return below(n) == 0; }
    double uniform() { return (double)(bits() >> 11) * 0x1p-53; }
    float normal() { return (float)(sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform())); }
    template <typename T, size_t N>
    T of(const T (&list)[N]) {
        return list[below(N)];
    }
};

inline int64_t draw_tokens(Draw &draw) {
    static const int64_t few[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 19, 23, 29, 31, 32, 33};
    static const int64_t more[] = {37, 41, 47, 48, 49, 61, 63, 64, 65, 79, 80, 81, 95, 96, 97, 98, 101, 111, 112, 113, 127};
    static const int64_t many[] = {128, 131, 159, 160, 191, 192, 193, 197, 199, 223, 255, 256, 257, 263, 287, 288, 289, 300};
    static const int64_t most[] = {384, 385, 509, 512, 513, 521, 577, 769, 1024, 1031, 1100};
    const int64_t kind = draw.below(100);
    return kind < 55 ? draw.of(few) : kind < 85 ? draw.of(more) : kind < 97 ? draw.of(many) : draw.of(most);
}

inline int64_t draw_width(Draw &draw) {
    static const int64_t few[] = {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17};
    static const int64_t more[] = {19, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 67};
    static const int64_t most[] = {79, 80, 81, 95, 96, 97, 113, 127, 128, 129, 139, 140};
    const int64_t kind = draw.below(10);
    return kind < 6 ? draw.of(few) : kind < 9 ? draw.of(more) : draw.of(most);
}

// Sizes whose work stays below a bound: first the batch and heads shrink, then the widths.
inline Sizes draw_sizes(Draw &draw) {
    static const int64_t batches[] = {0, 1, 1, 1, 1, 2, 2, 3}, heads[] = {0, 1, 1, 1, 2, 2, 3, 5, 7};
    Sizes z = {draw.of(batches), draw.of(heads), draw_tokens(draw), draw_width(draw), draw_width(draw)};
    if (draw.one_in(2)) z.value_width = z.key_width;
    if (draw.one_in(20)) z.value_width = 0;
    const double bound = draw.one_in(20) ? 2e7 : 2e6;
    const auto work = [&] { return (double)(z.batch * z.heads * z.tokens * z.tokens) * (double)(z.key_width + z.value_width); };
    while (work() > bound && z.batch > 1) --z.batch;
    while (work() > bound && z.heads > 1) --z.heads;
    while (work() > bound && z.key_width > 3) z.key_width = z.value_width = z.key_width / 2;
    return z;
}

enum class Role { INPUT, OUTPUT };

// (batch, heads, tokens, width) with strides like those of torch tensors.
class Tensor {
    static constexpr uint32_t UNTOUCHED = 0x7fc0beef;  // a marked NaN: reading between rows gives NaN
    Sizes z;
    int64_t width, floats = 0;
    float *block = nullptr;
    size_t mapped = 0;

    float *row(int64_t b, int64_t h, int64_t n) const {
        return view.data + b * view.batch_step + h * view.head_step + n * view.token_step;
    }
    template <typename Work>
    void for_rows(Work work) const {
        if (view.data)
            for (int64_t b = 0; b < z.batch; ++b)
                for (int64_t h = 0; h < z.heads; ++h)
                    for (int64_t n = 0; n < z.tokens; ++n) work(row(b, h, n), ((b * z.heads + h) * z.tokens + n) * width);
    }
    void draw_steps(Draw &draw, Role role, bool far) {
        static const int orders[][3] = {{2, 1, 0}, {2, 1, 0}, {1, 2, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {0, 1, 2}, {1, 0, 2}};
        int64_t *steps[] = {&view.batch_step, &view.head_step, &view.token_step};
        const int64_t sizes[] = {z.batch, z.heads, z.tokens};
        const int *order = orders[draw.below(8)];
        const bool gaps = draw.one_in(3);
        int64_t step = width;
        for (int at = 0; at < 3; ++at) {
            if (gaps) step += draw.below(19);
            if (far && at == 2) step += 3'000'000'000;  // more than fits into 32 bits
            if (far && at == 0) step += 1'000'003;
            *steps[order[at]] = step;
            step *= sizes[order[at]] > 0 ? sizes[order[at]] : 1;
        }
        if (role == Role::INPUT && draw.one_in(8)) *steps[draw.below(3)] = 0;  // as torch's expand
        if (role == Role::INPUT && draw.one_in(40)) *steps[0] = *steps[1] = *steps[2] = 0;
    }

  public:
    View view = {};

    Tensor(Draw &draw, const Sizes &sizes, int64_t row_width, Role role) : z(sizes), width(row_width) {
        const int64_t rows = z.batch * z.heads * z.tokens;
        bool far = draw.one_in(25) && rows <= 64 && width;
        draw_steps(draw, role, far);
        if (!rows || !width) return;  // torch gives no address for an empty tensor
        floats = (z.batch - 1) * view.batch_step + (z.heads - 1) * view.head_step + (z.tokens - 1) * view.token_step + width;
        if (far) {  // untouched pages cost nothing; the page after the last one must not be accessed
            const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = sizeof(float) * (size_t)floats;
            mapped = (bytes + page - 1) / page * page + page;
            void *got = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (got != MAP_FAILED) {
                block = (float *)got;
                mprotect((char *)got + mapped - page, page, PROT_NONE);
                view.data = (float *)((char *)got + mapped - page - bytes);
                return;
            }
            mapped = 0;
            view.batch_step = view.head_step = view.token_step = 0;
            floats = width;
            if (role == Role::OUTPUT) {
                view = {nullptr, z.heads * z.tokens * width, z.tokens * width, width};
                floats = rows * width;
            }
        }
        if (control == Control::SHORT && role == Role::OUTPUT) --floats;
        view.data = block = (float *)malloc(sizeof(float) * (size_t)floats);
        for (int64_t at = 0; at < floats; ++at) memcpy(block + at, &UNTOUCHED, sizeof UNTOUCHED);
    }
    ~Tensor() { mapped ? (void)munmap(block, mapped) : free(block); }
    Tensor(const Tensor &) = delete;

    bool is_far() const { return mapped; }
    std::vector<float> dense() const {
        std::vector<float> all((size_t)(z.batch * z.heads * z.tokens * width));
        for_rows([&](const float *from, int64_t at) { memcpy(&all[(size_t)at], from, sizeof(float) * (size_t)width); });
        return all;
    }
    // With strides of 0 the last row written remains.
    void write(const std::vector<float> &all) const {
        for_rows([&](float *to, int64_t at) { memcpy(to, &all[(size_t)at], sizeof(float) * (size_t)width); });
    }
    // Marks all rows again; returns whether everything between them is still marked.
    bool only_rows_were_written() const {
        for_rows([&](float *to, int64_t) {
            for (int64_t d = 0; d < width; ++d) memcpy(to + d, &UNTOUCHED, sizeof UNTOUCHED);
        });
        if (mapped) return true;
        for (int64_t at = 0; at < floats; ++at)
            if (memcmp(block + at, &UNTOUCHED, sizeof UNTOUCHED)) return false;
        return true;
    }
};
