"""Bugs that the tests must find in scaled attention, each as the right text and the wrong one."""

from fault import Fault

SCALED = ("tests/operators/test_scaled.py", "tests/modules/test_scaled.py")

SCALED_FAULTS = (
    Fault(
        "scaled: added in place of taken off",
        "operators/scaled.py",
        "(v - subtracted).to(v.dtype)",
        "(v + subtracted).to(v.dtype)",
        SCALED,
    ),
    Fault(
        "scaled: symmetric attention looks everywhere",
        "operators/scaled.py",
        "symmetric_attention(k, v, mask=key_mask, scale=scale)",
        "symmetric_attention(k, v, scale=scale)",
        SCALED,
    ),
    Fault(
        "scaled: asymmetric is symmetric",
        "operators/scaled.py",
        "subtracted = expand_alpha(s.alpha, v) * softmax_attention(q, k, v, mask=key_mask",
        "subtracted = expand_alpha(s.alpha, v) * softmax_attention(k, k, v, mask=key_mask",
        SCALED,
    ),
    Fault(
        "scaled: matrix looks everywhere",
        "operators/scaled.py",
        "    masked = torch.where(mask, matrix, 0)\n",
        "    masked = torch.where(mask | True, matrix, 0)\n",
        SCALED,
    ),
    Fault(
        "scaled: matrix keeps padded tokens",
        "operators/scaled.py",
        "return _batched_product(matrix, torch.where(visible, v, 0))",
        "return _batched_product(matrix, v)",
        SCALED,
    ),
    Fault(
        "scaled: matrix transposed",
        "operators/scaled.py",
        "    return matrix.to(v.dtype)\n",
        "    return matrix.to(v.dtype).mT\n",
        ("tests/modules/test_scaled.py", "tests/operators/test_scaled.py"),
    ),
    Fault(
        "scaled: one alpha for all heads",
        "operators/scaled.py",
        "torch.promote_types(v.dtype, torch.float32))[..., None, None]",
        "torch.promote_types(v.dtype, torch.float32)).mean()",
        SCALED,
    ),
    Fault(
        "scaled: another length refused by nobody",
        "operators/scaled.py",
        "if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:",
        "if False:",
        SCALED,
    ),
    Fault(
        "resizing: class token mixed in",
        "operators/resizing.py",
        "share = sizes[0] / sizes[1]",
        "share = before / num_tokens",
        SCALED,
    ),
    Fault(
        "resizing: entries not divided by how many there are",
        "operators/resizing.py",
        "_with_prefix(num_prefix_tokens, share * weights).mT",
        "_with_prefix(num_prefix_tokens, weights).mT",
        SCALED,
    ),
    Fault(
        "resizing: tokens passed over",
        "operators/resizing.py",
        'mode="bilinear", antialias=True)',
        'mode="bilinear", antialias=False)',
        SCALED,
    ),
    Fault(
        "learned scaling: S not zero at first",
        "operators/learned_scaling.py",
        "nn.Parameter(torch.zeros(shape))",
        "nn.Parameter(torch.full(shape, 1e-6))",
        SCALED,
    ),
    Fault(
        "learned scaling: one alpha in place of one per head",
        "operators/learned_scaling.py",
        "(heads if settings.per_head else 1,)",
        "(1,)",
        SCALED,
    ),
)
