"""Passages of text as batches of tokens, by a model's own tokenizer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from clearhead.loading.objects import LoadError, error_line

Encode = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Turns passages into one padded batch of a model's arguments."""
Decode = Callable[[Sequence[int]], str]
"""Turns token ids into text."""

CHARACTERS_PER_TOKEN = 64
"""A passage is cut to this many characters per token before it is tokenized, so that a long line takes no memory."""


def make_encoder(tokenizer: Any, model: nn.Module, max_tokens: int) -> Encode:
    """Return a function that encodes passages, truncated to `max_tokens` and to the positions of the model."""
    config = getattr(model, "config", None)
    limits = [max_tokens, *_tokenizer_limit(tokenizer), *_positions(model)]
    limit = int(min(limits))
    if getattr(tokenizer, "pad_token", None) is None:
        tokenizer.pad_token = getattr(tokenizer, "eos_token", None)

    def encode(passages: Sequence[str]) -> Mapping[str, Tensor]:
        padding = tokenizer.pad_token is not None
        if not padding and len(passages) > 1:
            raise LoadError("the tokenizer has no padding token, so passages cannot share a batch; use --batch-size 1")
        texts = [passage[: CHARACTERS_PER_TOKEN * limit] for passage in passages]
        try:
            batch = dict(tokenizer(texts, padding=padding, truncation=True, max_length=limit, return_tensors="pt"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the tokenizers library panics with an exception that is not an Exception
            raise LoadError(f"the tokenizer fails on the text: {error_line(error)}") from error
        if getattr(config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = batch["input_ids"]
            batch["decoder_attention_mask"] = batch["attention_mask"]
        return batch

    return encode


def _tokenizer_limit(tokenizer: Any) -> Iterator[float]:
    limit = getattr(tokenizer, "model_max_length", None)
    if limit is not None:
        yield _positive(limit, "the tokenizer's model_max_length")


def _positions(model: nn.Module) -> Iterator[float]:
    """Yield the numbers of tokens that the model has positions for.

    In RoBERTa and its relatives padding has a position too, and tokens are counted from behind it; their
    max_position_embeddings includes the positions before.
    """
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if limit is not None:
        yield _positive(limit, "the model's max_position_embeddings")
    for name, module in model.named_modules():
        padding = module.padding_idx if isinstance(module, nn.Embedding) else None
        if name.rpartition(".")[2] == "position_embeddings" and padding is not None:
            yield float(module.num_embeddings - padding - 1)


def _positive(limit: Any, name: str) -> float:
    if not isinstance(limit, int | float) or not limit >= 1:
        raise LoadError(f"{name} is {limit!r}, not a positive number; correct it")
    return float(limit)
