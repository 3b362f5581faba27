"""An audit with a loss: measurements receive gradients, and nothing else changes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture_gradients
from clearhead.audit import engine
from clearhead.audit.run import AuditError, audit
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError
from clearhead.numerics.precision import tolerance
from clearhead.theories.max_margin.claims import LOCAL
from tests.capture.models import CASES, layers, loss_of, tokens

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def _loss(output: Any, _: Any) -> Tensor:
    return loss_of(output)


def _batches(count: int = 3) -> Iterator[Tensor]:
    return (tokens(seed) for seed in range(count))


@pytest.fixture
def captured_heads(monkeypatch: pytest.MonkeyPatch) -> list[Heads]:
    """A theory that records its examples."""
    shown: list[Heads] = []
    split = engine.make_examples

    def spied(heads: Heads, *rest: Any, **options: Any) -> Any:
        shown.append(heads)
        return split(heads, *rest, **options)

    monkeypatch.setattr(engine, "make_examples", spied)
    return shown


def test_measurements_receive_the_gradients_of_every_batch(captured_heads: list[Heads]) -> None:
    model = layers(2)
    audit(model, _batches(), theories="kernel-pca", loss=_loss, claims="all")
    with capture_gradients(model) as captured:
        for batch in _batches():
            captured.differentiate(_loss(model(batch), batch))
    assert [(heads.layer, heads.name) for heads in captured_heads] == [(0, "0"), (1, "1")] * 3
    for ours, theirs in zip(captured_heads, captured.heads, strict=True):
        assert torch.equal(ours.out_gradient, theirs.out_gradient)
        assert ours.queries_from is not None
    captured_heads.clear()
    audit(model, _batches(), theories="kernel-pca")
    assert all(heads.out_gradient is None for heads in captured_heads)


@pytest.mark.parametrize("name", ["bert", "torch encoder, padded", "own vision transformer"])
def test_findings_are_the_same_to_rounding(name: str) -> None:
    case = CASES[name]
    model = _Run(case)
    plain, with_loss = (
        audit(model, [torch.zeros(3, 1)], layers=[1], loss=loss, claims="all") for loss in (None, _loss)
    )
    # One claim needs a loss to be measured at all.
    result = [finding for finding in with_loss.findings if finding.claim.statistic != LOCAL.statistic]
    assert len(plain.findings) == len(result) > 0
    assert len(with_loss.findings) > len(result)
    for ours, theirs in zip(result, plain.findings, strict=True):
        assert (ours.claim, ours.layer, ours.head, ours.inputs) == (
            theirs.claim, theirs.layer, theirs.head, theirs.inputs,
        )  # fmt: skip
        assert ours.verdict is theirs.verdict
        assert ours.value == pytest.approx(theirs.value, rel=1e-6, abs=1e3 * tolerance(torch.float64), nan_ok=True)


class _Run(nn.Module):
    """A model that ignores its arguments and uses its own inputs."""

    def __init__(self, case: Any) -> None:
        super().__init__()
        self.case, self.model = case, case.make()

    def forward(self, _: Tensor) -> Any:
        return self.case.run(self.model)


def test_the_loss_receives_the_original_batch() -> None:
    """So a batch may contain entries that the model does not accept, such as labels."""
    given = []

    def batches() -> Iterator[Tensor]:
        for number, batch in enumerate(_batches()):
            batch.labels = torch.full((3,), number)
            yield batch

    def loss(output: Tensor, batch: Tensor) -> Tensor:
        given.append(int(batch.labels[0]))
        return nn.functional.cross_entropy(output[:, 0], batch.labels)

    audit(layers(1), batches(), theories="kernel-pca", loss=loss, claims="all")
    assert given == [0, 1, 2]


def test_the_baseline_is_differentiated_too(captured_heads: list[Heads]) -> None:
    audit(layers(1), list(_batches()), theories="kernel-pca", loss=_loss, claims="all", baseline=layers(1))
    assert len(captured_heads) == 6
    assert all(heads.out_gradient is not None for heads in captured_heads)


def test_the_model_is_unchanged_afterwards() -> None:
    model = layers(2).train()
    model[0].requires_grad_(False)
    before = model(tokens())
    with torch.no_grad():
        audit(model, _batches(), theories="kernel-pca", loss=_loss, claims="all")
        assert not torch.is_grad_enabled()
    assert [part.training for part in model.modules()] == [True] * len(list(model.modules()))
    assert all(p.grad is None for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == [False] * 4 + [True] * 4
    assert torch.equal(model(tokens()), before)


def _fails(output: Tensor, batch: Tensor) -> Tensor:
    raise KeyError("labels")


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (_fails, AuditError, "loss fails .*after 0 inputs: 'labels'"),
        (lambda output: output.mean(), AuditError, "loss fails .*after 0 inputs: .*positional"),
        (lambda output, _: output.mean(-1), ValueError, "one number"),
        (lambda output, _: output.detach().mean(), ValueError, "no gradient"),
        (3, AuditError, "loss fails .*after 0 inputs: .*not callable"),
    ],
)
def test_invalid_losses_raise_an_error(loss: Any, error: type[Exception], message: str, typechecked: bool) -> None:
    if typechecked and not callable(loss):
        pytest.skip("the annotations refuse it first")
    with pytest.raises(error, match=message):
        audit(layers(1), _batches(), loss=loss, claims="all")


def test_inputs_from_inference_mode_raise_an_error() -> None:
    with torch.inference_mode():
        batches = list(_batches())
    with pytest.raises(AuditError, match="after 0 inputs: Inference tensors"):
        audit(layers(1), batches, loss=_loss, claims="all")


def test_a_layer_in_inference_mode_is_named() -> None:
    model = layers(1)
    model[0].forward = torch.inference_mode()(model[0].forward)
    with pytest.raises(AttentionNotSeenError, match=r"^0 .*inference_mode"):
        audit(model, _batches(), loss=_loss, claims="all")


def test_a_defect_of_a_theory_is_not_blamed_on_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = IndexError("a defect of ours")

    def fails(*_: object, **__: object) -> None:
        raise defect

    monkeypatch.setattr(engine, "make_examples", fails)
    with pytest.raises(IndexError) as caught:
        audit(layers(1), _batches(), theories="kernel-pca", loss=_loss, claims="all")
    assert caught.value is defect
