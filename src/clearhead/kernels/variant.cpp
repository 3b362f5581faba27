// The kernel for the instruction set that this file is compiled for.
#include <initializer_list>

#include "pursuit.h"
#include "span.h"

namespace {

void announce(const View &view, const Sizes &z, int64_t index, int64_t width) {
    const Rows rows = rows_of(view, index / z.heads, index % z.heads);
    upcoming.add(rows.data, rows.step, width);
}

struct ForwardWork {
    ForwardHead head;
    const Forward &call;
    ForwardWork(Scratch &scratch, const Forward &from, int members) : head(scratch, from, members), call(from) {}
    void run(int64_t index, Team team) {
        const Sizes &z = call.sizes;
        const int64_t b = index / z.heads, h = index % z.heads;
        announce(call.k, z, index + 1, z.key_width);
        for (const View *view : {&call.v, &call.out}) announce(*view, z, index + 1, z.value_width);
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
        for (const View *view : {&call.k, &call.k_gradient}) announce(*view, z, index + 1, z.key_width);
        for (const View *view : {&call.v, &call.out, &call.out_gradient, &call.v_gradient})
            announce(*view, z, index + 1, z.value_width);
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
    const int64_t end = dealt * (team.rank + 1) / team.size;
    for (int64_t index = dealt * team.rank / team.size; index < end; ++index) {
        Scratch scratch(solo);
        upcoming.restart(index + 1 < end ? call.sizes.tokens : 0);
        Work(scratch, call, 1).run(index, {0, 1});
    }
    upcoming.restart(0);
    for (int64_t index = dealt; index < heads; ++index) {
        Scratch scratch(shared);
        Work(scratch, call, team.size).run(index, team);
    }
}

int64_t floats_of_spans(const Spans &call, int) {
    Scratch counted(nullptr);
    SpanHead head(counted, call);
    return counted.used;
}

void work_on_spans(const Spans &call, Team team, float *solo, float *) {
    NoDenormals here;
    Scratch scratch(solo);
    const SpanHead spans(scratch, call);
    for (int64_t head = 0; head < call.heads; ++head) {
        if (team.rank < call.draws) spans.take_keys(head);
        for (int64_t draw = team.rank; draw < call.draws; draw += team.size) spans.run(head, draw);
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
    {floats_of_spans, work_on_spans},
};
