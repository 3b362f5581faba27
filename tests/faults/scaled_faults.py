"""Planted bugs in scaled attention."""

from fault import Fault

SCALED = ("tests/operators/test_scaled.py", "tests/modules/test_scaled.py")

SCALED_FAULTS = (
    Fault(
        "scaled: added instead of subtracted",
        "operators/scaled.py",
        "(v - subtracted).to(v.dtype)",
        "(v + subtracted).to(v.dtype)",
        SCALED,
    ),
    Fault(
        "scaled: mask left out of the symmetric form",
        "operators/scaled.py",
        "symmetric_attention(k, v, mask=key_mask, scale=scale)",
        "symmetric_attention(k, v, scale=scale)",
        SCALED,
    ),
    Fault(
        "scaled: asymmetric form computes the symmetric one",
        "operators/scaled.py",
        "subtracted = expand_alpha(s.alpha, v) * softmax_attention(q, k, v, mask=key_mask",
        "subtracted = expand_alpha(s.alpha, v) * softmax_attention(k, k, v, mask=key_mask",
        SCALED,
    ),
    Fault(
        "scaled: mask left out of the matrix form",
        "operators/scaled.py",
        "    masked = torch.where(mask, matrix, 0)\n",
        "    masked = torch.where(mask | True, matrix, 0)\n",
        SCALED,
    ),
    Fault(
        "scaled: padded tokens kept in the matrix form",
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
        "scaled: alpha of the first head for all heads",
        "operators/scaled.py",
        "torch.promote_types(v.dtype, torch.float32))[..., None, None]",
        "torch.promote_types(v.dtype, torch.float32)).mean()",
        SCALED,
    ),
    Fault(
        "scaled: other lengths not refused",
        "operators/scaled.py",
        "if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:",
        "if False:",
        SCALED,
    ),
    Fault(
        "resizing: class token interpolated",
        "operators/resizing.py",
        "share = sizes[0] / sizes[1]",
        "share = before / num_tokens",
        SCALED,
    ),
    Fault(
        "resizing: entries not rescaled by the number of tokens",
        "operators/resizing.py",
        "_with_prefix(num_prefix_tokens, share * weights).mT",
        "_with_prefix(num_prefix_tokens, weights).mT",
        SCALED,
    ),
    Fault(
        "resizing: tokens skipped",
        "operators/resizing.py",
        'mode="bilinear", antialias=True)',
        'mode="bilinear", antialias=False)',
        SCALED,
    ),
    Fault(
        "learned scaling: S not initialised at zero",
        "operators/learned_scaling.py",
        "nn.Parameter(torch.zeros(shape))",
        "nn.Parameter(torch.full(shape, 1e-6))",
        SCALED,
    ),
    Fault(
        "learned scaling: one alpha instead of one per head",
        "operators/learned_scaling.py",
        "(heads if settings.per_head else 1,)",
        "(1,)",
        SCALED,
    ),
)
