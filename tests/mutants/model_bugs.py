"""Planted bugs in Clearhead's transformers."""

from tests.mutants.mutant import Mutant

BLOCKS = ("lab/tests/models/test_transformer_block.py",)
STEM = ("lab/tests/models/test_stem.py",)
VIT = ("lab/tests/models/test_vit.py",)
TEXT = ("lab/tests/models/test_language.py",)
LOADED = ("lab/tests/models/test_vit_weights.py",)
CATALOGUE = ("lab/tests/models/test_catalogue.py",)
MASKS = ("lab/tests/models/test_segmenter.py",)

MUTANTS = (
    Mutant("drop path: also in evaluation", "transformer_block:DropPath.forward", "not self.training or self.rate == 0", "self.rate == 0", BLOCKS),
    Mutant("drop path: kept samples not scaled", "transformer_block:DropPath.forward", "x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(keep).div_", "x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_", BLOCKS),
    Mutant("drop path: every number by itself", "transformer_block:DropPath.forward", "x.new_empty(len(x), *[1] * (x.ndim - 1))", "x.new_empty(x.shape)", BLOCKS),
    Mutant("drop path: the rate kept, not dropped", "transformer_block:DropPath.forward", "1 - self.rate", "self.rate", BLOCKS),
    Mutant("drop path: one rate in all layers", "transformer_block:drop_path_rates", "last * layer / max(layers - 1, 1)", "last", BLOCKS),
    Mutant("drop path: rates end before the last", "transformer_block:drop_path_rates", "max(layers - 1, 1)", "layers", BLOCKS),
    Mutant("drop path: not in the MLP", "transformer_block:TransformerBlock.forward", "self.drop(self.mlp(self.mlp_norm(x)))", "self.mlp(self.mlp_norm(x))", BLOCKS),
    Mutant("block: no dropout of the hidden layer", "transformer_block:TransformerBlock.__init__", "nn.Sequential(nn.GELU(), nn.Dropout(dropout))", "nn.GELU()", BLOCKS),
    Mutant("block: draws of W_Q left out", "transformer_block:initialise_maps", "nn.init.xavier_uniform_(torch.empty_like(module.key.weight), generator=generator)", "pass", VIT),
    Mutant("stem: norm over the batch", "vit:ConvolutionStem.__init__", "nn.GroupNorm(1, wider)", "nn.BatchNorm2d(wider)", STEM),
    Mutant("stem: patches by columns", "vit:ConvolutionStem.forward", "images.flatten", "images.mT.flatten", STEM),
    Mutant("stem: draws of the linear map left out", "vit:VisionTransformer._initialise", "nn.init.xavier_uniform_(replaced, generator=generator)", "pass", STEM),
    Mutant("stem: weights not from the generator", "vit:VisionTransformer._initialise", "stem.initialise(generator)", "stem.initialise(None)", STEM),
    Mutant("tokens: without the last norm", "vit:VisionTransformer.tokens", "self.norm(self._encode(images))", "self._encode(images)", STEM),
    Mutant("language model: not causal", "language:LanguageModel.encode", "block(x, causal=True)", "block(x)", TEXT),
    Mutant("language model: mask not passed", "transformer_block:TransformerBlock.forward", "self.attention(self.attention_norm(x), causal=causal)", "self.attention(self.attention_norm(x))", TEXT),
    Mutant("language model: sign of the adaptive loss", "language:_adaptive_loss", "nothing - likelihoods", "nothing + likelihoods", TEXT),
    Mutant("language model: adaptive loss under autocast", "language:_adaptive_loss", "with no_autocast(x): ...", "if True: ...", TEXT),
    Mutant("language model: no gradient of absent clusters", "language:_adaptive_loss", "nothing - likelihoods", "-likelihoods", TEXT),
    Mutant("language model: no last norm", "language:LanguageModel.encode", "self.norm(x)", "x", TEXT),
    Mutant("language model: no positions", "language:LanguageModel.encode", "self.embedding(tokens) + self.positions[:tokens.shape[1]]", "self.embedding(tokens)", TEXT),
    Mutant("language model: no dropout of embeddings", "language:LanguageModel.encode", "self.dropout(self.embedding(tokens) + self.positions[:tokens.shape[1]])", "self.embedding(tokens) + self.positions[:tokens.shape[1]]", TEXT),
    Mutant("language model: chunks forget targets", "language:_tied_loss", "checkpoint(_cross_entropy, part, embeddings, of, use_reentrant=False)", "checkpoint(_cross_entropy, part, embeddings, targets[:len(of)], use_reentrant=False)", TEXT),
    Mutant("language model: weights not from the generator", "language:LanguageModel._initialise", "nn.init.normal_(parameter, std=INITIAL_DEVIATION, generator=generator)", "nn.init.normal_(parameter, std=INITIAL_DEVIATION)", TEXT),
    Mutant("language model: dropout not in blocks", "language:LanguageModel.__init__", "TransformerBlock(config.width, config.heads, config.mlp_width, operator=operator, dropout=config.dropout)", "TransformerBlock(config.width, config.heads, config.mlp_width, operator=operator)", TEXT),
    Mutant("language model: cutoffs in any order", "language:LanguageModelConfig._check_output", "a >= b", "a > b + 10 ** 9", TEXT),
    Mutant("language model: any number of cutoffs", "language:LanguageModelConfig._check_output", "len(self.cutoffs) > MAX_CUTOFFS or any((a >= b for a, b in pairwise(bounds)))", "any((a >= b for a, b in pairwise(bounds)))", TEXT),
    Mutant("segmenter: class token among the patches", "segmenter:Segmenter.forward", "self.encoder.tokens(images)[:, 1:]", "self.encoder.tokens(images)[:, :-1]", MASKS),
    Mutant("segmenter: patches by columns", "segmenter:Segmenter.forward", "masks.mT.unflatten(2, (side, side))", "masks.mT.unflatten(2, (side, side)).mT", MASKS),
    Mutant("segmenter: corners aligned", "segmenter:Segmenter.forward", "interpolate(grid, size=tuple(images.shape[-2:]), mode='bilinear', align_corners=False)", "interpolate(grid, size=tuple(images.shape[-2:]), mode='bilinear', align_corners=True)", MASKS),
    Mutant("segmenter: patches not normalised", "segmenter:MaskDecoder.forward", "normalize(self.patch_map(decoded), dim=-1)", "self.patch_map(decoded)", MASKS),
    Mutant("segmenter: classes not normalised", "segmenter:MaskDecoder.forward", "normalize(self.class_map(classes), dim=-1)", "self.class_map(classes)", MASKS),
    Mutant("segmenter: no head", "segmenter:MaskDecoder.forward", "self.mask_norm(masks)", "masks", MASKS),
    Mutant("segmenter: the published head by default", "segmenter:MaskDecoder.__init__", "config.mask_head == 'layer-norm'", "True", MASKS),
    Mutant("segmenter: stored models get the new head", "transformer_block:config_from_json", "getattr(kind, 'OLDER', {})", "{}", MASKS),
    Mutant("segmenter: no bias of classes", "segmenter:ClassGain.forward", "products * self.weight + self.bias", "products * self.weight", MASKS),
    Mutant("segmenter: no norm after the decoder", "segmenter:MaskDecoder.forward", "self.norm(x)", "x", MASKS),
    Mutant("segmenter: no projection", "segmenter:MaskDecoder.forward", "self.projection(patches)", "patches", MASKS),
    Mutant("segmenter: unused head", "segmenter:Segmenter.__init__", "del self.encoder.head", "self.encoder.head", MASKS),
    Mutant("segmenter: the encoder's operators in the decoder", "segmenter:MaskDecoder.__init__", "config.decoder_attention", "config.layer_attention[:config.decoder_layers]", MASKS),
    Mutant("segmenter: embeddings not from the generator", "segmenter:MaskDecoder.initialise", "nn.init.trunc_normal_(self.classes, std=INITIAL_DEVIATION, generator=generator)", "nn.init.trunc_normal_(self.classes, std=INITIAL_DEVIATION)", MASKS),
    Mutant("catalogue: flops as multiply-adds", "catalogue:measure_size", "counter.get_total_flops() // 2", "counter.get_total_flops()", CATALOGUE),
    Mutant("catalogue: RPC in all layers", "catalogue:_first", "(*(operator,) * min(count, layers), *(Symmetric(),) * (layers - count))", "operator", CATALOGUE),
    Mutant("catalogue: RPC in one layer too many", "catalogue:_first", "min(count, layers)", "min(count + 1, layers)", CATALOGUE),
    Mutant("catalogue: decoder without the variant", "catalogue:config_of", "attention in known", "attention == 'attention'", CATALOGUE),
    Mutant("catalogue: weights not from the generator", "catalogue:build", "CATALOGUE[name].model(config, generator=generator)", "CATALOGUE[name].model(config)", CATALOGUE),
    Mutant("ViT weights: keys and values exchanged", "vit_weights:_split_qkv", "zip('qkv', tensor.chunk(3), strict=True)", "zip('qvk', tensor.chunk(3), strict=True)", LOADED),
    Mutant("ViT weights: torch's epsilon", "vit_weights:_converted", "{'heads': heads, 'norm_eps': eps, 'pixel_mean': mean, 'pixel_spread': spread}", "{'heads': heads, 'norm_eps': 1e-05, 'pixel_mean': mean, 'pixel_spread': spread}", LOADED),
    Mutant("ViT weights: pixels not normalised", "vit_weights:_converted", "tuple(mean)", "()", LOADED),
    Mutant("ViT weights: positions without antialiasing", "image_sizes:interpolate_positions", "interpolate(plane, size=(side, side), mode='bicubic', antialias=True, align_corners=False)", "interpolate(plane, size=(side, side), mode='bicubic', align_corners=False)", LOADED),
    Mutant("ViT weights: rows and columns of positions exchanged", "image_sizes:interpolate_positions", "resized.flatten", "resized.mT.flatten", LOADED),
    Mutant("ViT weights: another class token's position", "image_sizes:interpolate_positions", "[token, resized.flatten(2).mT.to(token.dtype)]", "[token + grid[:, :1], resized.flatten(2).mT.to(token.dtype)]", LOADED),
    Mutant("ViT weights: positions in half precision", "image_sizes:interpolate_positions", "grid.mT.reshape(1, -1, before, before).to(torch.promote_types(grid.dtype, torch.float32))", "grid.mT.reshape(1, -1, before, before).bfloat16()", LOADED),
    Mutant("ViT weights: unknown names ignored", "vit_weights:_converted", "missing or unknown", "missing", LOADED),
    Mutant("ViT weights: the two maps of the MLP exchanged", "vit_weights:", "{'class_token': 'cls_token', 'positions': 'pos_embed', 'patches': 'patch_embed.proj', 'norm': 'norm', 'head': 'head', 'blocks': 'blocks', 'attention_norm': 'norm1', 'attention.query': 'attn.q', 'attention.key': 'attn.k', 'attention.value': 'attn.v', 'attention.out': 'attn.proj', 'mlp_norm': 'norm2', 'mlp.0': 'mlp.fc1', 'mlp.2': 'mlp.fc2'}", "{'class_token': 'cls_token', 'positions': 'pos_embed', 'patches': 'patch_embed.proj', 'norm': 'norm', 'head': 'head', 'blocks': 'blocks', 'attention_norm': 'norm1', 'attention.query': 'attn.q', 'attention.key': 'attn.k', 'attention.value': 'attn.v', 'attention.out': 'attn.proj', 'mlp_norm': 'norm2', 'mlp.0': 'mlp.fc2', 'mlp.2': 'mlp.fc1'}", LOADED),
    Mutant("ViT weights: norms exchanged", "vit_weights:", "'layernorm_before'", "'layernorm_after'", LOADED),
    Mutant("ViT weights: any activation", "vit_weights:_check_gelu", "activation != expected", "False", LOADED),
    Mutant("ViT weights: pooling by the mean accepted", "vit_weights:vit_from_timm", "model.global_pool != 'token'", "False", LOADED),
    Mutant("ViT: epsilon not in the blocks", "vit:VisionTransformer.__init__", "TransformerBlock(config.width, config.heads, config.mlp_width, operator=operator, drop_path=rate, norm_eps=config.norm_eps)", "TransformerBlock(config.width, config.heads, config.mlp_width, operator=operator, drop_path=rate)", LOADED),
    Mutant("ViT: epsilon not in the last norm", "vit:VisionTransformer.__init__", "nn.LayerNorm(config.width, eps=config.norm_eps)", "nn.LayerNorm(config.width)", LOADED),
)  # fmt: skip
