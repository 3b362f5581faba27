"""The whole corridor in Python: model and batches in, a record out."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.auditing import AuditError, audit
from clearhead.findings import Verdict
from clearhead.record import AuditRecord
from clearhead.sockets import AttentionNotSeenError
from clearhead.theories.kernel_pca import theorem_values
from tests.sockets.zoo import FAMILIES, drawn_large

TOKENS, WIDTH, HEADS = 29, 12, 3


class Projecting(nn.Module):
    """Two layers of three heads. In the second layer, head 1 takes the values of the theorem instead of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            q, k, v = (part.reshape(len(x), -1, HEADS, 4).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            if number:
                v = v.clone()
                v[:, 1] = theorem_values(k[:, 1], scale=0.5, axes=4)
            x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x


def _batches(count: int = 3, size: int = 4) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(size, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    return audit(drawn_large(Projecting()).double(), _batches(), name="planted", data="noise")


def test_every_head_has_a_finding_and_the_planted_one_is_found(record: AuditRecord) -> None:
    assert [(f.layer, f.head) for f in record.findings] == [(layer, head) for layer in (0, 1) for head in range(3)]
    verdicts = {(f.layer, f.head): f.verdict for f in record.findings}
    assert [place for place, verdict in verdicts.items() if verdict is Verdict.SUPPORTED] == [(1, 1)]


def test_the_record_tells_what_was_done(record: AuditRecord) -> None:
    assert (record.model, record.data, record.inputs, record.seed) == ("planted", "noise", 12, 0)
    assert [layer.heads for layer in record.fidelity.layers] == [3, 3]
    assert record.fidelity.output_difference == 0
    assert record.timing.total >= record.timing.forward > 0
    assert set(record.timing.theory) == {"kernel PCA"}
    assert record.timing.peak_memory > 10**7


def test_the_same_seed_gives_the_same_findings(record: AuditRecord) -> None:
    model = drawn_large(Projecting()).double()
    assert audit(model, _batches()).findings == record.findings
    assert audit(model, _batches(), seed=1).findings != record.findings


def test_only_the_layers_asked_for(record: AuditRecord) -> None:
    model = drawn_large(Projecting()).double()
    some = audit(model, _batches(), layers={1})
    assert [f.value for f in some.findings] == [f.value for f in record.findings if f.layer == 1]
    with pytest.raises(AuditError, match="there is no layer 7; the model has layers 0 to 1"):
        audit(model, _batches(), layers={1, 7})


def test_batches_are_taken_one_at_a_time_and_not_kept() -> None:
    alive: list[int] = []

    class Counted(torch.Tensor):
        pass

    def batches() -> Iterator[Tensor]:
        import gc

        for batch in _batches(6):
            gc.collect()
            alive.append(sum(isinstance(x, Counted) for x in gc.get_objects()))
            yield batch.as_subclass(Counted)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Projecting()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.as_subclass(torch.Tensor))

    audit(drawn_large(Plain()).double(), batches())
    assert len(alive) == 6
    assert alive[5] <= alive[1] + 1, "batches pile up"


def test_modes_and_gradients_come_back_as_they_were() -> None:
    model = drawn_large(Projecting()).double()
    model.train()
    model.layers[0].eval()
    audit(model, _batches())
    assert [model.training, model.layers[0].training, model.layers[1].training] == [True, False, True]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_mappings_and_tuples_are_batches_too(record: AuditRecord) -> None:
    model = drawn_large(Projecting()).double()
    assert audit(model, ({"x": x} for x in _batches())).findings == record.findings
    assert audit(model, ((x,) for x in _batches())).findings == record.findings


def test_text_models_count_their_tokens() -> None:
    family = FAMILIES["bert"]
    inputs = family.inputs()
    # Heads of 6 values need more than 6 tokens: of the three passages, of 9, 5 and 13, two serve.
    record = audit(family.make(), [inputs, inputs])
    assert (record.inputs, record.tokens) == (6, 2 * 27)
    assert {(f.inputs, f.skipped) for f in record.findings} == {(4, 2)}


def test_a_model_the_theory_does_not_speak_of_gets_a_table_not_an_error() -> None:
    family = FAMILIES["mpnet"]
    record = audit(family.make(), [family.inputs()])
    assert {f.verdict for f in record.findings} == {Verdict.NOT_APPLICABLE}
    assert len(record.findings) == 12


def _short() -> Any:
    return [torch.randn(4, 4, WIDTH, dtype=torch.float64)]


@pytest.mark.parametrize(
    ("make", "batches", "error", "message"),
    [
        (Projecting, list, AuditError, "no batch was given"),
        (Projecting, _short, AuditError, "every input is too short .*at most 4 tokens.*give longer inputs"),
        (lambda: nn.Linear(WIDTH, 2), _batches, AttentionNotSeenError, "has no attention that could be seen"),
    ],
)
def test_what_cannot_be_audited(make: Any, batches: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        audit(make().double(), batches())


def test_weights_that_are_not_finite() -> None:
    model = drawn_large(Projecting()).double()
    with torch.no_grad():
        model.layers[0].weight[0, 0] = torch.nan
    with pytest.raises(AttentionNotSeenError, match="not finite; its weights may hold NaN"):
        audit(model, _batches())


def test_one_token() -> None:
    family = FAMILIES["bert"]
    with pytest.raises(AuditError, match="one token attends to itself"):
        audit(family.make(), [{"input_ids": torch.tensor([[7]])}])
