"""Planted bugs in symmetric attention and its pursuit, in the C++ kernel among them."""

from tests.mutants.mutant import Mutant

SYMMETRIC = ("tests/operators/test_symmetric.py", "tests/operators/test_symmetric_range.py")
PURSUIT = ("tests/operators/test_pursuit.py",)
RANGE = ("tests/kernels/test_range.py",)
REPEATS = ("tests/kernels/test_repeats.py",)
MODULE = ("tests/modules/test_symmetric.py",)
CAUSAL = ("tests/operators/test_causal.py",)
CACHES = ("tests/swap/test_caches.py",)

MUTANTS = (
    Mutant("causal: threads leave pairs out of a shared head", "head.h", "if (block % team.size != team.rank) continue;\n                for (int64_t query", "if (block % team.size != 0) continue;\n                for (int64_t query", CAUSAL),
    Mutant("causal: the token itself is hidden", "forward.h", "const int64_t end = SAME ? i + 1 : columns;", "const int64_t end = SAME ? (i ? i : 1) : columns;", CAUSAL),
    Mutant("causal: the rest of a vector is seen", "forward.h", "if (SAME) x = first_lanes(x, end - j);", "", CAUSAL),
    Mutant("causal: entries next to the diagonal are not cleared", "forward.h", "for (; j < smaller(end + 2 * ROWS, size); j += LANES) store(row + j, vec{});", "for (; j < smaller(end, size); j += LANES) store(row + j, vec{});", CAUSAL),
    Mutant("causal: row-by-row heads see later tokens of their tile", "forward.h", "return diagonal ? first_lanes(load(weight_j + j), i + 1 - j) : load(weight_j + j);", "return load(weight_j + j);", CAUSAL),
    Mutant("causal: row-by-row heads see later tiles", "forward.h", "second < (causal ? first + 1 : tiling.count)", "second < tiling.count", CAUSAL),
    Mutant("causal: tokens before the first visible one are divided by zero", "head.h", "while (causal && visible && sees_from", "while (false && visible && sees_from", CAUSAL),
    Mutant("causal: equal tokens get the output of the first", "forward.h", "} else if (!causal) {", "} else {", CAUSAL),
    Mutant("causal: mean not subtracted from S", "backward.h", "x * (load(t_row + j) - a_i * load(keys.weight + at_j + j))", "x * load(t_row + j)", CAUSAL),
    Mutant("causal: gradient of keys from their queries left out", "backward.h", "k.step, rows}, columns, key_stride, Sum{k_j, key_stride}, above);", "k.step, 0}, columns, key_stride, Sum{k_j, key_stride});", CAUSAL),
    Mutant("causal: steps of a triangle skipped by one block too many", "products.h", "const int64_t start = part == Part::LEFT_ABOVE ? row : 0;", "const int64_t start = part == Part::LEFT_ABOVE ? row + 1 : 0;", CAUSAL),
    Mutant("causal: all tokens have the threshold of the first", "pursuit.h", "row_or_zero(reach_row, d, left), rows.thresholds[token], call.pull);", "row_or_zero(reach_row, d, left), rows.thresholds[0], call.pull);", CAUSAL),
    Mutant("causal: sums of a prefix without its last token", "clamped_keys:_visible_sums", "torch.where(keys, size, 0).cumsum(dim=-1)", "torch.where(keys, size, 0).cumsum(dim=-1) - size", CAUSAL),
    Mutant("causal: hidden keys enter the sums of a prefix", "clamped_keys:_visible_sums", "torch.where(keys, size, 0)", "size", CAUSAL),
    Mutant("causal: any mask with an empty upper right corner is taken for a causal one", "softmax:_causal_keys", "not _equal_bytes(block, expected)", "False", CAUSAL),
    Mutant("causal: later blocks of a mask are not compared", "softmax:_causal_keys", "range(0, n, _BLOCK_ROWS)", "range(0, min(n, _BLOCK_ROWS), _BLOCK_ROWS)", CAUSAL),
    Mutant("causal: a causal mask of a model is not recognised", "softmax:split_causal", "keys is not None", "False", CACHES),
    Mutant("decoding: the first rows instead of the last", "named:Symmetric.attend_last", "k[..., k.shape[-2] - q.shape[-2]:, :]", "k[..., :q.shape[-2], :]", CACHES),
    Mutant("decoding: queries are not clamped", "clamped_keys:last_clamped_key_attention", "clamped[..., k.shape[-2] - tokens:, :]", "k.to(wide)[..., k.shape[-2] - tokens:, :]", CACHES),
    Mutant("decoding: earlier keys have the bound of the last", "clamped_keys:last_clamped_key_attention", "bound.compute(k, keys, is_causal=True)", "bound.compute(k, keys)", CACHES),
    Mutant("decoding: all rows are computed", "operator:_run_last", "hasattr(operator, 'attend_last')", "False", CACHES),
    Mutant("causal: the flag is lost without the kernel", "symmetric:symmetric_attention", "softmax_attention(k, k, v, mask=mask, is_causal=is_causal, scale=scale)", "softmax_attention(k, k, v, mask=mask, scale=scale)", CAUSAL),
    Mutant("kernel: equal keys have different outputs", "forward.h", "if (*repeated)\n", "if (false)\n", REPEATS),
    Mutant("kernel: keys of one length count as equal", "repeats.h", "if (!(k[a][d] == k[b][d])) return false;", "if (!(k[a][0] == k[b][0])) return false;", REPEATS),
    Mutant("kernel: column totals left out", "forward.h", "store(sums_j + j, load(sums_j + j) + x * w_i);", "store(sums_j + j, load(sums_j + j) + x * 0);", SYMMETRIC),
    Mutant("kernel: a pair updates only one of its tokens", "head.h", "    if (first != second)\n        product<Left::ROWS", "    if (false)\n        product<Left::ROWS", SYMMETRIC),
    Mutant("kernel: entries above the diagonal left out", "head.h", "for (int64_t j = 0; j <= i; j += 4) transpose_quads", "for (int64_t j = 0; j < i; j += 8) transpose_quads", SYMMETRIC),
    Mutant("kernel: hidden tokens are read", "head.h", "if (token >= tiling.n || (visible && !visible[token])) weight[token] = 0;", "if (token >= tiling.n) weight[token] = 0;", SYMMETRIC),
    Mutant("kernel: underflowing rows accepted", "head.h", "least_total = at_floor * ABOVE_FLOOR > LEAST_TOTAL ? at_floor * ABOVE_FLOOR : LEAST_TOTAL;", "least_total = 0;", RANGE),
    Mutant("kernel: floor left out where exponentials reach it", "head.h", "NEVER_AT_FLOOR = -FLOOR / 4 - 0.5f;", "NEVER_AT_FLOOR = -FLOOR / 2;", SYMMETRIC),
    Mutant("kernel: floor left out for hidden tokens", "head.h", "floored = visible || !(high <= NEVER_AT_FLOOR);", "floored = !(high <= NEVER_AT_FLOOR);", SYMMETRIC),
    Mutant("kernel: threads leave pairs out of a shared head", "head.h", "if (block % team.size != team.rank) continue;\n                const int64_t end", "if (block % team.size != 0) continue;\n                const int64_t end", SYMMETRIC),
    Mutant("kernel: row not rescaled at a new maximum", "forward.h", "if (rescaling != 1)", "if (false)", SYMMETRIC),
    Mutant("kernel: exponentials too large by half a bit", "vector.h", "p = p * f + 1.0f;", "p = p * f + 1.0005f * (1 + 0.01f * f);", SYMMETRIC),
    Mutant("kernel: one number for all c although tokens are hidden", "head.h", "uniform = !visible && high <= LARGEST_UNIFORM;", "uniform = high <= LARGEST_UNIFORM;", SYMMETRIC),
    Mutant("kernel: one number for all c although they are large", "head.h", "LARGEST_UNIFORM = 24;", "LARGEST_UNIFORM = 200;", (*SYMMETRIC, *RANGE)),
    Mutant("kernel: with one number for all c, only the last row of a block enters the columns' totals", "forward.h", "columns[v] = r ? columns[v] + x : x;", "columns[v] = x;", SYMMETRIC),
    Mutant("kernel: with one number for all c, the mean of one token is not subtracted from T", "backward.h", "SYMMETRIC ? a_i[row + r] + load(a_j + column + v * LANES) : all(a_i[row + r]);", "all(a_i[row + r]);", SYMMETRIC),
    Mutant("kernel: exponentials by a table (AVX-512) too large by half a bit", "vector.h", "return power + (power * f)", "return power * 1.0005f + (power * f)", SYMMETRIC),
    Mutant("kernel: mean not subtracted from T", "backward.h", "x * (load(t_row + j) - less)", "x * load(t_row + j)", SYMMETRIC),
    Mutant("kernel: row gradients assumed symmetric", "backward.h", "        dots(a_b_a + first", "        dots_once(a_b_a + first", SYMMETRIC),
    Mutant("kernel: logarithms not centred", "backward.h", "- LIFT + keys.c_of(token) + keys.middle;", "- LIFT + keys.c_of(token);", SYMMETRIC),
    Mutant("kernel: small gradients underflow", "backward.h", "token >= keys.sees_from ? LIFTED / totals[token] : 0", "token >= keys.sees_from ? 0x1p-30f * LIFTED / totals[token] : 0", SYMMETRIC),
    Mutant("kernel: dual sign ignored", "pursuit.h", "q = (l - pull * u) + c;", "q = (l - 2 * u) + c;", PURSUIT),
    Mutant("kernel: clamped entries propagate gradients", "pursuit.h", "? vec{} : by_c;", "? by_c : by_c;", PURSUIT),
    Mutant("kernel: sign left out of the threshold's gradient", "pursuit.h", "below ? -by_c : vec{});", "below ? by_c : vec{});", PURSUIT),
    Mutant("tiles: totals update only one of two tokens", "symmetric_tiles:tiles_forward", "totals[..., second] += (g.mT @ weighted.weight[..., first, None]).squeeze(-1)", "", SYMMETRIC),
    Mutant("tiles: mean not subtracted from T", "symmetric_tiles:tiles_backward", "t -= a_dot_o[..., first, None] * w[..., None, second] + w[..., first, None] * a_dot_o[..., None, second]", "a_dot_o[..., first, None] * w[..., None, second] + w[..., first, None] * a_dot_o[..., None, second]", SYMMETRIC),
    Mutant("tiles: any range accepted", "symmetric_tiles:", "_MAX_SPREAD = 75.0", "_MAX_SPREAD = 1000000000.0", SYMMETRIC),
    Mutant("row-by-row heads: gradient of rows only", "symmetric_tiles:_rows_backward", "dk += d_scores.mT @ k[:, rows]", "", SYMMETRIC),
    Mutant("padding: the same mask for all heads", "symmetric:key_mask_of", "by_query or by_head", "by_query", SYMMETRIC),
    Mutant("symmetric: a negative scale reaches the kernel", "symmetric:_custom_operator_works", "_LEAST_SCALE <= scale <= 1 / _LEAST_SCALE", "scale <= 1 / _LEAST_SCALE", SYMMETRIC),
    Mutant("symmetric: calls with gradients are not recorded", "symmetric_kernel:_is_recorded", "recording and x.requires_grad", "False", SYMMETRIC),
    Mutant("symmetric: batched gradients are given to the kernel", "symmetric_kernel:_gradient", "is_batched_gradient(gradient) or _is_recorded(gradient, k, v)", "_is_recorded(gradient, k, v)", SYMMETRIC),
    Mutant("symmetric: transforms do not see the gradient", "symmetric_kernel:_is_recorded", "functorch_active()", "False", SYMMETRIC),
    Mutant("symmetric: modes do not see the call", "symmetric_kernel:_is_recorded", "current_dispatch_mode() is not None", "False", SYMMETRIC),
    Mutant("module: scale left out", "token_attention:TokenAttention.forward", "self.scale", "None", MODULE),
)  # fmt: skip
