"""Attacks on text: word swaps, as in Teo and Nguyen 2024 (arXiv 2406.13762), Table 3, and random contamination.

A text is token ids (n,) of a `clearhead_lab.data.corpus.Corpus`. Every token but `<eos>` is a word. An attacked text
has the length of the text, so that each of its positions has an original word.

The generic word "AAA" is a rare word of WikiText's vocabulary. Where a vocabulary does not have it, it becomes `<unk>`,
as any unknown word does, and `<unk>` is a frequent word: such a swap is a weaker attack.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead_lab.data.corpus import EOS, UNKNOWN

__all__ = ["GENERIC_WORD", "TEXT_ATTACKS", "contaminate", "generic_id", "swap_for_drawn_words", "swap_for_generic_word"]

GENERIC_WORD = "AAA"
PIECE = 8
"""Tokens of a contaminated piece."""


def generic_id(vocabulary: Sequence[str]) -> int:
    """Return the id of the generic word, or of `<unk>` in a vocabulary without it."""
    for word in (GENERIC_WORD, UNKNOWN):
        if word in vocabulary:
            return vocabulary.index(word)
    raise InputError(f"the vocabulary has neither {GENERIC_WORD} nor {UNKNOWN}; read the text with read_corpus")


def swap_for_generic_word(tokens: Tensor, vocabulary: Sequence[str], *, share: float, seed: int) -> Tensor:
    """Replace a random share of the words by the generic word. A larger share replaces the same words and more."""
    chosen, _ = _choose_words(tokens, vocabulary, share, seed)
    return tokens.index_fill(0, chosen, generic_id(vocabulary))


def swap_for_drawn_words(tokens: Tensor, vocabulary: Sequence[str], *, share: float, seed: int) -> Tensor:
    """Replace a random share of the words by words drawn from the vocabulary, all with equal probability."""
    chosen, generator = _choose_words(tokens, vocabulary, share, seed)
    return tokens.index_copy(0, chosen, _draw_words(len(chosen), vocabulary, generator))


def contaminate(tokens: Tensor, vocabulary: Sequence[str], *, share: float, seed: int) -> Tensor:
    """Replace the words of a random share of the pieces of `PIECE` tokens by words drawn from the vocabulary.

    The definition is ours: Huber's contamination, with pieces as observations. Swaps are of single words instead, so
    that most of their neighbours are unchanged.
    """
    words = _is_word(tokens, vocabulary, share)
    generator = torch.Generator().manual_seed(seed)
    pieces = -(-len(tokens) // PIECE)
    bad = torch.zeros(pieces, dtype=torch.bool)
    bad[torch.randperm(pieces, generator=generator)[: round(share * pieces)]] = True
    chosen = (bad.repeat_interleave(PIECE)[: len(tokens)] & words).nonzero()[:, 0]
    return tokens.index_copy(0, chosen, _draw_words(len(chosen), vocabulary, generator))


TEXT_ATTACKS: dict[str, Callable[..., Tensor]] = {
    GENERIC_WORD: swap_for_generic_word,
    "drawn words": swap_for_drawn_words,
    "contaminated": contaminate,
}
"""The attacks by name: (tokens, vocabulary, share=, seed=) -> tokens. Equal seeds give equal texts."""


def _is_word(tokens: Tensor, vocabulary: Sequence[str], share: float) -> Tensor:
    """Return which tokens are words, after a check of the arguments."""
    if not 0 <= share <= 1:
        raise InputError(f"expected a share of the words from 0 to 1; got {share}")
    if tokens.ndim != 1 or tokens.dtype != torch.int64:
        raise InputError(f"expected a text (n,) of token ids in int64; got {tuple(tokens.shape)} in {tokens.dtype}")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(vocabulary):
        raise InputError(
            f"expected ids from 0 to {len(vocabulary) - 1}; got {int(tokens.min())} to {int(tokens.max())}"
        )
    return tokens != _end_of_line(vocabulary)


def _choose_words(tokens: Tensor, vocabulary: Sequence[str], share: float, seed: int) -> tuple[Tensor, torch.Generator]:
    """Return the positions of a random share of the words, and the generator after they were drawn."""
    positions = _is_word(tokens, vocabulary, share).nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(positions), generator=generator)
    return positions[order[: round(share * len(positions))]], generator


def _draw_words(count: int, vocabulary: Sequence[str], generator: torch.Generator) -> Tensor:
    """Draw ids of words, never the end of a line."""
    end = _end_of_line(vocabulary)
    drawn = torch.randint(len(vocabulary) - (end >= 0), (count,), generator=generator)
    return drawn + (drawn >= end) if end >= 0 else drawn


def _end_of_line(vocabulary: Sequence[str]) -> int:
    return vocabulary.index(EOS) if EOS in vocabulary else -1
