"""Passages of text as batches of tokens, by a model's own tokenizer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from clearhead.models.objects import LoadError, told

__all__ = ["Encode", "encoder"]

Encode = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Turns passages into one padded batch of a model's arguments."""


def encoder(tokenizer: Any, model: nn.Module, max_tokens: int) -> Encode:
    """How to encode passages for a model, cut to `max_tokens` and to what the model has positions for."""
    config = getattr(model, "config", None)
    limit = int(min([max_tokens, getattr(tokenizer, "model_max_length", None) or max_tokens, *_positions(model)]))
    if getattr(tokenizer, "pad_token", None) is None:
        tokenizer.pad_token = getattr(tokenizer, "eos_token", None)

    def encode(passages: Sequence[str]) -> Mapping[str, Tensor]:
        padding = tokenizer.pad_token is not None
        if not padding and len(passages) > 1:
            raise LoadError("the tokenizer has no padding token, so passages cannot share a batch; --batch-size 1 does")
        try:
            batch = dict(
                tokenizer(list(passages), padding=padding, truncation=True, max_length=limit, return_tensors="pt")
            )
        except Exception as error:
            raise LoadError(f"the tokenizer fails on the text: {told(error)}") from error
        if getattr(config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = batch["input_ids"]
            batch["decoder_attention_mask"] = batch["attention_mask"]
        return batch

    return encode


def _positions(model: nn.Module) -> Iterator[int]:
    """How many tokens the model has positions for. Where padding has a position too, tokens are counted from behind it.

    RoBERTa and its kin do so, and their max_position_embeddings includes the places before.
    """
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if limit:
        yield limit
    for name, module in model.named_modules():
        padding = module.padding_idx if isinstance(module, nn.Embedding) else None
        if name.rpartition(".")[2] == "position_embeddings" and padding is not None:
            yield module.num_embeddings - padding - 1
