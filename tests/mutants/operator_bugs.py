"""Planted bugs in the operators and modules."""

from tests.mutants.mutant import Mutant

SOFTMAX = ("tests/operators/test_softmax.py",)
NOT_FINITE = ("tests/operators/test_not_finite.py",)
GENERAL = ("tests/operators/test_general.py", "tests/operators/test_general_facts.py")
SPATIAL = ("tests/operators/test_spatial.py",)
MODULES = ("tests/modules",)
KERNEL_PCA = ("tests/operators/test_kernel_pca.py", "tests/operators/test_kernel_pca_attention.py")
SOLVERS = ("tests/numerics/test_krylov.py", "tests/numerics/test_gram_product.py", "tests/numerics/test_partial.py")

MUTANTS = (
    Mutant("softmax: NaN becomes zero", "softmax:_surely_finite", "not size_q * size_k * max(1.0, abs(scale)) < torch.finfo(wide).max", "False", NOT_FINITE),
    Mutant("softmax: NaN scores weigh nothing", "softmax:_dense", "torch.where(scores == -torch.inf, 0, (scores - total).exp())", "torch.where(scores > -torch.inf, (scores - total).exp(), 0)", NOT_FINITE),
    Mutant("bound: infinite keys are clamped to zero", "clamped_keys:KeyBound.compute", "inverse < math.inf", "inverse == inverse", NOT_FINITE),
    Mutant("softmax: scale left out", "softmax:softmax_attention", "1 / math.sqrt(q.shape[-1])", "1.0", SOFTMAX),
    Mutant("softmax: kernel ignores the scale argument", "softmax:fused_attention", "partial(scaled_dot_product_attention, q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale)", "partial(scaled_dot_product_attention, q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal)", SOFTMAX),
    Mutant("softmax: mask dropped if there is a bias", "softmax:_attend", "bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)", "bias.to(q.dtype)", SOFTMAX),
    Mutant("softmax: mask inverted on the dense path", "softmax:_dense", "scores.masked_fill(~mask, -torch.inf)", "scores.masked_fill(mask, -torch.inf)", SOFTMAX),
    Mutant("softmax: soft cap not multiplied back", "softmax:_dense", "softcap * torch.tanh(scores / softcap)", "torch.tanh(scores / softcap)", SOFTMAX),
    Mutant("softmax: bias counted twice", "softmax:_dense", "scores + bias", "scores + 2 * bias", SOFTMAX),
    Mutant("softmax: sinks left out of the sum", "softmax:_dense", "torch.logaddexp(total, sinks.to(total.dtype)[:, None, None])", "total + 0 * sinks.sum()", SOFTMAX),
    Mutant("softmax: rows without visible keys passed to the kernel", "softmax:attend_with_keys.compute", "torch.where(has_keys, attend(mask=rows | ~has_keys), 0)", "attend(mask=rows | ~has_keys)", SOFTMAX),
    Mutant("softmax: scores in half precision", "softmax:_dense", "torch.promote_types(q.dtype, torch.float32)", "q.dtype", SOFTMAX),
    Mutant("softmax: sum over queries", "softmax:_dense", "torch.logsumexp(scores, dim=-1, keepdim=True)", "torch.logsumexp(scores, dim=-2, keepdim=True)", SOFTMAX),
    Mutant("general: scale of the Gaussian left out", "general:embedded_gaussian", "(q, k, scale)", "(q, k, 1.0)", GENERAL),
    Mutant("general: scaled by default", "general:gaussian", "def gaussian(*, scale: float=1.0) -> Similarity: ...", "def gaussian(*, scale: float=0.5) -> Similarity: ...", GENERAL),
    Mutant("general: theta applied to the keys as well", "general:Similarity.embedded", "self.phi(k)", "self.theta(k)", GENERAL),
    Mutant("general: dot product divided by its sum", "general:_divide_by_count", "torch.where(mask, weights, 0) / count.clamp_min(1)", "torch.where(mask, weights, 0) / torch.where(mask, weights, 0).sum(dim=-1, keepdim=True)", GENERAL),
    Mutant("general: hidden keys counted", "general:_divide_by_count", "mask.expand(*mask.shape[:-1], v.shape[-2]).sum(dim=-1, keepdim=True)", "mask.expand(*mask.shape[:-1], v.shape[-2]).sum(dim=-1, keepdim=True).clamp_min(1) * 0 + v.shape[-2]", GENERAL),
    Mutant("general: mask dropped in count-normalised similarities", "general:_divide_by_count", "torch.where(mask, weights, 0)", "weights + 0", GENERAL),
    Mutant("general: bias dropped in count-normalised similarities", "general:_with_scores", "scores if bias is None else scores + bias", "scores", GENERAL),
    Mutant("general: concatenation without ReLU", "general:concatenation.scores", "torch.relu((q @ w_q).unsqueeze(-1) + (k @ w_k).unsqueeze(-2))", "(q @ w_q).unsqueeze(-1) + (k @ w_k).unsqueeze(-2)", GENERAL),
    Mutant("general: concatenation, halves exchanged", "general:concatenation.scores", "(weight[:widths[0]].to(q.dtype), weight[widths[0]:].to(k.dtype))", "(weight[widths[1]:].to(q.dtype), weight[:widths[1]].to(k.dtype))", GENERAL),
    Mutant("general: distance without the keys' lengths", "general:gaussian_distance.fused", "-k.square().sum(dim=-1, keepdim=True) / 2", "-k.square().sum(dim=-1, keepdim=True) * 0", GENERAL),
    Mutant("general: bandwidth not squared", "general:gaussian_distance.fused", "bandwidth ** (-2)", "bandwidth ** (-1)", GENERAL),
    Mutant("general: distances not centred, so digits cancel", "general:gaussian_distance.fused", "(q - middle, k - middle)", "(q - 0 * middle, k - 0 * middle)", GENERAL),
    Mutant("general: g not applied", "general:apply_maps", "v if value is None else value(v)", "v", GENERAL),
    Mutant("spatial: height and width exchanged", "spatial:fold", "tokens.reshape(tokens.shape[0], *spatial, tokens.shape[2])", "tokens.reshape(tokens.shape[0], *spatial[::-1], tokens.shape[2])", SPATIAL),
    Mutant("spatial: output has the size of the keys", "spatial:spatial_attention", "spatial_size(q, channel_axis)", "spatial_size(k, channel_axis)", SPATIAL),
    Mutant("multi-head: heads concatenated in another order", "inputs:join_heads", "x.movedim(-3, -2)", "x.movedim(-3, -1)", MODULES),
    Mutant("multi-head: unequal heads concatenated by group", "multi_head:MultiHeadAttention._attend", "[outputs[i] for i in range(len(outputs))]", "list(outputs.values())", MODULES),
    Mutant("multi-head: grouped keys not shared", "multi_head:MultiHeadAttention._attend", "i // self._share", "i % self.num_kv_heads", MODULES),
    Mutant("multi-head: per-head mask applied to the wrong head", "multi_head:_added_to", "added[..., indices, :, :]", "added[..., [indices[0]] * len(indices), :, :]", MODULES),
    Mutant("multi-head: scale argument ignored", "multi_head:MultiHeadAttention._attend", "self.scale", "None", MODULES),
    Mutant("masks: causal mask aligned at the first key", "inputs:combine_masks", "torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n)", "torch.ones(n, m, dtype=torch.bool, device=query.device).tril()", MODULES),
    Mutant("masks: padding dropped if there is a mask", "inputs:combine_masks", "combined & by_key", "combined", MODULES),
    Mutant("kernel PCA: Gram matrix not centred", "gram:centred_gram", "less(less(gram, column_mean.unsqueeze(-1)), (column_mean - mean).unsqueeze(-2))", "less(gram, 0 * column_mean.unsqueeze(-1))", KERNEL_PCA),
    Mutant("kernel PCA: hidden keys counted in the mean", "gram:centred_gram", "visible.sum(dim=-1, keepdim=True).clamp_min(1)", "torch.full_like(visible[..., :1].long(), m)", KERNEL_PCA),
    Mutant("kernel PCA: hidden keys counted in g", "gram:centred_gram", "scores.masked_fill(~counted_keys.unsqueeze(-2), -torch.inf)", "scores.masked_fill(~counted_keys.unsqueeze(-2), 0)", KERNEL_PCA),
    Mutant("kernel PCA: rounding error counted as variance", "kernel_pca:_select", "torch.maximum(scales.rounding.unsqueeze(-1), pairs.residual)", "0", KERNEL_PCA),
    Mutant("kernel PCA: axes of the wrong length", "kernel_pca:_assemble", "torch.where(selected, pairs.values, 1).rsqrt", "torch.where(selected, pairs.values, 1).reciprocal", KERNEL_PCA),
    Mutant("kernel PCA: values not divided by g", "kernel_pca:_assemble", "-scales.log_g", "-0 * scales.log_g", KERNEL_PCA),
    Mutant("kernel PCA: scale of the Gram matrix counted twice", "kernel_pca:_assemble", "scales.log_scale.unsqueeze(-1) / 2", "scales.log_scale.unsqueeze(-1)", KERNEL_PCA),
    Mutant("kernel PCA: sign of axes not fixed", "kernel_pca:_assemble", "same_sign(pairs.vectors)", "1", KERNEL_PCA),
    Mutant("kernel PCA: no warning for equal eigenvalues", "eigenpairs:identified", "MIN_GAP * machine_epsilon(values.dtype)", "-MIN_GAP", KERNEL_PCA),
    Mutant("kernel PCA: one decomposition for all masks", "kernel_pca_attention:_by_key_set", "count[batch].unsqueeze(-1)", "count[batch].max()", KERNEL_PCA),
    Mutant("kernel PCA: queries centred by default", "kernel_pca_attention:_project", "center_queries", "not center_queries", KERNEL_PCA),
    Mutant("kernel PCA: derivative of an axis with the wrong sign", "eigenpairs:dense_eigenpairs", "values.unsqueeze(-2) - all_values.unsqueeze(-1)", "all_values.unsqueeze(-1) - values.unsqueeze(-2)", KERNEL_PCA),
    Mutant("krylov: always reports convergence", "krylov:krylov_eigenpairs", "exhausted or bool((residual.square() <= tolerance * values * distance).all())", "True", SOLVERS),
    Mutant("krylov: vectors not orthogonalised", "krylov:_new_directions", "image - basis @ (basis.mT @ image)", "image", SOLVERS),
    Mutant("tiles: lower half left out", "gram_product:_product.sums", "if j > i: ...", "if j < i: ...", SOLVERS),
    Mutant("tiles: not centred", "gram_product:TiledGram.product", "out.sub_(out.mean(dim=0))", "out", SOLVERS),
    Mutant("partial: vectors not orthogonalised", "partial:_group", "not np.abs(overlap).max() <= ORTHOGONAL[precision]", "False", SOLVERS),
)  # fmt: skip
