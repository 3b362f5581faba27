"""Planted bugs in CRATE, its operators and modules, its relatives, and token statistics."""

from fault import Fault

STEPS = ("tests/operators/test_subspace.py", "tests/operators/test_sparse_coding.py")
MODULES = ("tests/modules/test_subspace.py", "tests/modules/test_sparse_coding.py")
EVERY = ("tests/modules/test_every_module.py",)
CRATE = ("tests/models/test_crate.py",)
RELEASED = ("tests/models/test_crate_released.py",)
LANGUAGE = ("tests/models/test_crate_language.py",)
MASKED = ("tests/models/test_crate_autoencoder.py",)
STATISTICS = ("tests/operators/test_token_statistics.py", "tests/modules/test_token_statistics.py")
SPARSE, SUBSPACE, TOKENS = "operators/sparse_coding.py", "operators/subspace.py", "operators/token_statistics.py"

CRATE_FAULTS = (
    Fault(
        "MSSA: shrinking left out",
        SUBSPACE,
        "return (1 - length) * z + length * weight",
        "return z + length * weight",
        STEPS,
    ),
    Fault(
        "MSSA: eps left out of a",
        SUBSPACE,
        "weight = bases.shape[-1] / (z.shape[-2] * eps**2)",
        "weight = bases.shape[-1] / z.shape[-2]",
        STEPS,
    ),
    Fault(
        "MSSA: heads and axes exchanged",
        SUBSPACE,
        "reshape(*z.shape[:-1], k, p).movedim(-2, -3)",
        "reshape(*z.shape[:-1], p, k).movedim(-1, -3)",
        STEPS,
    ),
    Fault(
        "ISTA: misprinted sign",
        SPARSE,
        "@ dictionary) - step * penalty)\n    matrix",
        "@ dictionary) + step * penalty)\n    matrix",
        STEPS,
    ),
    Fault(
        "ISTA: dictionary transposed, many tokens",
        SPARSE,
        "step * (dictionary - dictionary.mT @ dictionary)",
        "step * (dictionary.mT - dictionary.mT @ dictionary)",
        STEPS,
    ),
    Fault(
        "ISTA: no threshold, many tokens", SPARSE, "z.new_full((d,), -step * penalty)", "z.new_full((d,), 0.0)", STEPS
    ),
    Fault("ISTA: largest step from another norm", SPARSE, "ord=2))", 'ord="fro"))', STEPS),
    Fault("ODL: one step instead of two", SPARSE, "_relu(first + drive - step", "_relu(drive - step", STEPS),
    Fault(
        "ISTA: no warning for a step that is too long",
        "modules/sparse_coding.py",
        "if unknown or self._checked",
        "if True or self._checked",
        MODULES,
    ),
    Fault(
        "ISTA: dtype mismatch under autocast",
        "modules/sparse_coding.py",
        "x.dtype is not torch.float64:",
        "False:",
        MODULES,
    ),
    Fault(
        "MSSA: tied map transposed",
        "modules/subspace.py",
        "linear(heads, self.subspaces.weight.mT)",
        "linear(heads, self.subspaces.weight.reshape(-1, self.subspaces.out_features))",
        MODULES,
    ),
    Fault("MSSA: scale left out", "modules/subspace.py", '"scale": self.scale}', '"scale": None}', MODULES),
    Fault(
        "MSSA: empty batch fails",
        "modules/subspace.py",
        ".unflatten(-1, (self.num_heads, -1))",
        ".reshape(*x.shape[:-1], self.num_heads, -1)",
        EVERY,
    ),
    Fault(
        "CRATE: residual connection around the sparse step",
        "models/crate_block.py",
        "return x + codes if self.overcomplete else codes",
        "return x + codes",
        CRATE,
    ),
    Fault(
        "CRATE: overcomplete block without residual",
        "models/crate_block.py",
        "return x + codes if self.overcomplete else codes",
        "return codes",
        CRATE,
    ),
    Fault("CRATE: negated form not negated", "models/crate_block.py", "x - attended if", "x + attended if", CRATE),
    Fault(
        "CRATE: patches read channel by channel",
        "models/crate.py",
        "cut.permute(0, 1, 3, 4, 2).flatten(2)",
        "cut.flatten(2)",
        CRATE,
    ),
    Fault(
        "CRATE: weights from torch's global random state",
        "models/crate_block.py",
        "torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))",
        "pass",
        CRATE,
    ),
    Fault(
        "native interface: not detached",
        "interfaces/whole_model.py",
        "stack.callback(attach(layer, handler))",
        "attach(layer, handler)",
        ("tests/interfaces/test_native.py",),
    ),
    Fault(
        "released: norms exchanged",
        "models/crate_released.py",
        '"embedding.0": "to_patch_embedding.1"',
        '"embedding.0": "to_patch_embedding.4"',
        RELEASED,
    ),
    Fault(
        "released: unknown names accepted",
        "models/crate_released.py",
        "if missing or unknown:",
        "if missing:",
        RELEASED,
    ),
    Fault(
        "released: pixel normalisation left out",
        "models/crate_released.py",
        "if channels == 3 else {}",
        "if channels == 4 else {}",
        RELEASED,
    ),
    Fault(
        "released: any pickle is loaded",
        "models/crate_released.py",
        "weights_only=True",
        "weights_only=False",
        RELEASED,
    ),
    Fault(
        "language: later tokens visible",
        "models/crate_language.py",
        "x = block(x, causal=True)",
        "x = block(x)",
        LANGUAGE,
    ),
    Fault(
        "language: positions left out",
        "models/crate_language.py",
        "self.embedding(tokens) + self.positions[: tokens.shape[1]]",
        "self.embedding(tokens)",
        LANGUAGE,
    ),
    Fault(
        "autoencoder: visible and hidden patches exchanged",
        "models/crate_autoencoder.py",
        "torch.where(masked.unsqueeze(-1), self.mask_token, x)",
        "torch.where(masked.unsqueeze(-1), x, self.mask_token)",
        MASKED,
    ),
    Fault(
        "autoencoder: sign of the decoder's step",
        "models/crate_autoencoder.py",
        "y - self.attention(",
        "y + self.attention(",
        MASKED,
    ),
    Fault(
        "autoencoder: loss over all patches",
        "models/crate_autoencoder.py",
        "error[masked].mean()",
        "error.mean()",
        MASKED,
    ),
    Fault(
        "autoencoder: row codes used for columns",
        "models/crate_autoencoder.py",
        "torch.cat([columns, rows], dim=-1)",
        "torch.cat([rows, rows], dim=-1)",
        MASKED,
    ),
    Fault(
        "TSSA: step in the wrong direction",
        TOKENS,
        "return z - length / z.shape[-2]",
        "return z + length / z.shape[-2]",
        STATISTICS,
    ),
    Fault("TSSA: rate without class shares", TOKENS, "(shares * torch.log1p", "(torch.log1p", STATISTICS),
    Fault(
        "TSSA: softmax over tokens",
        TOKENS,
        ".sum(dim=-1) * s, dim=-2)\n    members",
        ".sum(dim=-1) * s, dim=-1)\n    members",
        STATISTICS,
    ),
    Fault(
        "TSSA: later tokens visible",
        TOKENS,
        "(members.cumsum(dim=-1) + ADDED)",
        "(members.sum(dim=-1, keepdim=True) + ADDED)",
        STATISTICS,
    ),
    Fault("TSSA: bias not multiplied by the width", TOKENS, "logits + w.shape[-1] * bias", "logits + bias", STATISTICS),
    Fault(
        "TSSA: hidden tokens are counted as members",
        TOKENS,
        "return pi if key_mask is None else torch.where(key_mask.unsqueeze(-2), pi, 0)",
        "return pi",
        STATISTICS,
    ),
    Fault(
        "TSSA: summed in half precision", TOKENS, "w.to(torch.promote_types(w.dtype, torch.float32))", "w", STATISTICS
    ),
)
