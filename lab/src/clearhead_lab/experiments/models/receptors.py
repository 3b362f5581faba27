"""T-cell receptors drawn by seed from the germline of man, and their tokens as SCEPTR reads them.

A receptor has two chains of three loops. CDR1 and CDR2 are those of the V gene. CDR3 joins a V and a J gene: the end of
V from its conserved cysteine without its last 0 to 3 residues, 0 to 4 residues (beta: 2 to 6) of which half are glycine
or serine and the others any of the 20, and J without its first 0 to 4 residues up to its conserved phenylalanine. Genes
are drawn uniformly from the functional ones, in their first functional allele. Real repertoires use some genes more
than others and have longer and shorter loops; the two chains of a receptor are independent here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
FIRST_TOKEN, FIRST_RESIDUE = 2, 3
END_OF_J = re.compile(r"F(?=G.G)")
INSERTED = {"A": (0, 4), "B": (2, 6)}
BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The three loops of a chain."""

    cdr1: str
    cdr2: str
    cdr3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receptor:
    """A receptor of two chains."""

    alpha: Chain
    beta: Chain


def draw_receptors(sequences: Path, alleles: Path, *, count: int, seed: int) -> list[Receptor]:
    """Draw receptors from the tables of gene segments of the package tidytcells.

    sequences: residues of the regions of every allele; alleles: whether each allele of a gene is functional
    """
    regions = json.loads(sequences.read_text(encoding="utf-8"))
    functional = json.loads(alleles.read_text(encoding="utf-8"))
    segments = {kind: _segments(kind, regions, functional) for kind in ("TRAV", "TRAJ", "TRBV", "TRBJ")}
    rng = np.random.Generator(np.random.PCG64(seed))
    return [
        Receptor(
            alpha=_chain(segments["TRAV"], segments["TRAJ"], INSERTED["A"], rng),
            beta=_chain(segments["TRBV"], segments["TRBJ"], INSERTED["B"], rng),
        )
        for _ in range(count)
    ]


def _segments(
    kind: str, regions: Mapping[str, Mapping[str, str]], functional: Mapping[str, Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """Return the regions of the first functional allele of every gene of a kind that has all of them."""
    needed = ("CDR1-IMGT", "CDR2-IMGT", "FR3-IMGT", "V-REGION") if kind.endswith("V") else ("J-REGION",)
    usable = []
    for gene in sorted(gene for gene in functional if gene.startswith(kind)):
        first = next((allele for allele, code in sorted(functional[gene].items()) if code == "F"), None)
        found = regions.get(f"{gene}*{first}", {})
        if all(found.get(region, "*").isalpha() for region in needed) and (
            kind.endswith("V") or END_OF_J.search(found["J-REGION"])
        ):
            usable.append(found)
    return usable


def _chain(
    v_genes: Sequence[Mapping[str, str]],
    j_genes: Sequence[Mapping[str, str]],
    inserted: tuple[int, int],
    rng: np.random.Generator,
) -> Chain:
    v, j = (genes[int(rng.integers(len(genes)))] for genes in (v_genes, j_genes))
    end_of_v = "C" + v["V-REGION"].rpartition(v["FR3-IMGT"])[2]
    end = END_OF_J.search(j["J-REGION"])
    assert end is not None, "only such J genes are used"
    start_of_j = j["J-REGION"][: end.end()]
    kept_v = end_of_v[: max(1, len(end_of_v) - int(rng.integers(4)))]
    kept_j = start_of_j[min(len(start_of_j) - 1, int(rng.integers(5))) :]
    between = "".join(
        "GS"[rng.integers(2)] if rng.random() < 0.5 else RESIDUES[rng.integers(20)]
        for _ in range(int(rng.integers(inserted[0], inserted[1] + 1)))
    )
    return Chain(cdr1=v["CDR1-IMGT"], cdr2=v["CDR2-IMGT"], cdr3=kept_v + between + kept_j)


def tokens_of(receptor: Receptor, loops: str) -> list[tuple[int, int, int, int]]:
    """Return the tokens of a receptor: residue, position in the loop from 1, length of the loop, and loop from 1.

    The first token stands for the whole receptor. loops: "all", "CDR3", "alpha" or "beta"
    """
    a, b = receptor.alpha, receptor.beta
    read = {
        "all": (a.cdr1, a.cdr2, a.cdr3, b.cdr1, b.cdr2, b.cdr3),
        "CDR3": (a.cdr3, b.cdr3),
        "alpha": (a.cdr1, a.cdr2, a.cdr3),
        "beta": (b.cdr1, b.cdr2, b.cdr3),
    }[loops]
    return [
        (FIRST_TOKEN, 0, 0, 0),
        *(
            (FIRST_RESIDUE + RESIDUES.index(residue), position, len(loop), number)
            for number, loop in enumerate(read, start=1)
            for position, residue in enumerate(loop, start=1)
        ),
    ]


def as_batches(receptors: Sequence[Receptor], loops: str) -> list[dict[str, Tensor]]:
    """Return batches of tokens, padded at the end."""
    batches = []
    for first in range(0, len(receptors), BATCH):
        rows = [torch.tensor(tokens_of(receptor, loops)) for receptor in receptors[first : first + BATCH]]
        batches.append({"tokens": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)})
    return batches
