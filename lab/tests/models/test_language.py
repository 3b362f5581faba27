"""The language model: definition, causality with every operator, loss of both outputs, saving, and capture."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import clearhead as ch
from clearhead.errors import InputError
from clearhead.loading.model import load_model
from clearhead.loading.objects import LoadError
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead.shapes import ShapeError
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models import language
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.models.native import save_native
from lab.tests.models.released_crate import randomised
from tests.noise import largest_difference, weight_tolerance

CONFIG = LanguageModelConfig(vocabulary=29, context=17, width=22, layers=3, heads=2, mlp_width=31)
ADAPTIVE: dict[str, Any] = {"output": "adaptive", "cutoffs": (7, 18), "tail_divisor": 2.0}
OPERATORS = [Softmax(), Symmetric(), ClampedKeys(strength=1.0), RPC(iterations=3, strength=1.0)]
NAMES = [operator.name for operator in OPERATORS]


def _model(**changes: Any) -> LanguageModel:
    return LanguageModel(dataclasses.replace(CONFIG, **changes), generator=torch.Generator().manual_seed(0)).eval()


def _tokens(n: int = 13, seed: int = 1) -> Tensor:
    return torch.randint(29, (5, n), generator=torch.Generator().manual_seed(seed))


def test_outputs_match_the_definition() -> None:
    model, tokens = randomised(_model()).double(), _tokens()
    with torch.no_grad():
        x = torch.stack([model.embedding.weight[row] for row in tokens]) + model.positions[:13]
        future = torch.ones(13, 13).triu(1).bool()
        for block in model.blocks:
            z, heads, of = block.attention_norm(x), [], block.attention
            for q, k, v in zip(*(part(z).chunk(2, dim=-1) for part in (of.query, of.key, of.value)), strict=True):
                heads.append((q @ k.mT / 11**0.5).masked_fill(future, -torch.inf).softmax(dim=-1) @ v)
            x = x + of.out(torch.cat(heads, dim=-1))
            x = x + block.mlp[2](torch.nn.functional.gelu(block.mlp[0](block.mlp_norm(x))))
        want = model.norm(x) @ model.embedding.weight.mT
        error = (model(tokens) - want).norm() / want.norm()
    assert error <= tolerance(torch.float64)


def _future_effect(model: LanguageModel) -> tuple[float, float]:
    """Return how much tokens from position 7 on change outputs before it, and at it."""
    tokens = _tokens()
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 3) % 29
    with torch.no_grad():
        changes = (model(other) - model(tokens)).abs().amax(dim=(0, 2))
    return float(changes[:7].max()), float(changes[7].max())


@pytest.mark.parametrize("output", [{}, ADAPTIVE], ids=["tied", "adaptive"])
@pytest.mark.parametrize("operator", OPERATORS, ids=NAMES)
def test_later_tokens_do_not_change_earlier_outputs(operator: Any, output: dict[str, Any]) -> None:
    model = randomised(_model(attention=operator, **output))
    before, at = _future_effect(model)
    assert before == 0
    assert at > 0.01


@pytest.mark.parametrize("operator", OPERATORS, ids=NAMES)
def test_attention_that_is_not_causal_fails_the_test_above(operator: Any) -> None:
    model = randomised(_model(attention=operator))
    for block in model.blocks:
        block.attention.forward = _ignoring_causal(block.attention.forward)
    before, _ = _future_effect(model)
    assert before > 0.01


def _ignoring_causal(forward: Any) -> Any:
    return lambda x, *, causal: forward(x, causal=False)


@pytest.mark.parametrize("operator", OPERATORS, ids=NAMES)
def test_a_shorter_sequence_gives_the_same_outputs(operator: Any) -> None:
    model, tokens = randomised(_model(attention=operator)), _tokens()
    with torch.no_grad():
        close = weight_tolerance(model, lambda: model(tokens[:, :7]))
        assert largest_difference(model(tokens[:, :7]), model(tokens)[:, :7]) <= close


@pytest.mark.parametrize("output", [{}, ADAPTIVE], ids=["tied", "adaptive"])
def test_the_loss_is_the_cross_entropy_of_the_outputs(output: dict[str, Any]) -> None:
    model, tokens, targets = randomised(_model(**output)).double(), _tokens(), _tokens(seed=2)
    assert set(targets.flatten().tolist()) >= {0, 28, 7, 17, 18}, "every cluster and its edges"
    with torch.no_grad():
        losses, outputs = model.loss(tokens, targets), model(tokens)
    expected = cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").unflatten(0, (5, 13))
    assert losses.shape == (5, 13)
    assert float((losses - expected).norm() / expected.norm()) <= tolerance(torch.float64)
    if output:
        sums = outputs.exp().sum(dim=-1)
        assert float((sums - 1).abs().max()) <= tolerance(torch.float64)


def test_a_loss_in_chunks_has_the_same_value_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, targets, weights = _tokens(), _tokens(seed=2), torch.rand(5, 13, dtype=torch.float64)
    results = []
    for limit in (2**28, 29 * 11):
        monkeypatch.setattr(language, "MAX_LOGITS", limit)
        model = randomised(_model()).double()
        losses = model.loss(tokens, targets)
        (losses * weights).sum().backward()
        results.append((losses.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    for whole, chunks in zip(*results, strict=True):
        assert float((whole - chunks).norm() / whole.norm()) <= tolerance(torch.float64)


@pytest.mark.parametrize("output", [{}, ADAPTIVE], ids=["tied", "adaptive"])
def test_the_loss_works_under_autocast(output: dict[str, Any]) -> None:
    model, tokens, targets = randomised(_model(**output)), _tokens(), _tokens(seed=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, outputs = model.loss(tokens, targets), model(tokens)
    losses.mean().backward()
    with torch.no_grad():
        exact = model.loss(tokens, targets)
    assert losses.dtype is torch.float32
    assert float((losses.detach() - exact).norm() / exact.norm()) <= tolerance(torch.bfloat16)
    assert outputs.shape == (5, 13, 29)


@pytest.mark.parametrize("output", [{}, ADAPTIVE], ids=["tied", "adaptive"])
def test_every_parameter_gets_a_gradient(output: dict[str, Any]) -> None:
    model = _model(**output).train()
    model.loss(_tokens(17), _tokens(17, seed=2)).sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert silent <= {f"blocks.{i}.attention.key.bias" for i in range(3)}  # it has no effect in softmax


def test_clusters_without_targets_have_a_gradient_of_zero() -> None:
    model = _model(**ADAPTIVE).train()
    model.loss(_tokens(), torch.zeros_like(_tokens())).sum().backward()
    tails = [parameter.grad for parameter in model.adaptive.tail.parameters()]
    assert len(tails) == 4
    assert all(gradient is not None and not gradient.any() for gradient in tails)


def test_positions_matter() -> None:
    model, tokens = _model(), torch.zeros(1, 5, dtype=torch.long)
    with torch.no_grad():
        scores = model(tokens)
        assert not torch.allclose(scores[:, 1], scores[:, 2])
        model.positions.zero_()
        scores = model(tokens)
    torch.testing.assert_close(scores[:, 1], scores[:, 2])


def test_dropout_is_on_in_training_only() -> None:
    model, plain, tokens = _model(dropout=0.3), _model(), _tokens()
    assert torch.equal(model(tokens), plain(tokens))
    embedded: list[Tensor] = []
    model.train().blocks[0].register_forward_pre_hook(lambda _, inputs: embedded.append(inputs[0]))
    torch.manual_seed(0)
    first, second = model(tokens), model(tokens)
    assert 0.2 < float((embedded[0] == 0).double().mean()) < 0.4
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(model(tokens), first)
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == [0.3] * 7


def test_initial_shared_weights_do_not_depend_on_the_attention() -> None:
    plain, symmetric = _model().state_dict(), _model(attention=(Softmax(), Symmetric(), RPC())).state_dict()
    queries = {f"blocks.{i}.attention.query.{part}" for i in (1, 2) for part in ("weight", "bias")}
    assert plain.keys() - symmetric.keys() == queries
    assert all(torch.equal(plain[name], weight) for name, weight in symmetric.items())
    torch.manual_seed(5)
    assert torch.equal(_model().embedding.weight, plain["embedding.weight"])


@pytest.mark.parametrize(
    "changes",
    [{"attention": (Softmax(), Symmetric(), RPC(iterations=2))}, {**ADAPTIVE, "dropout": 0.1}],
    ids=["operators", "adaptive"],
)
def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = _model(**changes)
    save_native(model, tmp_path)
    loaded = load_model(str(tmp_path), max_tokens=256)
    assert isinstance(loaded.model, LanguageModel)
    assert loaded.model.config == model.config
    assert loaded.draw_baseline is not None
    with torch.no_grad():
        assert torch.equal(loaded.model(_tokens()), model(_tokens()))
        assert torch.equal(loaded.draw_baseline(0)(_tokens()), model(_tokens()))
        assert not torch.equal(loaded.draw_baseline(1)(_tokens()), model(_tokens()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 10**6}, "has layers of 1000000, but there are only"),
        ({"vocabulary": 10**12}, "embedding.weight should be"),
        ({"width": 0}, "expected width of at least 1; got 0"),
        ({"cutoffs": list(range(1, 29))}, "expected no cutoffs with the tied output"),
        ({"output": "adaptive", "cutoffs": list(range(1, 29))}, "expected at most 16 increasing cutoffs"),
        ({"output": "adaptive", "cutoffs": [7, 18]}, "adaptive.head.weight should be"),
        ({"size": 3}, "does not describe a language-model"),
    ],
)
def test_hostile_settings_raise_a_one_line_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_native(_model(), tmp_path)
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), **change})
    with pytest.raises(LoadError, match=message) as error:
        load_model(str(tmp_path), max_tokens=256)
    assert "\n" not in str(error.value)


def test_model_can_be_captured_swapped_and_audited() -> None:
    model, tokens = randomised(_model()), _tokens()
    with torch.no_grad():
        plain = model(tokens)
        with ch.capture(model) as captured:
            assert torch.equal(model(tokens), plain)
        assert [layer.name for layer in captured.layers] == [f"blocks.{i}.attention" for i in range(3)]
        assert all(heads.mask is not None and tuple(heads.q.shape) == (5, 2, 13, 11) for heads in captured.heads)
        with pytest.warns(ch.SwapWarning, match="W_Q no longer acts"), ch.swap(model, Symmetric(), layers=[1]):
            changed = model(tokens)
        assert not torch.equal(changed, plain)
        assert torch.equal(model(tokens), plain)
    record = ch.audit(_model(), [tokens, _tokens(seed=2)], theories=["symmetry"])
    assert record.fidelity.output_difference == 0
    assert {finding.layer for finding in record.findings} == {0, 1, 2}


@pytest.mark.parametrize(
    "change",
    [
        {"vocabulary": 0}, {"context": 0}, {"heads": 3}, {"dropout": 1.0}, {"output": "flat"}, {"cutoffs": (3,)},
        {"output": "adaptive"}, {**ADAPTIVE, "cutoffs": (18, 7)}, {**ADAPTIVE, "cutoffs": (7, 29)},
        {**ADAPTIVE, "cutoffs": (7.5, 18)}, {**ADAPTIVE, "tail_divisor": 5.0}, {**ADAPTIVE, "tail_divisor": 0.5},
        {"attention": (Softmax(),)},
    ],
)  # fmt: skip
def test_invalid_settings_raise_an_error(change: dict[str, Any], typechecked: bool) -> None:
    if typechecked and change.get("cutoffs") == (7.5, 18):
        pytest.skip("the annotation refuses it first")
    with pytest.raises(InputError, match="expected"):
        dataclasses.replace(CONFIG, **change)


def test_invalid_tokens_raise_an_error(typechecked: bool) -> None:
    with pytest.raises(ShapeError, match=r"expected tokens \(b, n\), n at most 17; got \(5, 19\)"):
        _model()(_tokens(19))
    if typechecked:
        pytest.skip("the import hook refuses what follows before the model can")
    with pytest.raises(ShapeError, match=r"expected targets \(5, 13\), as tokens; got \(5, 11\)"):
        _model().loss(_tokens(), _tokens(11))
    with pytest.raises(InputError, match=r"an integer dtype; got torch.float32"):
        _model()(_tokens().float())
