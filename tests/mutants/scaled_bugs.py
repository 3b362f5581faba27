"""Planted bugs in scaled attention."""

from tests.mutants.mutant import Mutant

SCALED = ("tests/operators/test_scaled.py", "tests/modules/test_scaled.py")

MUTANTS = (
    Mutant("scaled: added instead of subtracted", "scaled:scaled_values", "v - subtracted", "v + subtracted", SCALED),
    Mutant("scaled: mask left out of the symmetric form", "scaled:scaled_values", "symmetric_attention(k, v, mask=key_mask, scale=scale)", "symmetric_attention(k, v, scale=scale)", SCALED),
    Mutant("scaled: asymmetric form computes the symmetric one", "scaled:scaled_values", "softmax_attention(q, k, v, mask=key_mask, scale=scale)", "softmax_attention(k, k, v, mask=key_mask, scale=scale)", SCALED),
    Mutant("scaled: mask left out of the matrix form", "scaled:_masked_product", "torch.where(mask, matrix, 0)", "torch.where(mask | True, matrix, 0)", SCALED),
    Mutant("scaled: padded tokens kept in the matrix form", "scaled:_product", "torch.where(visible, v, 0)", "v", SCALED),
    Mutant("scaled: matrix transposed", "scaled:matrix_for_keys", "matrix.to(v.dtype)", "matrix.to(v.dtype).mT", ("tests/modules/test_scaled.py", "tests/operators/test_scaled.py")),
    Mutant("scaled: alpha of the first head for all heads", "scaled:expand_alpha", "alpha.to(torch.promote_types(v.dtype, torch.float32))[..., None, None]", "alpha.to(torch.promote_types(v.dtype, torch.float32)).mean()", SCALED),
    Mutant("scaled: other lengths not refused", "scaled:check_scaling", "mask is not None and mask.ndim > 1 and (mask.shape[-2] > 1)", "False", SCALED),
    Mutant("resizing: class token interpolated", "resizing:resize_matrix", "sizes[0] / sizes[1]", "before / num_tokens", SCALED),
    Mutant("resizing: entries not rescaled by the number of tokens", "resizing:resize_matrix", "share * weights", "weights", SCALED),
    Mutant("resizing: tokens skipped", "resizing:_interpolation", "interpolate(identity, size=(before, after), mode='bilinear', antialias=True)", "interpolate(identity, size=(before, after), mode='bilinear', antialias=False)", SCALED),
    Mutant("learned scaling: S not initialised at zero", "learned_scaling:LearnedScaling.__init__", "torch.zeros(shape)", "torch.full(shape, 1e-06)", SCALED),
    Mutant("learned scaling: one alpha instead of one per head", "learned_scaling:LearnedScaling.__init__", "heads if settings.per_head else 1", "1", SCALED),
)  # fmt: skip
