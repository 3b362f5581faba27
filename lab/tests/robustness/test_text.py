"""Attacks replace the words that they promise, leave the others, and depend on the seed alone."""

import pytest
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead_lab.robustness.text import (
    PIECE,
    TEXT_ATTACKS,
    contaminate,
    generic_id,
    swap_for_drawn_words,
    swap_for_generic_word,
)  # fmt: skip

WORDS = ("the", "<eos>", "<unk>", *(f"word{i}" for i in range(40)), "AAA")
END, UNKNOWN, GENERIC = 1, 2, len(WORDS) - 1


def _text(length: int = 1009) -> Tensor:
    tokens = torch.randint(2, len(WORDS) - 1, (length,), generator=torch.Generator().manual_seed(3))
    tokens[::11] = END
    return tokens


@pytest.mark.parametrize("attack", TEXT_ATTACKS.values(), ids=list(TEXT_ATTACKS))
def test_an_attack_keeps_lines_and_length_and_depends_on_the_seed(attack) -> None:  # type: ignore[no-untyped-def]
    tokens = _text()
    before = tokens.clone()
    attacked = attack(tokens, WORDS, share=0.3, seed=5)
    assert torch.equal(tokens, before)
    assert attacked.shape == tokens.shape
    assert torch.equal(attacked == END, tokens == END)
    assert torch.equal(attacked, attack(tokens, WORDS, share=0.3, seed=5))
    assert not torch.equal(attacked, attack(tokens, WORDS, share=0.3, seed=6))
    assert torch.equal(attack(tokens, WORDS, share=0.0, seed=5), tokens)


def test_a_swap_replaces_the_share_of_the_words_by_the_generic_word() -> None:
    tokens = _text()
    few, more = (swap_for_generic_word(tokens, WORDS, share=share, seed=5) for share in (0.1, 0.4))
    words = int((tokens != END).sum())
    for attacked, share in ((few, 0.1), (more, 0.4)):
        changed = attacked != tokens
        assert int(changed.sum()) == round(share * words)
        assert bool((attacked[changed] == GENERIC).all())
    assert bool((more[few != tokens] == GENERIC).all())
    whole = swap_for_generic_word(tokens, WORDS, share=1.0, seed=5)
    assert bool((whole[tokens != END] == GENERIC).all())


def test_the_generic_word_is_unknown_to_a_vocabulary_without_it() -> None:
    assert generic_id(WORDS) == GENERIC
    assert generic_id(WORDS[:-1]) == UNKNOWN
    with pytest.raises(InputError, match="neither AAA nor <unk>; read the text with read_corpus"):
        generic_id(("the", "<eos>"))


def test_drawn_words_are_all_words_of_the_vocabulary_but_the_end_of_a_line() -> None:
    tokens = _text(20_011)
    attacked = swap_for_drawn_words(tokens, WORDS, share=1.0, seed=5)
    drawn = attacked[tokens != END]
    counts = torch.bincount(drawn, minlength=len(WORDS))
    assert int(counts[END]) == 0
    expected = len(drawn) / (len(WORDS) - 1)
    others = counts[torch.arange(len(WORDS)) != END]
    assert bool(((others - expected).abs() < 5 * expected**0.5).all())  # 5 deviations of a count
    partly = swap_for_drawn_words(tokens, WORDS, share=0.2, seed=5)
    words = int((tokens != END).sum())
    assert round(0.2 * words) * 0.9 < int((partly != tokens).sum()) <= round(0.2 * words)  # one in 43 draws is the word


def test_contamination_replaces_whole_pieces() -> None:
    tokens = torch.full((1009,), UNKNOWN)
    changed = contaminate(tokens, WORDS, share=0.25, seed=5) != tokens
    bad = torch.stack([piece.any() for piece in changed.split(PIECE)])
    assert int(bad.sum()) == round(0.25 * len(bad))
    assert float(changed[: 8 * (len(changed) // 8)].view(-1, 8)[bad[:-1]].float().mean()) > 0.9
    assert not torch.equal(bad.sort(descending=True).values, bad)


@pytest.mark.parametrize("attack", TEXT_ATTACKS.values(), ids=list(TEXT_ATTACKS))
def test_bad_texts_and_shares_are_refused(attack) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"a share of the words from 0 to 1; got 1\.5"):
        attack(_text(), WORDS, share=1.5, seed=0)
    with pytest.raises(InputError, match=r"a text \(n,\) of token ids in int64; got \(2, 3\)"):
        attack(torch.zeros(2, 3, dtype=torch.int64), WORDS, share=0.5, seed=0)
    with pytest.raises(InputError, match="ids from 0 to 43; got 0 to 44"):
        attack(torch.tensor([0, 44]), WORDS, share=0.5, seed=0)
