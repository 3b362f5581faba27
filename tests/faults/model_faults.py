"""Planted bugs in Clearhead's transformers."""

from fault import Fault

BLOCK = "models/transformer_block.py"
BLOCKS = ("tests/models/test_transformer_block.py",)
STEM = ("tests/models/test_stem.py",)
VIT = ("tests/models/test_vit.py",)
LANGUAGE = "models/language.py"
TEXT = ("tests/models/test_language.py",)

MODEL_FAULTS = (
    Fault("drop path: also in evaluation", BLOCK, "if not self.training or self.rate", "if self.rate", BLOCKS),
    Fault("drop path: kept samples not scaled", BLOCK, ".bernoulli_(keep).div_(keep)", ".bernoulli_(keep)", BLOCKS),
    Fault(
        "drop path: every number by itself",
        BLOCK,
        "x.new_empty(len(x), *[1] * (x.ndim - 1))",
        "x.new_empty(x.shape)",
        BLOCKS,
    ),
    Fault("drop path: the rate kept, not dropped", BLOCK, "keep = 1 - self.rate", "keep = self.rate", BLOCKS),
    Fault("drop path: one rate in all layers", BLOCK, "last * layer / max(layers - 1, 1)", "last", BLOCKS),
    Fault("drop path: rates end before the last", BLOCK, "max(layers - 1, 1)", "layers", BLOCKS),
    Fault("drop path: not in the MLP", BLOCK, "x + self.drop(self.mlp(", "x + (self.mlp(", BLOCKS),
    Fault(
        "block: no dropout of the hidden layer",
        BLOCK,
        "nn.Sequential(nn.GELU(), nn.Dropout(dropout))",
        "nn.GELU()",
        BLOCKS,
    ),
    Fault(
        "block: draws of W_Q left out",
        BLOCK,
        "nn.init.xavier_uniform_(torch.empty_like(module.key.weight), generator=generator)",
        "pass",
        VIT,
    ),
    Fault("stem: norm over the batch", "models/stem.py", "nn.GroupNorm(1, wider)", "nn.BatchNorm2d(wider)", STEM),
    Fault(
        "stem: patches by columns", "models/stem.py", "return grid.flatten(2).mT", "return grid.mT.flatten(2).mT", STEM
    ),
    Fault(
        "stem: draws of the linear map left out",
        "models/vit.py",
        "nn.init.xavier_uniform_(replaced, generator=generator)",
        "pass",
        STEM,
    ),
    Fault(
        "stem: weights not from the generator",
        "models/vit.py",
        "stem.initialise(generator)",
        "stem.initialise(None)",
        STEM,
    ),
    Fault(
        "tokens: without the last norm",
        "models/vit.py",
        "self.norm(self._encode(images))\n",
        "self._encode(images)\n",
        STEM,
    ),
    Fault("language model: not causal", LANGUAGE, "block(x, causal=True)", "block(x)", TEXT),
    Fault(
        "language model: mask not passed",
        BLOCK,
        "self.attention_norm(x), causal=causal)",
        "self.attention_norm(x))",
        TEXT,
    ),
    Fault(
        "language model: sign of the adaptive loss",
        LANGUAGE,
        "losses = -self.adaptive(",
        "losses = self.adaptive(",
        TEXT,
    ),
    Fault(
        "language model: adaptive loss under autocast",
        LANGUAGE,
        "with torch.autocast(x.device.type, enabled=False):  # it",
        "with torch.autocast(x.device.type):  # it",
        TEXT,
    ),
    Fault(
        "language model: no last norm", LANGUAGE, "normalised: Tensor = self.norm(x)", "normalised: Tensor = x", TEXT
    ),
    Fault(
        "language model: no positions",
        LANGUAGE,
        "self.embedding(tokens) + self.positions[: tokens.shape[1]]",
        "self.embedding(tokens)",
        TEXT,
    ),
    Fault(
        "language model: no dropout of embeddings",
        LANGUAGE,
        "x = self.dropout(self.embedding",
        "x = (self.embedding",
        TEXT,
    ),
    Fault(
        "language model: chunks forget targets",
        LANGUAGE,
        "checkpoint(_cross_entropy, part, embeddings, of,",
        "checkpoint(_cross_entropy, part, embeddings, targets[: len(of)],",
        TEXT,
    ),
    Fault(
        "language model: weights not from the generator",
        LANGUAGE,
        "std=INITIAL_DEVIATION, generator=generator)",
        "std=INITIAL_DEVIATION)",
        TEXT,
    ),
    Fault(
        "language model: dropout not in blocks",
        LANGUAGE,
        "operator=operator, dropout=config.dropout",
        "operator=operator",
        TEXT,
    ),
    Fault("language model: cutoffs in any order", LANGUAGE, "any(a >= b for a, b", "any(a > b + 10**9 for a, b", TEXT),
    Fault("language model: any number of cutoffs", LANGUAGE, "len(self.cutoffs) > MAX_CUTOFFS or", "", TEXT),
)
