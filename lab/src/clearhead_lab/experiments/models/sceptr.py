"""SCEPTR, a small encoder of T-cell receptors that was trained in 16 variants (Nagano et al. 2025, Cell Systems 16).

The variants come with the package `sceptr`. They differ in training data, objective, embedding or size, so they show
what a statistic has to do with training. This module has the architecture; the weights are found by their names, and
no code of the package is imported.

=================  ===================================================================================================
variant            difference to the default
=================  ===================================================================================================
SCEPTR             none: masked tokens and contrastive learning, 3 layers of 8 heads, width 64
shuffled data      alpha and beta chains of the training data paired at random
synthetic data     training data drawn from a generative model of receptors (OLGA)
MLM only           masked tokens alone
average pooling    receptors are the mean of their tokens instead of the first token
dropout noise only contrastive views differ by dropout alone
finetuned          the default, trained further on receptors of known specificity
BLOSUM             tokens embedded by their substitution scores
left-aligned       learned embeddings and sinusoidal positions
CDR3 only          two of the six loops (also with masked tokens alone)
A, B               one chain
tiny, small, large width 16, 32, and 128 with 4 layers
=================  ===================================================================================================
"""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clearhead.loading.objects import LoadError
from clearhead.shapes import Float, Int
from clearhead_lab.experiments.models.preparing import Archives, Run, fetch

PACKAGES = ("sceptr==1.2.0", "tidytcells==2.2.1")
SAVES, GERMLINE = "sceptr/_model_saves", "tidytcells/_resources/homosapiens_tr_aa_sequences.json"
SEGMENTS = "tidytcells/_resources/valid_homosapiens_tr.json"
HEADS = 8
MASK = 1
SPECIAL_TOKENS = 3
"""Padding, mask and the first token."""

_LAYERS = re.compile(r"layers\.(\d+)\.")
_NAMES = (
    (re.compile(r".*(layers\.\d+\..*)"), r"encoder.\1"),
    (re.compile(r".*_initial_projector\.weight"), "projection.weight"),
    (re.compile(r".*projector\.projector\.(.*)"), r"residues.\1"),
    (re.compile(r".*(?:_token_embedding\._token_embeddings|_blosum_embeddings)"), "tokens"),
    (re.compile(r".*_special_token_embeddings\.weight"), "special"),
    (re.compile(r".*\.token_embedding\.weight"), "tokens"),
    (re.compile(r".*(?:_compartment_embedding\._token_embeddings|\.compartment_embedding\.weight)"), "loops"),
    (re.compile(r".*position_embedding_matrix"), "positions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One trained variant: its name, the loops that it reads, and its training data.

    loops: "all", "CDR3", "alpha" or "beta"
    """

    name: str
    loops: str
    data: str


class ReceptorEncoder(nn.Module):
    """The encoder: tokens embedded by tables, then `torch.nn.TransformerEncoder` with norms after the sums.

    With `positions`, embeddings are sums of three tables times the square root of the width. Without, the entries of
    two tables and the relative position in the loop are concatenated and projected.
    """

    tokens: Tensor
    loops: Tensor
    positions: Tensor

    def __init__(self, tables: Mapping[str, Tensor], *, width: int, layers: int) -> None:
        super().__init__()
        for name in ("tokens", "loops", "positions"):
            self.register_buffer(name, tables.get(name))
        joined = tables["tokens"].shape[1] + 1 + tables["loops"].shape[1]
        self.projection = None if "positions" in tables else nn.Linear(joined, width, bias=False)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.residues = nn.Linear(width, 20)

    def forward(self, tokens: Int[Tensor, "b n 4"]) -> Float[Tensor, "b n c"]:
        """Return the encoded tokens. A token is its residue, position in the loop, length of the loop, and loop."""
        residue, position, length, loop = tokens.unbind(-1)
        if self.projection is None:
            x = (self.tokens[residue] + self.positions[position] + self.loops[loop]) * self.tokens.shape[1] ** 0.5
        else:
            within = torch.where(length > 1, (position - 1) / (length - 1).clamp_min(1), 0.5)
            within = torch.where(position > 0, within, 0.0).to(self.tokens.dtype)
            x = self.projection(torch.cat([self.tokens[residue], within[..., None], self.loops[loop]], dim=-1))
        encoded: Tensor = self.encoder(x, src_key_padding_mask=residue == 0)
        return encoded

    def masked_accuracy(self, tokens: Int[Tensor, "b n 4"], *, every: int = 7) -> float:
        """Return the share of residues that are predicted when one in `every` tokens is masked, each once."""
        residue, order = tokens[..., 0], torch.arange(tokens.shape[1])
        right = []
        with torch.no_grad():
            for first in range(every):
                hidden = (order % every == first) & (residue >= SPECIAL_TOKENS)
                masked = tokens.clone()
                masked[..., 0][hidden] = MASK
                predicted = self.residues(self(masked)).argmax(-1) + SPECIAL_TOKENS
                right.append((predicted == residue)[hidden])
        return float(torch.cat(right).double().mean())


def fetch_variants(folder: Path, *, run: Run | None = None) -> None:
    """Download the packages and write the weights of every variant and the tables of gene segments to `folder`.

    run: runs a command; by default `subprocess.run`
    """
    fetch(PACKAGES, folder, _convert, name="sceptr", run=run)


def _convert(files: Archives, into: Path) -> None:
    names = sorted(name for name in files if name.startswith(SAVES) and name.endswith("/state_dict.pt"))
    if not names:
        raise LoadError(f"the package has no weights below {SAVES}; check its version")
    described = {}
    for name in names:
        config = json.loads(files(name.replace("state_dict.pt", "config.json")))
        weights = torch.load(io.BytesIO(files(name)), map_location="cpu", weights_only=True)
        saved = name.split("/")[-2]
        save_file({key: tensor.contiguous().clone() for key, tensor in weights.items()}, into / f"{saved}.safetensors")
        described[saved] = {
            "tokeniser": config["data"]["tokeniser"]["class"],
            "data": config["data"]["training_data"]["csv_paths"][0].rpartition("/")[2],
        }
    (into / "variants.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    for name in (GERMLINE, SEGMENTS):
        (into / Path(name).name).write_bytes(files(name))


_LOOPS = {"CdrTokeniser": "all", "Cdr3Tokeniser": "CDR3", "AlphaCdrTokeniser": "alpha", "BetaCdrTokeniser": "beta"}


def variants(folder: Path) -> list[Variant]:
    """Return the variants that `fetch_variants` wrote, the default first."""
    described = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    names = sorted(described, key=lambda name: (name != "SCEPTR", name.lower()))
    if outside := next((name for name in names if Path(name).name != name), None):
        raise LoadError(f"{folder / 'variants.json'} names {outside!r}, which is no variant; fetch the models again")
    return [
        Variant(name=name, loops=_LOOPS[described[name]["tokeniser"]], data=described[name]["data"]) for name in names
    ]


def load_variant(folder: Path, variant: Variant) -> ReceptorEncoder:
    """Return a variant with its trained weights."""
    weights: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / f"{variant.name}.safetensors").items():
        weights[_own_name(name)] = tensor
    if "special" in weights:  # substitution scores are fixed, and those of special tokens learned
        weights["tokens"] = weights["tokens"].clone()
        weights["tokens"][:SPECIAL_TOKENS] += weights.pop("special")
    layers = 1 + max(int(found[1]) for name in weights if (found := _LAYERS.search(name)))
    model = ReceptorEncoder(weights, width=weights["residues.weight"].shape[1], layers=layers)
    model.load_state_dict(weights)
    return model.eval()


def _own_name(name: str) -> str:
    for pattern, replacement in _NAMES:
        if pattern.fullmatch(name):
            return pattern.sub(replacement, name)
    raise LoadError(f"the weights have an unknown tensor {name}; check the version of the package")


def fresh(model: ReceptorEncoder, seed: int) -> ReceptorEncoder:
    """Return the same architecture with fresh random weights, as torch draws them. Fixed tables are kept.

    Learned tables have standard normal entries, except for the padding, as `torch.nn.Embedding` draws them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tables = {name: tensor.clone() for name, tensor in model.named_buffers()}
        if "positions" in tables:
            for name in ("tokens", "loops"):
                tables[name][1:] = torch.randn_like(tables[name][1:])
        elif tables["tokens"].shape[1] == len(tables["tokens"]) - SPECIAL_TOKENS:  # substitution scores
            tables["tokens"][1:SPECIAL_TOKENS] = torch.randn_like(tables["tokens"][1:SPECIAL_TOKENS])
        return ReceptorEncoder(tables, width=model.residues.in_features, layers=len(model.encoder.layers)).eval()
