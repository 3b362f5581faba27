"""Inputs of the kinds that published models read, each with its source.

========== ============================================================================================================
kind       content
========== ============================================================================================================
passages   the default text of Clearhead
novel      openings of 32 chapters of Jane Austen's *Pride and Prejudice* (1813, public domain), about 200 words each
antibodies 25 variable regions of antibodies, of which several are medicines (adalimumab, atezolizumab, belimumab,
           pembrolizumab, pertuzumab, trastuzumab), from public sources; one letter is one residue
reactions  32 amide couplings of a medicine with an acid group to an amine, as reaction SMILES with reagents and solvent
arithmetic one-digit sums or products with their answers, drawn by seed and joined to reach 48 tokens
genera     genera of a microbial community in the order of their surprise, drawn by seed from the mean and standard
           deviation of each genus in the model's package
========== ============================================================================================================

Random numbers come from numpy's PCG64, whose streams do not change between versions.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearhead.data.text import default_passages, read_passages
from clearhead.errors import InputError
from clearhead.loading.encoding import Encode

BATCH = 8
LONGEST = 160
"""The largest number of tokens per input; enough for heads of width 64."""

SMILES_TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|>>|.")
DETECTED = 1e-4
"""The share of a community above which a genus counts as present."""

ARITHMETIC_TOKENS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """Batches of arguments of a model, and a description of their source."""

    batches: list[dict[str, Tensor]]
    source: str


def make_inputs(kind: str, folder: Path, encode: Encode | None, *, count: int, seed: int) -> ModelInputs:
    """Return at most `count` inputs of a kind for the model of a folder, which may hold the list of tokens."""
    name, _, detail = kind.partition(" ")
    return KINDS[name](folder, encode, detail, count, seed)


def _passages(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    return _text(default_passages(), "passages of the default text", folder, encode, count)


def _novel(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    return _text(_resource("novel.txt"), "chapter openings of Pride and Prejudice", folder, encode, count)


def _text(passages: Sequence[str], source: str, folder: Path, encode: Encode | None, count: int) -> ModelInputs:
    if encode is None:
        stored = json.loads(_tokens_file(folder, ".json").read_text(encoding="utf-8"))
        inputs = [split_into_pieces(text, stored["pieces"], stored["scores"])[:LONGEST] for text in passages[:count]]
        return ModelInputs(batches=_padded(inputs, padding=0), source=source)
    batches = [dict(encode(passages[i : min(i + BATCH, count)])) for i in range(0, min(count, len(passages)), BATCH)]
    return ModelInputs(batches=batches, source=source)


def _antibodies(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    sequences = _resource("antibodies.txt")[:count]
    return _bert_inputs([list(sequence) for sequence in sequences], folder, "antibody variable regions")


def _reactions(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    reactions = _resource("reactions.txt")[:count]
    return _bert_inputs([SMILES_TOKEN.findall(reaction) for reaction in reactions], folder, "amide couplings as SMILES")


def _bert_inputs(inputs: Sequence[list[str]], folder: Path, source: str) -> ModelInputs:
    ids = {token: i for i, token in enumerate(_tokens_file(folder, ".txt").read_text(encoding="utf-8").split("\n"))}
    rows = [["[CLS]", *tokens[: LONGEST - 2], "[SEP]"] for tokens in inputs]
    return ModelInputs(
        batches=_padded([[ids[token] for token in row] for row in rows], padding=ids["[PAD]"]), source=source
    )


def _arithmetic(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    ids = json.loads(_tokens_file(folder, ".json").read_text(encoding="utf-8"))
    calculate: Callable[[int, int], int] = {"+": int.__add__, "*": int.__mul__}[detail]
    random = np.random.Generator(np.random.PCG64(seed))
    inputs: list[list[int]] = []
    for _ in range(count):
        tokens: list[int] = []
        while len(tokens) < ARITHMETIC_TOKENS:
            a, b = (int(digit) for digit in random.integers(0, 10, size=2))
            tokens += [*(ids[sign] for sign in f"{a}{detail}{b}={calculate(a, b)}"), ids["</s>"]]
        inputs.append(tokens[:ARITHMETIC_TOKENS])
    what = {"+": "sums", "*": "products"}[detail]
    return ModelInputs(
        batches=_padded(inputs, padding=ids["<pad>"]),
        source=f"one-digit {what} drawn by seed, joined: longer than in training",
    )


def _genera(folder: Path, encode: Encode | None, detail: str, count: int, seed: int) -> ModelInputs:
    """Draw log-normal shares with the mean m and deviation s of each genus; order those present by (share - m) / s."""
    with _tokens_file(folder, ".csv").open(encoding="utf-8", newline="") as file:
        rows = [(float(mean), float(spread)) for _, mean, spread in list(csv.reader(file))[1:]]
    mean, spread = np.array(rows).T
    log_variance = np.log1p((spread / mean) ** 2)
    random = np.random.Generator(np.random.PCG64(seed))
    inputs: list[list[int]] = []
    for _ in range(count):
        draw = random.standard_normal(len(mean))
        share = np.exp(np.log(mean) - log_variance / 2 + np.sqrt(log_variance) * draw)
        share /= math.fsum(share)
        present = np.flatnonzero(share > DETECTED)
        ordered = present[np.argsort(-((share - mean) / spread)[present], kind="stable")]
        # The list follows <pad>, <mask>, <bos>, <eos>.
        inputs.append([2, *(4 + int(i) for i in ordered)][:LONGEST])
    return ModelInputs(batches=_padded(inputs, padding=0), source="communities drawn by seed from the package's table")


KINDS: dict[str, Callable[[Path, Encode | None, str, int, int], ModelInputs]] = {
    "passages": _passages,
    "novel": _novel,
    "antibodies": _antibodies,
    "reactions": _reactions,
    "arithmetic": _arithmetic,
    "genera": _genera,
}


def _padded(inputs: Sequence[Sequence[int]], *, padding: int) -> list[dict[str, Tensor]]:
    """Return batches of token lists, padded at the end, with attention masks."""
    batches = []
    for first in range(0, len(inputs), BATCH):
        batch = inputs[first : first + BATCH]
        longest = max(map(len, batch))
        ids = torch.tensor([[*tokens, *[padding] * (longest - len(tokens))] for tokens in batch])
        lengths = torch.tensor([len(tokens) for tokens in batch])
        mask = torch.arange(longest)[None, :] < lengths[:, None]
        batches.append({"input_ids": ids, "attention_mask": mask.long()})
    return batches


def _resource(name: str) -> list[str]:
    with resources.as_file(resources.files("clearhead_lab.experiments.models").joinpath(name)) as path:
        return read_passages(path)


def _tokens_file(folder: Path, suffix: str) -> Path:
    path = (folder / "tokens").with_suffix(suffix)
    if not path.exists():
        raise InputError(
            f"{folder} has no {path.name}, the list of tokens of the model; download it again with --fetch"
        )
    return path


def split_into_pieces(text: str, pieces: Sequence[str], scores: Sequence[float]) -> list[int]:
    """Tokenise by scores, as byte-pair models of SentencePiece do (Kudo and Richardson 2018); the first token is 1.

    The text gets a leading space and is split into characters; then the first neighbours whose union is the piece of
    the largest score are merged, until no union is a piece. A character that is not a piece becomes its bytes, pieces
    of the form <0x2A>.
    """
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokens: list[int] = []
    for character in f" {text}":
        tokens += [ids[character]] if character in ids else [ids[f"<0x{byte:02X}>"] for byte in character.encode()]
    while True:
        unions = [
            (-scores[ids[union]], i)
            for i in range(len(tokens) - 1)
            if (union := pieces[tokens[i]] + pieces[tokens[i + 1]]) in ids
        ]
        if not unions:
            return [1, *tokens]
        _, i = min(unions)
        tokens[i : i + 2] = [ids[pieces[tokens[i]] + pieces[tokens[i + 1]]]]
