"""Bugs that the tests must find in symmetric attention and its pursuit, in the C++ kernel among them."""

from fault import Fault

SYMMETRIC = ("tests/operators/test_symmetric.py", "tests/operators/test_symmetric_range.py")
PURSUIT = ("tests/operators/test_pursuit.py",)
RANGE = ("tests/kernels/test_range.py",)
MODULE = ("tests/modules/test_symmetric.py",)

SYMMETRIC_FAULTS = (
    Fault(
        "kernel: totals of columns left out",
        "kernels/forward.h",
        "if (!SAME) store(sums_j + j",
        "if (false) store(sums_j + j",
        SYMMETRIC,
    ),
    Fault(
        "kernel: a pair serves one of its tokens",
        "kernels/head.h",
        "    if (first != second)\n        product<Left::ROWS",
        "    if (false)\n        product<Left::ROWS",
        SYMMETRIC,
    ),
    Fault(
        "kernel: nothing above the diagonal",
        "kernels/head.h",
        "for (int64_t j = 0; j <= i; j += 4) turn_quads",
        "for (int64_t j = 0; j < i; j += 8) turn_quads",
        SYMMETRIC,
    ),
    Fault(
        "kernel: hidden tokens are seen",
        "kernels/head.h",
        "if (token >= tiling.n || (seen && !seen[token])) weight[token] = 0;",
        "if (token >= tiling.n) weight[token] = 0;",
        SYMMETRIC,
    ),
    Fault(
        "kernel: rows at the floor are trusted",
        "kernels/head.h",
        "least_total = at_floor * ABOVE_FLOOR > LEAST_TOTAL ? at_floor * ABOVE_FLOOR : LEAST_TOTAL;",
        "least_total = 0;",
        RANGE,
    ),
    Fault(
        "kernel: members leave pairs out",
        "kernels/head.h",
        "if (turn % team.size != team.rank) continue;",
        "if (turn % team.size != 0) continue;",
        SYMMETRIC,
    ),
    Fault(
        "kernel: a row is not lowered by a new largest",
        "kernels/forward.h",
        "if (lowered != 1)",
        "if (false)",
        SYMMETRIC,
    ),
    Fault(
        "kernel: exponentials are half a bit too large",
        "kernels/vector.h",
        "p = p * f + 1.0f;",
        "p = p * f + 1.0005f * (1 + 0.01f * f);",
        SYMMETRIC,
    ),
    Fault(
        "kernel: a mean is not taken out of T",
        "kernels/backward.h",
        "x * (load(t_row + j) - less)",
        "x * load(t_row + j)",
        SYMMETRIC,
    ),
    Fault(
        "kernel: gradients of rows taken for symmetric",
        "kernels/backward.h",
        "        dots(three + first",
        "        symmetric_dots(three + first",
        SYMMETRIC,
    ),
    Fault(
        "kernel: logarithms without their middle",
        "kernels/backward.h",
        "- LIFT + keys.c[token] + keys.middle;",
        "- LIFT + keys.c[token];",
        SYMMETRIC,
    ),
    Fault(
        "kernel: small gradients are lost",
        "kernels/backward.h",
        "keys.some_seen ? LIFTED / totals[token] : 0",
        "keys.some_seen ? 0x1p-30f * LIFTED / totals[token] : 0",
        SYMMETRIC,
    ),
    Fault(
        "kernel: the dual sign is ignored",
        "kernels/pursuit.h",
        "q = (l - pull * u) + c;",
        "q = (l - 2 * u) + c;",
        PURSUIT,
    ),
    Fault(
        "kernel: clamped entries pass gradients",
        "kernels/pursuit.h",
        "? vec{} : by_c;",
        "? by_c : by_c;",
        PURSUIT,
    ),
    Fault(
        "kernel: the threshold's gradient has one sign",
        "kernels/pursuit.h",
        "below ? -by_c : vec{};",
        "below ? by_c : vec{};",
        PURSUIT,
    ),
    Fault(
        "tiles: totals serve one of two tokens",
        "operators/symmetric_tiles.py",
        "            totals[..., second] += (g.mT @ weighted.weight[..., first, None]).squeeze(-1)\n",
        "",
        SYMMETRIC,
    ),
    Fault(
        "tiles: a mean is not taken out of T",
        "operators/symmetric_tiles.py",
        "        t -= a_dot_o",
        "        a_dot_o",
        SYMMETRIC,
    ),
    Fault(
        "tiles: any spread is held",
        "operators/symmetric_tiles.py",
        "_MAX_SPREAD = 75.0",
        "_MAX_SPREAD = 1e9",
        SYMMETRIC,
    ),
    Fault(
        "plain heads: gradient of rows only",
        "operators/symmetric_tiles.py",
        "        dk += d_scores.mT @ k[:, rows]\n",
        "",
        SYMMETRIC,
    ),
    Fault(
        "padding: one mask for all heads",
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
        "module: scale forgotten",
        "modules/token_attention.py",
        '"scale": self.scale}',
        '"scale": None}',
        MODULE,
    ),
)
