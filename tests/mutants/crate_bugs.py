"""Planted bugs in CRATE, its operators and modules, its relatives, and token statistics."""

from tests.mutants.mutant import Mutant

STEPS = ("tests/operators/test_subspace.py", "tests/operators/test_sparse_coding.py")
MODULES = ("tests/modules/test_subspace.py", "tests/modules/test_sparse_coding.py")
EVERY = ("tests/modules/test_every_module.py",)
CRATE = ("lab/tests/models/test_crate.py",)
RELEASED = ("lab/tests/models/test_crate_released.py",)
LANGUAGE = ("lab/tests/models/test_crate_language.py",)
MASKED = ("lab/tests/models/test_crate_autoencoder.py",)
STATISTICS = ("tests/operators/test_token_statistics.py", "tests/modules/test_token_statistics.py")

MUTANTS = (
    Mutant("MSSA: shrinking left out", "subspace:subspace_step", "(1 - length) * z", "z", STEPS),
    Mutant("MSSA: eps left out of a", "subspace:subspace_step", "z.shape[-2] * eps ** 2", "z.shape[-2]", STEPS),
    Mutant("MSSA: heads and axes exchanged", "subspace:projected", "flat.reshape(*z.shape[:-1], k, p).movedim(-2, -3)", "flat.reshape(*z.shape[:-1], p, k).movedim(-1, -3)", STEPS),
    Mutant("ISTA: misprinted sign", "sparse_coding:ista_step", "z + step * ((z - z @ dictionary.mT) @ dictionary) - step * penalty", "z + step * ((z - z @ dictionary.mT) @ dictionary) + step * penalty", STEPS),
    Mutant("ISTA: dictionary transposed, many tokens", "sparse_coding:ista_step", "dictionary - dictionary.mT @ dictionary", "dictionary.mT - dictionary.mT @ dictionary", STEPS),
    Mutant("ISTA: no threshold, many tokens", "sparse_coding:ista_step", "-step * penalty", "0.0", STEPS),
    Mutant("ISTA: largest step from another norm", "sparse_coding:largest_step", "torch.linalg.matrix_norm(dictionary.detach().double(), ord=2)", "torch.linalg.matrix_norm(dictionary.detach().double(), ord='fro')", STEPS),
    Mutant("ODL: one step instead of two", "sparse_coding:overcomplete_step", "first + drive", "drive", STEPS),
    Mutant("ISTA: no warning for a step that is too long", "sparse_coding:_Dictionary.check_step", "unknown or self._checked_version == tensor_version(self.dictionary)", "True or self._checked_version == tensor_version(self.dictionary)", MODULES),
    Mutant("ISTA: dtype mismatch under autocast", "sparse_coding:_Dictionary.cast", "x.dtype is not torch.float64", "False", MODULES),
    Mutant("MSSA: tied map transposed", "subspace:SubspaceAttention.forward", "self.subspaces.weight.mT", "self.subspaces.weight.reshape(-1, self.subspaces.out_features)", MODULES),
    Mutant("MSSA: scale left out", "subspace:SubspaceAttention.forward", "self.scale", "None", MODULES),
    Mutant("MSSA: empty batch fails", "inputs:split_heads", "x.shape[-1] // num_heads", "-1", EVERY),
    Mutant("CRATE: residual connection around the sparse step", "crate:CrateBlock.forward", "x + codes if self.overcomplete else codes", "x + codes", CRATE),
    Mutant("CRATE: overcomplete block without residual", "crate:CrateBlock.forward", "x + codes if self.overcomplete else codes", "codes", CRATE),
    Mutant("CRATE: negated form not negated", "crate:CrateBlock.forward", "x - attended", "x + attended", CRATE),
    Mutant("CRATE: patches read channel by channel", "crate:Crate.forward", "cut.permute(0, 1, 3, 4, 2)", "cut", CRATE),
    Mutant("CRATE: weights from torch's global random state", "crate:initialised_by", "torch.manual_seed(int(torch.randint(2 ** 62, (), generator=generator)))", "pass", CRATE),
    Mutant("native interface: not detached", "whole_model:attached", "stack.callback(attach(layer, handler))", "attach(layer, handler)", ("tests/interfaces/test_native.py",)),
    Mutant("released: norms exchanged", "crate_released:", "{'class_token': 'cls_token', 'positions': 'pos_embedding', 'embedding.0': 'to_patch_embedding.1', 'embedding.1': 'to_patch_embedding.2', 'embedding.2': 'to_patch_embedding.3', 'norm': 'mlp_head.0', 'head': 'mlp_head.1'}", "{'class_token': 'cls_token', 'positions': 'pos_embedding', 'embedding.0': 'to_patch_embedding.4', 'embedding.1': 'to_patch_embedding.2', 'embedding.2': 'to_patch_embedding.3', 'norm': 'mlp_head.0', 'head': 'mlp_head.1'}", RELEASED),
    Mutant("released: unknown names accepted", "crate_released:crate_from_released", "missing or unknown", "missing", RELEASED),
    Mutant("released: pixel normalisation left out", "crate_released:_config_from", "channels == 3", "channels == 4", RELEASED),
    Mutant("released: any pickle is loaded", "crate_released:_read", "torch.load(path, map_location='cpu', weights_only=True)", "torch.load(path, map_location='cpu', weights_only=False)", RELEASED),
    Mutant("language: later tokens visible", "crate_language:CrateLanguage.forward", "block(x, causal=True)", "block(x)", LANGUAGE),
    Mutant("language: positions left out", "crate_language:CrateLanguage.forward", "self.embedding(tokens) + self.positions[:tokens.shape[1]]", "self.embedding(tokens)", LANGUAGE),
    Mutant("autoencoder: visible and hidden patches exchanged", "crate_autoencoder:CrateAutoencoder.encode", "torch.where(masked.unsqueeze(-1), self.mask_token, x)", "torch.where(masked.unsqueeze(-1), x, self.mask_token)", MASKED),
    Mutant("autoencoder: sign of the decoder's step", "crate_autoencoder:_DecoderBlock.forward", "y - self.attention(self.attention_norm(y))", "y + self.attention(self.attention_norm(y))", MASKED),
    Mutant("autoencoder: loss over all patches", "crate_autoencoder:CrateAutoencoder.loss", "error[masked]", "error", MASKED),
    Mutant("autoencoder: row codes used for columns", "crate_autoencoder:sinusoidal_positions", "[columns, rows]", "[rows, rows]", MASKED),
    Mutant("TSSA: step in the wrong direction", "token_statistics:token_statistics_step", "z - length / z.shape[-2] * torch.einsum('...knp,kdp->...nd', damped, bases)", "z + length / z.shape[-2] * torch.einsum('...knp,kdp->...nd', damped, bases)", STATISTICS),
    Mutant("TSSA: rate without class shares", "token_statistics:variational_rate", "shares * torch.log1p(z.shape[-1] / eps ** 2 * moments).sum(dim=-1)", "torch.log1p(z.shape[-1] / eps ** 2 * moments).sum(dim=-1)", STATISTICS),
    Mutant("TSSA: softmax over tokens", "token_statistics:token_statistics_attention", "torch.softmax((square / energy).sum(dim=-1) * s, dim=-2)", "torch.softmax((square / energy).sum(dim=-1) * s, dim=-1)", STATISTICS),
    Mutant("TSSA: later tokens visible", "token_statistics:causal_token_statistics_attention", "members.cumsum(dim=-1)", "members.sum(dim=-1, keepdim=True)", STATISTICS),
    Mutant("TSSA: bias not multiplied by the width", "token_statistics:causal_token_statistics_attention", "w.shape[-1] * bias.to(wide.dtype)", "bias.to(wide.dtype)", STATISTICS),
    Mutant("TSSA: hidden tokens are counted as members", "token_statistics:_members", "pi if key_mask is None else torch.where(key_mask.unsqueeze(-2), pi, 0)", "pi", STATISTICS),
    Mutant("TSSA: summed in half precision", "token_statistics:_prepared", "w.to(torch.promote_types(w.dtype, torch.float32))", "w", STATISTICS),
)  # fmt: skip
