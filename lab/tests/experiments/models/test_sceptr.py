"""SCEPTR: weights found by the names of the package, tokens, drawn receptors, and which claims separate models."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.loading.objects import LoadError
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.models import sceptr
from clearhead_lab.experiments.models.measuring import Measured, Subject
from clearhead_lab.experiments.models.receptors import Chain, Receptor, as_batches, draw_receptors, tokens_of
from clearhead_lab.experiments.models.sceptr import HEADS, Variant, fetch_variants, fresh, load_variant, variants
from clearhead_lab.experiments.models.sceptr_table import SCEPTR_TABLE, SceptrRun, VariantRow, report
from clearhead_lab.experiments.models.separation import heads_differ, separate
from lab.tests.experiments.models.test_preparing import Pip

WIDTH, LAYERS = 16, 2
STACK = "_self_attention_stack._standard_stack._self_attention_stack."
RECEPTOR = Receptor(alpha=Chain(cdr1="AC", cdr2="D", cdr3="CAF"), beta=Chain(cdr1="WY", cdr2="K", cdr3="CASSF"))


def _package(kind: str) -> dict[str, Tensor]:
    """Return random weights under the names of the package: one-hot tokens, substitution scores, or learned tables."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).state_dict()
    if kind == "learned":
        return {
            "_token_embedder.token_embedding.weight": normal(23, WIDTH),
            "_token_embedder.position_embedding.position_embedding_matrix": normal(101, WIDTH),
            "_token_embedder.compartment_embedding.weight": normal(7, WIDTH),
            "_mlm_token_prediction_projector.projector.weight": normal(20, WIDTH),
            "_mlm_token_prediction_projector.projector.bias": normal(20),
            **{f"_self_attention_stack._self_attention_stack.{name}": value for name, value in encoder.items()},
        }
    scores = {
        "_token_embedder._blosum_embedding._blosum_embeddings": torch.cat([torch.zeros(3, 20), normal(20, 20)]),
        "_token_embedder._blosum_embedding._special_token_embeddings.weight": normal(3, 20),
    }
    one_hot = {"_token_embedder._token_embedding._token_embeddings": torch.eye(23)[:, 1:]}
    tokens = scores if kind == "scores" else one_hot
    return {
        **tokens,
        "_token_embedder._compartment_embedding._token_embeddings": torch.eye(7)[:, 1:],
        "_self_attention_stack._initial_projector.weight": normal(WIDTH, (20 if kind == "scores" else 22) + 7),
        "_mlm_token_prediction_projector.projector.weight": normal(20, WIDTH),
        "_mlm_token_prediction_projector.projector.bias": normal(20),
        **{STACK + name: value for name, value in encoder.items()},
    }


def _pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _config(tokeniser: str = "CdrTokeniser", data: str = "train.csv") -> bytes:
    data_config = {"tokeniser": {"class": tokeniser}, "training_data": {"csv_paths": [f"folder/{data}"]}}
    return json.dumps({"data": data_config}).encode()


GERMLINE = {
    "TRAV1*01": {"CDR1-IMGT": "AC", "CDR2-IMGT": "D", "FR3-IMGT": "YC", "V-REGION": "ACDYCAV"},
    "TRAV2*01": {"CDR1-IMGT": "*C", "CDR2-IMGT": "D", "FR3-IMGT": "YC", "V-REGION": "ACDYCAV"},
    "TRAV3*01": {"CDR1-IMGT": "WW", "CDR2-IMGT": "D", "FR3-IMGT": "YC", "V-REGION": "ACDYCAV"},
    "TRAJ1*02": {"J-REGION": "NKLTFGTGTQ"},
    "TRBV1*01": {"CDR1-IMGT": "WY", "CDR2-IMGT": "K", "FR3-IMGT": "YC", "V-REGION": "ACDYCASS"},
    "TRBJ1*01": {"J-REGION": "NEQFFGPGTR"},
    "TRBJ2*01": {"J-REGION": "NEQYL"},
}
SEGMENTS = {
    "TRAV1": {"01": "F"}, "TRAV2": {"01": "F"}, "TRAV3": {"01": "P"}, "TRAJ1": {"01": "P", "02": "F"},
    "TRBV1": {"01": "F"}, "TRBJ1": {"01": "F"}, "TRBJ2": {"01": "F"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the models of a small package with three variants."""
    saved = {"SCEPTR": ("one-hot", "CdrTokeniser"), "A_scores": ("scores", "AlphaCdrTokeniser"),
             "SCEPTR_learned": ("learned", "Cdr3Tokeniser")}  # fmt: skip
    files = {sceptr.GERMLINE: json.dumps(GERMLINE).encode(), sceptr.SEGMENTS: json.dumps(SEGMENTS).encode()}
    for name, (kind, tokeniser) in saved.items():
        files[f"{sceptr.SAVES}/{name}/state_dict.pt"] = _pickled(_package(kind))
        files[f"{sceptr.SAVES}/{name}/config.json"] = _config(tokeniser)
    folder = tmp_path_factory.mktemp("models") / "sceptr"
    pip = Pip(files)
    fetch_variants(folder, run=pip)
    assert [command[-1] for command in pip.commands] == list(sceptr.PACKAGES)
    return folder


def test_variants_are_listed_with_what_they_read(folder: Path) -> None:
    assert variants(folder) == [
        Variant(name="SCEPTR", loops="all", data="train.csv"),
        Variant(name="A_scores", loops="alpha", data="train.csv"),
        Variant(name="SCEPTR_learned", loops="CDR3", data="train.csv"),
    ]


def test_other_packages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no weights below"):
        fetch_variants(tmp_path / "empty", run=Pip({"other.txt": b""}))
    files = {
        f"{sceptr.SAVES}/SCEPTR/state_dict.pt": _pickled({"unknown": torch.zeros(1)}),
        f"{sceptr.SAVES}/SCEPTR/config.json": _config(),
        sceptr.GERMLINE: b"{}",
        sceptr.SEGMENTS: b"{}",
    }
    fetch_variants(tmp_path / "sceptr", run=Pip(files))
    with pytest.raises(LoadError, match="unknown tensor unknown"):
        load_variant(tmp_path / "sceptr", Variant(name="SCEPTR", loops="all", data=""))


@pytest.mark.parametrize("kind", ["one-hot", "scores", "learned"])
def test_a_variant_computes_what_the_package_defines(kind: str, folder: Path) -> None:
    """The embedding is written out token by token; the encoder is torch's, with the package's weights."""
    variant = {"one-hot": variants(folder)[0], "scores": variants(folder)[1], "learned": variants(folder)[2]}[kind]
    weights, model = _package(kind), load_variant(folder, variant)
    batch = as_batches([RECEPTOR, Receptor(alpha=RECEPTOR.beta, beta=RECEPTOR.alpha)], variant.loops)[0]["tokens"]
    rows = []
    for residue, position, length, loop in batch.flatten(0, 1).tolist():
        if kind == "learned":
            tables = [weights[f"_token_embedder.{name}"] for name in
                      ("token_embedding.weight", "position_embedding.position_embedding_matrix",
                       "compartment_embedding.weight")]  # fmt: skip
            rows.append((tables[0][residue] + tables[1][position] + tables[2][loop]) * WIDTH**0.5)
            continue
        if kind == "scores":
            token = weights["_token_embedder._blosum_embedding._blosum_embeddings"][residue]
            if residue < 3:
                token = token + weights["_token_embedder._blosum_embedding._special_token_embeddings.weight"][residue]
        else:
            token = torch.eye(23)[residue, 1:]
        within = 0.0 if position == 0 else 0.5 if length == 1 else (position - 1) / (length - 1)
        joined = torch.cat([token, torch.tensor([within]), torch.eye(7)[loop, 1:]])
        rows.append(weights["_self_attention_stack._initial_projector.weight"] @ joined)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True), LAYERS, enable_nested_tensor=False
    ).eval()
    encoder.load_state_dict(
        {"layers." + name.partition("layers.")[2]: value for name, value in weights.items() if "layers." in name}
    )
    with torch.no_grad():
        expected = encoder(torch.stack(rows).view(*batch.shape[:2], WIDTH), src_key_padding_mask=batch[..., 0] == 0)
        encoded = model(batch)
    visible = batch[..., 0] > 0
    torch.testing.assert_close(encoded[visible], expected[visible])


@pytest.mark.parametrize("index", range(3))
def test_fresh_weights_keep_fixed_tables_and_draw_the_rest(index: int, folder: Path) -> None:
    model = load_variant(folder, variants(folder)[index])
    first, again, other = (fresh(model, seed).state_dict() for seed in (1, 1, 2))
    fixed = {"tokens", "loops"} if index == 0 else {"loops"} if index == 1 else {"positions"}
    for name, value in model.state_dict().items():
        assert torch.equal(first[name], again[name])
        constant = name in fixed or "norm" in name or name.endswith(("out_proj.bias", "in_proj_bias"))
        assert torch.equal(first[name], other[name]) is constant, name
        if name in fixed:
            assert torch.equal(first[name], value)
    if index == 1:
        assert torch.equal(first["tokens"][3:], model.tokens[3:])


def test_masked_residues_are_predicted_from_the_others(folder: Path) -> None:
    """A model whose output tells the residue apart is right unless the residue is masked."""
    model = load_variant(folder, variants(folder)[0])

    class Copy(nn.Module):
        def forward(self, x: Tensor, src_key_padding_mask: Tensor) -> Tensor:
            return x

    model.encoder, model.projection, model.residues = Copy(), nn.Identity(), nn.Linear(29, 20)
    with torch.no_grad():
        model.residues.weight.copy_(torch.eye(29)[2:22])  # the residues follow the mask and the first token
        model.residues.bias.zero_()
        model.residues.bias[0] = 0.5  # of a masked token, A is predicted
    tokens = as_batches([RECEPTOR], "all")[0]["tokens"]
    letters = "ACDCAFWYKCASSF"
    assert model.masked_accuracy(tokens) == pytest.approx(letters.count("A") / len(letters))


def test_tokens_are_residue_position_length_and_loop() -> None:
    assert tokens_of(RECEPTOR, "CDR3") == [
        (2, 0, 0, 0), (4, 1, 3, 1), (3, 2, 3, 1), (7, 3, 3, 1),
        (4, 1, 5, 2), (3, 2, 5, 2), (18, 3, 5, 2), (18, 4, 5, 2), (7, 5, 5, 2),
    ]  # fmt: skip
    assert [token[3] for token in tokens_of(RECEPTOR, "all")] == [0, 1, 1, 2, 3, 3, 3, 4, 4, 5, 6, 6, 6, 6, 6]
    assert [token[0] for token in tokens_of(RECEPTOR, "beta")] == [2, 21, 22, 11, 4, 3, 18, 18, 7]


def test_receptors_follow_the_recipe(folder: Path) -> None:
    paths = [folder / Path(name).name for name in (sceptr.GERMLINE, sceptr.SEGMENTS)]
    drawn = draw_receptors(*paths, count=200, seed=3)
    assert drawn == draw_receptors(*paths, count=200, seed=3)
    assert drawn != draw_receptors(*paths, count=200, seed=4)
    assert {receptor.alpha.cdr1 for receptor in drawn} == {"AC"}  # one V gene is complete and functional
    for chain, v, j, inserted in (("alpha", "CAV", "NKLTF", (0, 4)), ("beta", "CASS", "NEQFF", (2, 6))):
        loops = [getattr(receptor, chain).cdr3 for receptor in drawn]
        assert all(loop.startswith("C") and loop.endswith("F") for loop in loops)
        assert min(map(len, loops)) >= max(1, len(v) - 3) + inserted[0] + len(j) - 4
        assert max(map(len, loops)) == len(v) + inserted[1] + len(j)


def _values(rng: np.random.Generator, claims: int = 8, *, shift: float = 0.0) -> dict[tuple[str, str], Any]:
    values = {("theory", f"claim {i}"): rng.normal(size=(3, 8)) + rng.normal() for i in range(claims)}
    values["theory", "claim 0"] = values["theory", "claim 0"] + shift
    return values


def test_a_model_is_separated_only_if_it_lies_outside_the_spread_of_the_others() -> None:
    rng = np.random.default_rng(0)
    others = [_values(rng) for _ in range(7)]
    separations = separate(others, _values(rng, shift=40.0))
    found = min(separations, key=lambda s: s.p_value)
    assert found.statistic == "claim 0"
    assert found.adjusted_p_value <= 0.05
    assert len(separations) == 8
    # One more model of the same kind: the p-values are uniform.
    p_values = [s.p_value for _ in range(60) for s in separate([_values(rng) for _ in range(7)], _values(rng))]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    same = {("theory", "constant"): np.ones((3, 8))}
    assert separate([same] * 7, same) == []


def test_heads_are_exchanged_within_layers() -> None:
    rng = np.random.default_rng(0)
    layers = 100 * np.arange(3)[:, None]
    first = {key: value + layers for key, value in _values(rng).items()}
    moved = {key: rng.permuted(value, axis=1) for key, value in first.items()}
    assert set(heads_differ(first, moved, seed=0).values()) == {1.0}
    moved["theory", "claim 3"] = moved["theory", "claim 3"] + 3.0
    p_values = heads_differ(first, moved, seed=0)
    assert {key for key, p in p_values.items() if p <= 0.05} == {("theory", "claim 3")}
    assert p_values["theory", "claim 3"] == pytest.approx(8 / 10_000)  # the smallest possible, adjusted over 8 claims


BY_CONSTRUCTION = "true by construction"


def _row(name: str, data: str, value: float, *, like_default: bool = True) -> VariantRow:
    rng = np.random.default_rng(len(name))
    claim = {"theory": "kernel PCA", "statistic": "captured variance", "role": "primary"}
    findings = [
        {**claim, "layer": layer, "head": head, "value": value + 0.01 * rng.normal(), "verdict": "no evidence"}
        for layer in range(3) for head in range(8)
    ]  # fmt: skip
    symmetry = {**claim, "theory": "symmetry", "statistic": "permutation error"}
    findings.append({**symmetry, "layer": 0, "head": 0, "value": 1e-16 * rng.normal(), "verdict": BY_CONSTRUCTION})
    summary = {**claim, "verdicts": {"no evidence": 23, "supported": 1}, "verdict": "no evidence", "median": value}
    record = {"claims": [claim, symmetry], "findings": findings, "summaries": [summary],
              "fidelity": {"layers": [{"heads": 8}] * 3}}  # fmt: skip
    subject = Subject(name=name, architecture="", licence="", command="", load=lambda: pytest.fail("not loaded"))
    return VariantRow(
        variant=Variant(name=name, loops="all", data=data),
        accuracy=0.8,
        measured=Measured(subject=subject, record=record),
        like_default=like_default,
    )


def test_the_page_says_which_claims_separate(tmp_path: Path) -> None:
    real = [_row(name, "train.csv", 0.2 + 0.01 * i) for i, name in enumerate(("SCEPTR", "a", "bb", "ccc"))]
    run = SceptrRun(
        rows=[
            *real,
            _row("shuffled", "train_randomly_paired.csv", 0.21),
            _row("synthetic", "olga_size_matched.csv", 0.9),
            _row("random weights", "", 0.5),
            _row("large", "train.csv", 7.0, like_default=False),
        ]
    )
    result = report(run, Request(out=tmp_path))
    assert "No claim of 1 separates training on chains paired at random" in result.headline
    assert "1 of 1 claims separates training on synthetic receptors" in result.headline
    assert "1 of 1 claims separates random weights" in result.headline
    assert result.facts["separating"]["synthetic receptors"] == ["kernel PCA: captured variance"]
    sections = dict(result.sections)
    assert "4 trained on real receptors (SCEPTR, a, bb, ccc;" in sections["Does a claim separate training data?"]
    table = {field.title: field.cells for field in sections["Verdicts"]}
    assert table["kernel PCA: captured variance"][-1] == "1 / 0 / 0 / 23; 7"
    heads = sections["Claims in which heads differ from those of SCEPTR"]
    assert dict(zip(heads[0].cells, heads[2].cells, strict=True))["synthetic"] == "1 of 1"
    with pytest.raises(InputError, match="too few variants"):
        report(SceptrRun(rows=real), Request(out=tmp_path))


def test_models_are_downloaded_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--fetch"):
        SCEPTR_TABLE.run(Request(out=tmp_path))
