"""Inputs of the kinds that published models read."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead_lab.experiments.models.inputs import KINDS, ModelInputs, make_inputs, split_into_pieces
from clearhead_lab.experiments.models.published import PUBLISHED

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIGNS = ["<pad>", "<s>", "</s>", "<unk>", *"0123456789+*="]


def _rows(inputs: ModelInputs) -> list[list[int]]:
    """Return the tokens of every input without padding, which must be on the right."""
    rows = []
    for batch in inputs.batches:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            length = int(mask.sum())
            assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
            rows.append(ids[:length].tolist())
    return rows


def _folder(tmp_path: Path, suffix: str) -> Path:
    if suffix == ".txt":
        atoms = ["C", "c", "N", "n", "O", "o", "S", "s", "F", "Cl", "[nH]", "[N+]", "[P-]", *"()=#.-1234", ">>"]
        (tmp_path / "tokens.txt").write_text("\n".join([*SPECIAL, *dict.fromkeys([*atoms, *LETTERS])]))
    elif suffix == ".json":
        (tmp_path / "tokens.json").write_text(json.dumps({sign: i for i, sign in enumerate(SIGNS)}))
    else:
        table = "\n".join(f"g__G{i},{2.0**-i / 2 + 1e-7},{2.0**-i}" for i in range(211))
        (tmp_path / "tokens.csv").write_text(f"#SampleID,mean,std\n{table}\n")
    return tmp_path


def test_every_published_model_has_a_known_kind_of_input() -> None:
    assert {model.reads.partition(" ")[0] for model in PUBLISHED} == set(KINDS)
    assert len({model.name for model in PUBLISHED}) == len(PUBLISHED)
    assert all(model.command for model in PUBLISHED)


def test_antibodies_are_letters_between_their_ends(tmp_path: Path) -> None:
    rows = _rows(make_inputs("antibodies", _folder(tmp_path, ".txt"), None, count=32, seed=0))
    assert len(rows) == 25
    assert len({tuple(row) for row in rows}) == 25
    assert all(row[0] == 2 and row[-1] == 3 and min(row[1:-1]) > 4 for row in rows)
    assert all(105 <= len(row) <= 128 for row in rows)


def test_reactions_are_whole_tokens_and_balanced(tmp_path: Path) -> None:
    folder = _folder(tmp_path, ".txt")
    tokens = (folder / "tokens.txt").read_text().split("\n")
    rows = _rows(make_inputs("reactions", folder, None, count=32, seed=0))
    assert len(rows) == 32
    for row in rows:
        assert row[0] == 2
        assert row[-1] == 3
        assert 65 < len(row) <= 160
        words = [tokens[i] for i in row[1:-1]]
        assert "Cl" in tokens
        assert "l" not in words


@pytest.mark.parametrize(("sign", "calculate"), [("+", int.__add__), ("*", int.__mul__)])
def test_arithmetic_is_right(tmp_path: Path, sign: str, calculate: object) -> None:
    folder = _folder(tmp_path, ".json")
    rows = _rows(make_inputs(f"arithmetic {sign}", folder, None, count=11, seed=3))
    assert [len(row) for row in rows] == [48] * 11
    for row in rows:
        whole = "".join(SIGNS[i] for i in row).split("</s>")[:-1]
        assert len(whole) >= 7
        for line in whole:
            question, answer = line.split("=")
            a, b = question.split(sign)
            assert int(answer) == calculate(int(a), int(b))  # type: ignore[operator]
    again = _rows(make_inputs(f"arithmetic {sign}", folder, None, count=11, seed=3))
    assert rows == again != _rows(make_inputs(f"arithmetic {sign}", folder, None, count=11, seed=4))


def test_genera_occur_once_and_by_their_shares(tmp_path: Path) -> None:
    folder = _folder(tmp_path, ".csv")
    rows = _rows(make_inputs("genera", folder, None, count=13, seed=0))
    assert all(row[0] == 2 and min(row[1:]) >= 4 and len(set(row)) == len(row) <= 160 for row in rows)
    seen = [token - 4 for row in rows for token in row[1:]]
    assert max(seen) < 211
    assert sum(genus < 8 for genus in seen) > sum(genus >= 60 for genus in seen)
    table = [line.split(",")[1:] for line in (folder / "tokens.csv").read_text().splitlines()[1:]]
    random = np.random.Generator(np.random.PCG64(0))
    for row in rows:
        shares = []
        for (mean, spread), draw in zip(table, random.standard_normal(211), strict=True):
            variance = math.log(1 + (float(spread) / float(mean)) ** 2)
            shares.append(float(mean) / math.exp(variance / 2) * math.exp(math.sqrt(variance) * draw))
        surprise = {
            i: (share / sum(shares) - float(table[i][0])) / float(table[i][1])
            for i, share in enumerate(shares)
            if share / sum(shares) > 1e-4
        }
        assert [token - 4 for token in row[1:]] == sorted(surprise, key=lambda i: -surprise[i])[:159]
    assert rows != _rows(make_inputs("genera", folder, None, count=13, seed=1))


def test_text_goes_through_the_models_own_tokenizer(tmp_path: Path) -> None:
    shown: list[int] = []

    def encode(passages: Sequence[str]) -> dict[str, Tensor]:
        shown.append(len(passages))
        return {"input_ids": torch.ones(len(passages), 5, dtype=torch.long)}

    for kind, most in (("novel", 32), ("passages", 36)):
        for count, sizes in ((11, [8, 3]), (8, [8]), (99, [8] * (most // 8) + [most % 8] * (most % 8 > 0))):
            shown.clear()
            make_inputs(kind, tmp_path, encode, count=count, seed=0)
            assert shown == sizes


def test_the_novel_is_long_enough_for_wide_heads(tmp_path: Path) -> None:
    seen: list[str] = []

    def encode(passages: Sequence[str]) -> dict[str, Tensor]:
        seen.extend(passages)
        return {}

    make_inputs("novel", tmp_path, encode, count=32, seed=0)
    assert len(set(seen)) == 32
    assert min(len(passage.split()) for passage in seen) >= 140
    assert seen[0].startswith("It is a truth universally acknowledged")


def test_text_is_tokenized_by_pieces_without_a_tokenizer(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), " ", "t", "h", "e", "th", "the", " the"]
    (tmp_path / "tokens.json").write_text(json.dumps({"pieces": pieces, "scores": [0.0] * len(pieces)}))
    rows = _rows(make_inputs("passages", tmp_path, None, count=3, seed=0))
    assert [row[0] for row in rows] == [1, 1, 1]
    assert all(len(row) == 160 for row in rows)


def test_pieces_join_by_score_and_fall_back_to_bytes() -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), " ", "a", "b", "ab", "ba", " a", "aba"]
    at = {piece: i for i, piece in enumerate(pieces)}
    scores = [0.0] * len(pieces)
    scores[at["ab"]], scores[at["ba"]], scores[at[" a"]], scores[at["aba"]] = -2.0, -1.0, -3.0, -4.0
    assert split_into_pieces("aba", pieces, scores) == [1, at[" a"], at["ba"]]
    scores[at["ab"]] = -0.5
    assert split_into_pieces("aba", pieces, scores) == [1, at[" "], at["aba"]]
    assert split_into_pieces("é", pieces, scores) == [1, at[" "], at["<0xC3>"], at["<0xA9>"]]


def test_a_missing_list_of_tokens_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokens.txt, the list of tokens of the model"):
        make_inputs("antibodies", tmp_path, None, count=3, seed=0)
