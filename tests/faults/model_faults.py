"""Planted bugs in Clearhead's transformers."""

from fault import Fault

BLOCK = "models/transformer_block.py"
BLOCKS = ("tests/models/test_transformer_block.py",)
STEM = ("tests/models/test_stem.py",)
VIT = ("tests/models/test_vit.py",)
LANGUAGE = "models/language.py"
TEXT = ("tests/models/test_language.py",)
WEIGHTS = "models/vit_weights.py"
LOADED = ("tests/models/test_vit_weights.py",)
CATALOGUE = ("tests/models/test_catalogue.py",)
SEGMENTER = "models/segmenter.py"
MASKS = ("tests/models/test_segmenter.py",)

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
        "stem: patches by columns",
        "models/stem.py",
        "return images.flatten(2).mT",
        "return images.mT.flatten(2).mT",
        STEM,
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
        "return nothing - likelihoods",
        "return nothing + likelihoods",
        TEXT,
    ),
    Fault(
        "language model: adaptive loss under autocast",
        LANGUAGE,
        "with no_autocast(x):  # it writes float32 into tensors of the dtype of x\n        x = x",
        "if True:\n        x = x",
        TEXT,
    ),
    Fault(
        "language model: no gradient of absent clusters",
        LANGUAGE,
        "return nothing - likelihoods",
        "return -likelihoods",
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
    Fault(
        "segmenter: class token among the patches", SEGMENTER, "tokens(images)[:, 1:]", "tokens(images)[:, :-1]", MASKS
    ),
    Fault(
        "segmenter: patches by columns",
        SEGMENTER,
        "masks.mT.unflatten(2, (side, side))",
        "masks.mT.unflatten(2, (side, side)).mT",
        MASKS,
    ),
    Fault("segmenter: corners aligned", SEGMENTER, "align_corners=False", "align_corners=True", MASKS),
    Fault(
        "segmenter: patches not normalised",
        SEGMENTER,
        "normalize(self.patch_map(decoded), dim=-1)",
        "self.patch_map(decoded)",
        MASKS,
    ),
    Fault(
        "segmenter: classes not normalised",
        SEGMENTER,
        "normalize(self.class_map(classes), dim=-1).mT",
        "self.class_map(classes).mT",
        MASKS,
    ),
    Fault(
        "segmenter: no norm over classes",
        SEGMENTER,
        "logits: Tensor = self.mask_norm(masks)",
        "logits: Tensor = masks",
        MASKS,
    ),
    Fault("segmenter: no norm after the decoder", SEGMENTER, "self.norm(x).split", "x.split", MASKS),
    Fault(
        "segmenter: no projection", SEGMENTER, "self.projection(patches), self.classes", "patches, self.classes", MASKS
    ),
    Fault("segmenter: unused head", SEGMENTER, "del self.encoder.head", "self.encoder.head", MASKS),
    Fault(
        "segmenter: the encoder's operators in the decoder",
        SEGMENTER,
        "per_layer(config.decoder_attention, ",
        "per_layer(config.layer_attention[: config.decoder_layers], ",
        MASKS,
    ),
    Fault(
        "segmenter: embeddings not from the generator",
        SEGMENTER,
        "std=INITIAL_DEVIATION, generator=generator",
        "std=INITIAL_DEVIATION",
        MASKS,
    ),
    Fault(
        "catalogue: flops as multiply-adds",
        "models/catalogue.py",
        "get_total_flops() // 2",
        "get_total_flops()",
        CATALOGUE,
    ),
    Fault(
        "catalogue: RPC in all layers",
        "models/catalogue.py",
        "(*(operator,) * min(count, layers), *(Symmetric(),) * (layers - count))",
        "operator",
        CATALOGUE,
    ),
    Fault(
        "catalogue: RPC in one layer too many",
        "models/catalogue.py",
        "(*(operator,) * min(count, layers),",
        "(*(operator,) * min(count + 1, layers),",
        CATALOGUE,
    ),
    Fault(
        "catalogue: decoder without the variant",
        "models/catalogue.py",
        "elif attention in known and isinstance",
        'elif attention == "attention" and isinstance',
        CATALOGUE,
    ),
    Fault(
        "catalogue: weights not from the generator",
        "models/catalogue.py",
        "model(config, generator=generator)",
        "model(config)",
        CATALOGUE,
    ),
    Fault("ViT weights: keys and values exchanged", WEIGHTS, 'zip("qkv",', 'zip("qvk",', LOADED),
    Fault("ViT weights: torch's epsilon", WEIGHTS, '"norm_eps": eps', '"norm_eps": 1e-5', LOADED),
    Fault("ViT weights: pixels not normalised", WEIGHTS, '"pixel_mean": tuple(mean)', '"pixel_mean": ()', LOADED),
    Fault(
        "ViT weights: positions without antialiasing",
        "models/image_sizes.py",
        "antialias=True, align_corners",
        "align_corners",
        LOADED,
    ),
    Fault(
        "ViT weights: rows and columns of positions exchanged",
        "models/image_sizes.py",
        "resized.flatten(2).mT",
        "resized.mT.flatten(2).mT",
        LOADED,
    ),
    Fault(
        "ViT weights: another class token's position",
        "models/image_sizes.py",
        "torch.cat([token, ",
        "torch.cat([token + grid[:, :1], ",
        LOADED,
    ),
    Fault(
        "ViT weights: positions in half precision",
        "models/image_sizes.py",
        ".to(torch.promote_types(grid.dtype, torch.float32))",
        ".bfloat16()",
        LOADED,
    ),
    Fault("ViT weights: unknown names ignored", WEIGHTS, "if missing or unknown:", "if missing:", LOADED),
    Fault(
        "ViT weights: the two maps of the MLP exchanged",
        WEIGHTS,
        '"mlp.0": "mlp.fc1",\n    "mlp.2": "mlp.fc2"',
        '"mlp.0": "mlp.fc2",\n    "mlp.2": "mlp.fc1"',
        LOADED,
    ),
    Fault(
        "ViT weights: norms exchanged",
        WEIGHTS,
        '"attention_norm": "layernorm_before"',
        '"attention_norm": "layernorm_after"',
        LOADED,
    ),
    Fault("ViT weights: any activation", WEIGHTS, "if activation != expected:", "if False:", LOADED),
    Fault(
        "ViT weights: pooling by the mean accepted", WEIGHTS, 'if model.global_pool != "token":', "if False:", LOADED
    ),
    Fault("ViT: epsilon not in the blocks", "models/vit.py", "norm_eps=config.norm_eps,", "", LOADED),
    Fault(
        "ViT: epsilon not in the last norm",
        "models/vit.py",
        "nn.LayerNorm(config.width, eps=config.norm_eps)",
        "nn.LayerNorm(config.width)",
        LOADED,
    ),
)
