// Tokens of one head whose keys are equal.
//
// Their outputs are equal, but the symmetric form adds their sums in different orders. A pursuit multiplies that
// rounding error by its scores, which may be a million, so that equal tokens would drift apart. Therefore they all get
// the output of the first of them.
#pragma once

#include "head.h"

namespace {

class Repeats {
    const Keys &keys;
    const int64_t n, slots;   // a power of two, at least twice the tokens
    int32_t *first, *table;  // by token, the first with an equal key; a hash table of such tokens, -1 where empty

    static uint32_t bits_of(float x) {
        x += 0.0f;  // minus zero equals zero
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        return bits;
    }

    // Equal keys have equal c. Where keys are normalised, c takes few values, so the hash uses two numbers of the key as well.
    int64_t slot_of(int64_t token) const {
        const int64_t size = keys.tiling.size, tile = token / size;
        const float *key = keys.across + tile * size * keys.width + (token - tile * size);
        const uint64_t mixed = (((uint64_t)bits_of(keys.c[token]) << 32 | bits_of(key[0])) ^
                                ((uint64_t)bits_of(key[(keys.width - 1) * size]) << 16)) *
                               0x9E3779B97F4A7C15u;
        return (int64_t)(mixed >> 32) & (slots - 1);
    }

    bool equal(Rows k, int64_t a, int64_t b) const {
        if (!(keys.c[a] == keys.c[b])) return false;
        for (int64_t d = 0; d < keys.width; ++d)
            if (!(k[a][d] == k[b][d])) return false;
        return true;
    }

    static int64_t slots_for(int64_t tokens) {
        int64_t slots = 2;
        while (slots < 2 * tokens) slots *= 2;
        return slots;
    }

  public:
    Repeats(Scratch &scratch, const Keys &of)
        : keys(of),
          n(of.tiling.n),
          slots(slots_for(n)),
          first((int32_t *)scratch.take(n)),
          table((int32_t *)scratch.take(slots)) {}

    // After the keys are packed. Returns whether there are any.
    bool find(Rows k) const {
        bool any = false;
        if (keys.width == 0) return false;
        memset(table, -1, sizeof(int32_t) * slots);
        for (int64_t token = 0; token < n; ++token) {
            int64_t slot = slot_of(token);
            while (table[slot] >= 0 && !equal(k, table[slot], token)) slot = (slot + 1) & (slots - 1);
            if (table[slot] < 0) table[slot] = (int32_t)token;
            first[token] = table[slot];
            any = any || first[token] != token;
        }
        return any;
    }

    void copy(Rows out, int64_t width, float *totals, int64_t token) const {
        const int64_t from = first[token];
        if (from == token) return;
        if (width) memcpy(out[token], out[from], sizeof(float) * width);
        if (totals) totals[token] = totals[from];
    }
};

}  // namespace
