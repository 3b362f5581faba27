"""Causal CRATE: size, causality, saving, and learning text."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clearhead._capture import capture
from clearhead.audit.run import audit
from clearhead.data.text import default_passages
from clearhead.loading.model import load_model
from clearhead.numerics.precision import tolerance
from clearhead.shapes import ShapeError
from clearhead_lab.models.crate import Form
from clearhead_lab.models.crate_language import CrateLanguage, CrateLanguageConfig, causal_crate_base
from clearhead_lab.models.native import save_native
from lab.tests.models.released_crate import randomised
from tests.noise import largest_difference, weight_tolerance
from tests.once import once

CONFIG = CrateLanguageConfig(width=22, layers=3, heads=2, vocabulary=29, context=17)


def _model(**changes: object) -> CrateLanguage:
    return CrateLanguage(dataclasses.replace(CONFIG, **changes), generator=torch.Generator().manual_seed(0)).eval()


def _tokens(n: int = 13, seed: int = 1) -> Tensor:
    return torch.randint(29, (5, n), generator=torch.Generator().manual_seed(seed))


def test_the_published_size_has_sixty_million_parameters() -> None:
    with torch.device("meta"):
        model = CrateLanguage(causal_crate_base())
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == 60_699_648
    assert parameters - model.positions.numel() == 59_913_216
    assert causal_crate_base(layers=3).layers == 3


def test_outputs_match_the_definition() -> None:
    model, tokens = randomised(_model()).double(), _tokens()
    with torch.no_grad():
        x = torch.stack([model.embedding.weight[row] for row in tokens]) + model.positions[:13]
        future = torch.ones(13, 13).triu(1).bool()
        for block in model.blocks:
            z, heads = block.attention_norm(x), []
            for w in block.attention.subspaces(z).chunk(2, dim=-1):
                scores = (w @ w.mT / 11**0.5).masked_fill(future, -torch.inf)
                heads.append(scores.softmax(dim=-1) @ w)
            z, D = block.sparse_norm(x + block.attention.out(torch.cat(heads, dim=-1))), block.sparse.dictionary
            x = (z + 0.1 * (z - z @ D.mT) @ D - 0.01).clamp_min(0)
        want = x @ model.embedding.weight.mT
        error = (model(tokens) - want).norm() / want.norm()
    assert error <= tolerance(torch.float64)


@pytest.mark.parametrize("overcomplete", [False, True])
@pytest.mark.parametrize("form", [Form.RELEASED, Form.PAPER])
def test_later_tokens_do_not_change_earlier_outputs(form: Form, overcomplete: bool) -> None:
    model, tokens = randomised(_model(form=form, overcomplete=overcomplete)), _tokens()
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 3) % 29
    with torch.no_grad():
        assert torch.equal(model(other)[:, :7], model(tokens)[:, :7])
        assert not torch.equal(model(other)[:, 7], model(tokens)[:, 7])
        short = model(tokens[:, :7])
        # Another length changes rounding.
        close = weight_tolerance(model, lambda: model(tokens[:, :7]))
        assert largest_difference(short, model(tokens)[:, :7]) <= close


def test_positions_matter() -> None:
    model, tokens = _model(), torch.zeros(1, 5, dtype=torch.long)
    with torch.no_grad():
        scores = model(tokens)
        assert not torch.allclose(scores[:, 1], scores[:, 2])
        model.positions.zero_()
        scores = model(tokens)
    torch.testing.assert_close(scores[:, 1], scores[:, 2])


@pytest.mark.parametrize("overcomplete", [False, True])
def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path, overcomplete: bool) -> None:
    model = _model(form=Form.TIED, overcomplete=overcomplete)
    save_native(model, tmp_path)
    loaded = load_model(str(tmp_path), max_tokens=256)
    assert loaded.model.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded.model(_tokens()), model(_tokens()))
        assert torch.equal(loaded.draw_baseline(0)(_tokens()), model(_tokens()))
        assert not torch.equal(loaded.draw_baseline(1)(_tokens()), model(_tokens()))


def test_model_can_be_captured_and_audited() -> None:
    model = randomised(_model())
    with torch.no_grad(), capture(model) as captured:
        while_capturing = model(_tokens())
        assert torch.equal(while_capturing, model(_tokens()))
    assert len(captured.heads) == 6
    assert all(heads.mask is not None and torch.equal(heads.q, heads.v) for heads in captured.heads)
    record = audit(_model(), [_tokens(), _tokens(seed=2)], theories=["symmetry"])
    assert record.fidelity.output_difference == 0
    assert {finding.layer for finding in record.findings} == {0, 1, 2}


@once
@pytest.mark.parametrize("overcomplete", [False, True])
def test_training_learns_more_than_letter_frequencies(overcomplete: bool) -> None:
    text = " ".join(default_passages()[:4])
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    config = CrateLanguageConfig(
        width=64, layers=1, heads=4, vocabulary=len(letters), context=32, overcomplete=overcomplete
    )
    model = CrateLanguage(config, generator=torch.Generator().manual_seed(0))
    optimiser, generator = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.Generator().manual_seed(1)
    losses = []
    for _ in range(60):
        starts = torch.randint(len(ids) - 33, (8,), generator=generator)
        rows = torch.stack([ids[start : start + 33] for start in starts])
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    shares = torch.bincount(ids).double() / len(ids)
    entropy = float(-(shares * shares.log()).sum())
    assert losses[0] > entropy + 0.5
    assert sum(losses[-10:]) / 10 < entropy - 0.1


def test_invalid_arguments_raise_an_error(typechecked: bool) -> None:
    for change in ({"vocabulary": 0}, {"context": 0}, {"heads": 3}, {"step": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            dataclasses.replace(CONFIG, **change)
    with pytest.raises(ShapeError, match=r"expected tokens \(b, n\), n at most 17; got \(5, 19\)"):
        _model()(_tokens(19))
    if typechecked:
        pytest.skip("the import hook refuses what follows before the model can")
    with pytest.raises(ShapeError, match="expected tokens"):
        _model()(_tokens()[0])
    with pytest.raises(ValueError, match=r"an integer dtype; got torch.float32"):
        _model()(_tokens().float())
