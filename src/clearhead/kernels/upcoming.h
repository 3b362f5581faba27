// The next head's memory, fetched into cache while this one is computed.
#pragma once

#include "vector.h"

namespace {

// Rows that the next head reads or writes. They are fetched a few at a time, between blocks of products, which use little
// memory: the processor waits if many are under way at once.
class Upcoming {
    static constexpr int MOST = 6, AT_ONCE = 3;
    static constexpr int64_t FITS = 1 << 18;  // floats in cache besides those of this head
    struct Column {
        const float *row;
        int64_t step, width;
    } columns[MOST] = {};
    int count = 0, at = 0;
    int64_t tokens = 0, floats = 0;

  public:
    void restart(int64_t tokens_of_head) {
        tokens = tokens_of_head;
        floats = count = at = 0;
    }
    void add(const float *first, int64_t step, int64_t width) {
        floats += tokens * width;
        if (tokens && floats <= FITS) columns[count++] = {first, step, width};
    }
    void fetch() {
        for (int turn = 0; turn < AT_ONCE && at < count; ++turn) {
            Column &column = columns[at];
            for (int64_t d = 0; d < column.width; d += 16) __builtin_prefetch(column.row + d);
            column.row += column.step;
            if (++at < count) continue;
            at = 0;
            if (--tokens == 0) count = 0;
        }
    }
};

thread_local Upcoming upcoming;

}  // namespace
