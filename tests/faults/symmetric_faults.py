"""Planted bugs in symmetric attention and its pursuit, in the C++ kernel among them."""

from fault import Fault

SYMMETRIC = ("tests/operators/test_symmetric.py", "tests/operators/test_symmetric_range.py")
PURSUIT = ("tests/operators/test_pursuit.py",)
RANGE = ("tests/kernels/test_range.py",)
REPEATS = ("tests/kernels/test_repeats.py",)
MODULE = ("tests/modules/test_symmetric.py",)

SYMMETRIC_FAULTS = (
    Fault(
        "kernel: equal keys have different outputs",
        "kernels/forward.h",
        "if (*repeated)\n",
        "if (false)\n",
        REPEATS,
    ),
    Fault(
        "kernel: keys of one length count as equal",
        "kernels/repeats.h",
        "if (!(k[a][d] == k[b][d])) return false;",
        "if (!(k[a][0] == k[b][0])) return false;",
        REPEATS,
    ),
    Fault(
        "kernel: column totals left out",
        "kernels/forward.h",
        "if (!SAME) store(sums_j + j",
        "if (false) store(sums_j + j",
        SYMMETRIC,
    ),
    Fault(
        "kernel: a pair updates only one of its tokens",
        "kernels/head.h",
        "    if (first != second)\n        product<Left::ROWS",
        "    if (false)\n        product<Left::ROWS",
        SYMMETRIC,
    ),
    Fault(
        "kernel: entries above the diagonal left out",
        "kernels/head.h",
        "for (int64_t j = 0; j <= i; j += 4) transpose_quads",
        "for (int64_t j = 0; j < i; j += 8) transpose_quads",
        SYMMETRIC,
    ),
    Fault(
        "kernel: hidden tokens are read",
        "kernels/head.h",
        "if (token >= tiling.n || (visible && !visible[token])) weight[token] = 0;",
        "if (token >= tiling.n) weight[token] = 0;",
        SYMMETRIC,
    ),
    Fault(
        "kernel: underflowing rows accepted",
        "kernels/head.h",
        "least_total = at_floor * ABOVE_FLOOR > LEAST_TOTAL ? at_floor * ABOVE_FLOOR : LEAST_TOTAL;",
        "least_total = 0;",
        RANGE,
    ),
    Fault(
        "kernel: threads leave pairs out of a shared head",
        "kernels/head.h",
        "if (block % team.size != team.rank) continue;",
        "if (block % team.size != 0) continue;",
        SYMMETRIC,
    ),
    Fault(
        "kernel: row not rescaled at a new maximum",
        "kernels/forward.h",
        "if (rescaling != 1)",
        "if (false)",
        SYMMETRIC,
    ),
    Fault(
        "kernel: exponentials too large by half a bit",
        "kernels/vector.h",
        "p = p * f + 1.0f;",
        "p = p * f + 1.0005f * (1 + 0.01f * f);",
        SYMMETRIC,
    ),
    Fault(
        "kernel: mean not subtracted from T",
        "kernels/backward.h",
        "x * (load(t_row + j) - less)",
        "x * load(t_row + j)",
        SYMMETRIC,
    ),
    Fault(
        "kernel: row gradients assumed symmetric",
        "kernels/backward.h",
        "        dots(a_b_a + first",
        "        symmetric_dots(a_b_a + first",
        SYMMETRIC,
    ),
    Fault(
        "kernel: logarithms not centred",
        "kernels/backward.h",
        "- LIFT + keys.c[token] + keys.middle;",
        "- LIFT + keys.c[token];",
        SYMMETRIC,
    ),
    Fault(
        "kernel: small gradients underflow",
        "kernels/backward.h",
        "keys.any_visible ? LIFTED / totals[token] : 0",
        "keys.any_visible ? 0x1p-30f * LIFTED / totals[token] : 0",
        SYMMETRIC,
    ),
    Fault(
        "kernel: dual sign ignored",
        "kernels/pursuit.h",
        "q = (l - pull * u) + c;",
        "q = (l - 2 * u) + c;",
        PURSUIT,
    ),
    Fault(
        "kernel: clamped entries propagate gradients",
        "kernels/pursuit.h",
        "? vec{} : by_c;",
        "? by_c : by_c;",
        PURSUIT,
    ),
    Fault(
        "kernel: sign left out of the threshold's gradient",
        "kernels/pursuit.h",
        "below ? -by_c : vec{};",
        "below ? by_c : vec{};",
        PURSUIT,
    ),
    Fault(
        "tiles: totals update only one of two tokens",
        "operators/symmetric_tiles.py",
        "            totals[..., second] += (g.mT @ weighted.weight[..., first, None]).squeeze(-1)\n",
        "",
        SYMMETRIC,
    ),
    Fault(
        "tiles: mean not subtracted from T",
        "operators/symmetric_tiles.py",
        "        t -= a_dot_o",
        "        a_dot_o",
        SYMMETRIC,
    ),
    Fault(
        "tiles: any range accepted",
        "operators/symmetric_tiles.py",
        "_MAX_SPREAD = 75.0",
        "_MAX_SPREAD = 1e9",
        SYMMETRIC,
    ),
    Fault(
        "row-by-row heads: gradient of rows only",
        "operators/symmetric_tiles.py",
        "        dk += d_scores.mT @ k[:, rows]\n",
        "",
        SYMMETRIC,
    ),
    Fault(
        "padding: the same mask for all heads",
        "operators/symmetric.py",
        "    if by_query or by_head:",
        "    if by_query:",
        SYMMETRIC,
    ),
    Fault(
        "symmetric: a negative scale reaches the kernel",
        "operators/symmetric.py",
        "_LEAST_SCALE <= scale <= 1 / _LEAST_SCALE",
        "scale <= 1 / _LEAST_SCALE",
        SYMMETRIC,
    ),
    Fault(
        "module: scale left out",
        "modules/token_attention.py",
        '"scale": self.scale}',
        '"scale": None}',
        MODULE,
    ),
)
