// The kernel for the instruction set that this file is compiled for.
#include "pursuit.h"

namespace {

struct ForwardWork {
    ForwardHead head;
    const Forward &call;
    ForwardWork(Scratch &scratch, const Forward &from, int members) : head(scratch, from, members), call(from) {}
    void run(int64_t index, Team team) {
        const Sizes &z = call.sizes;
        const int64_t b = index / z.heads, h = index % z.heads;
        head.run(rows_of(call.k, b, h), rows_of(call.v, b, h), rows_of(call.out, b, h),
                 call.visible ? call.visible + b * z.tokens : nullptr, call.totals ? call.totals + index * z.tokens : nullptr,
                 call.by_row ? call.by_row + index : nullptr, team);
    }
};

struct BackwardWork {
    BackwardHead head;
    const Backward &call;
    BackwardWork(Scratch &scratch, const Backward &from, int members) : head(scratch, from, members), call(from) {}
    void run(int64_t index, Team team) {
        const Sizes &z = call.sizes;
        const int64_t b = index / z.heads, h = index % z.heads;
        head.run(rows_of(call.k, b, h), rows_of(call.v, b, h), rows_of(call.out, b, h), rows_of(call.out_gradient, b, h),
                 call.visible ? call.visible + b * z.tokens : nullptr, call.totals + index * z.tokens, call.by_row[index],
                 rows_of(call.k_gradient, b, h), rows_of(call.v_gradient, b, h), team);
    }
};

template <typename Work, typename Kind>
int64_t floats(const Kind &call, int members) {
    Scratch counted(nullptr);
    Work work(counted, call, members);
    return counted.used;
}

constexpr int64_t WORTH_SHARING = 128;  // tokens for each member

// Heads are distributed evenly; the remaining ones are shared by all threads if they are long enough.
template <typename Work, typename Kind>
void work(const Kind &call, Team team, float *solo, float *shared) {
    NoDenormals here;
    const int64_t heads = call.sizes.batch * call.sizes.heads;
    const int64_t left_over = call.sizes.tokens >= WORTH_SHARING * team.size ? heads % team.size : 0, dealt = heads - left_over;
    for (int64_t index = dealt * team.rank / team.size; index < dealt * (team.rank + 1) / team.size; ++index) {
        Scratch scratch(solo);
        Work(scratch, call, 1).run(index, {0, 1});
    }
    for (int64_t index = dealt; index < heads; ++index) {
        Scratch scratch(shared);
        Work(scratch, call, team.size).run(index, team);
    }
}

}  // namespace

#define JOINED(a, b) a##_##b
#define NAMED(a, b) JOINED(a, b)

extern const Variant NAMED(clearhead, CLEARHEAD_VARIANT);
const Variant NAMED(clearhead, CLEARHEAD_VARIANT) = {
    {floats<ForwardWork, Forward>, work<ForwardWork, Forward>},
    {floats<BackwardWork, Backward>, work<BackwardWork, Backward>},
    {floats<PursuitHead, Pursuit>, work<PursuitHead, Pursuit>},
    {floats<PursuitBackwardHead, PursuitBackward>, work<PursuitBackwardHead, PursuitBackward>},
};
