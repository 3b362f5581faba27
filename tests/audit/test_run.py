"""The audit in Python: from a model and batches to a record."""

import copy
import dataclasses
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.audit import engine, passes
from clearhead.audit.baseline import BASELINE
from clearhead.audit.findings import NoEvidence, Verdict
from clearhead.audit.passes import first_inputs
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import AuditError, audit
from clearhead.interfaces import AttentionNotSeenError
from clearhead.loading.model import baseline_draw
from clearhead.operators.kernel_pca import kernel_pca as keys_axes
from clearhead.report.folder import write_report
from clearhead.theories import attention_sinks, coding_rate, kernel_pca, max_margin
from clearhead.theories.kernel_pca.measurement import KERNEL
from clearhead.theories.theory import Role
from tests.interfaces.zoo import FAMILIES, with_large_weights

TOKENS, WIDTH, HEADS = 29, 12, 3

CLAIMS = (
    len(kernel_pca.CLAIMS)
    + len(max_margin.CLAIMS)
    - 1
    + len(coding_rate.HEAD_CLAIMS + coding_rate.MAP_CLAIMS)
    + 1
    + len(attention_sinks.THEORY.claims)
)
"""Number of claims on each head, without that of max margin which needs a loss."""


class Projecting(nn.Module):
    """Two layers of three heads. In the second layer, head 1 uses the theorem's values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            q, k, v = (part.reshape(len(x), -1, HEADS, 4).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            if number:
                v = v.clone()
                v[:, 1] = keys_axes(k[:, 1], scale=0.5, axes=4).values
            x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x


def _batches(count: int = 3, size: int = 4) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(size, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    return audit(with_large_weights(Projecting()).double(), _batches(), claims="all", name="planted", data="noise")


def test_every_head_has_a_finding_and_the_planted_one_is_found(record: AuditRecord) -> None:
    places = [(layer, head) for layer in (0, 1) for head in range(3)]
    expected = (("kernel PCA", Verdict.SUPPORTED, [(1, 1)]), ("symmetry", Verdict.TRUE_BY_CONSTRUCTION, places))
    for theory, verdict, at in expected:
        primary = [f for f in record.findings if f.claim.theory == theory and f.claim.role is Role.PRIMARY]
        result = {(f.layer, f.head): f.verdict for f in primary}
        assert list(result) == places
        assert [place for place, given in result.items() if given is verdict] == at
    assert len(record.findings) == CLAIMS * len(places) + 2 * len(coding_rate.LAYER_CLAIMS)
    assert [dispute.theory for dispute in record.disputes] == ["kernel PCA"]


def test_the_record_holds_the_settings_of_the_audit(record: AuditRecord) -> None:
    assert (record.model, record.data, record.inputs, record.seed) == ("planted", "noise", 12, 0)
    assert record.tokens == 12 * TOKENS
    assert [layer.heads for layer in record.fidelity.layers] == [3, 3]
    assert record.fidelity.output_difference == 0
    assert record.timing.total >= record.timing.forward > 0
    assert set(record.timing.theory) == {"kernel PCA", "max margin", "coding rate", "symmetry", "attention sinks"}
    assert record.timing.peak_memory > 10**7


def test_the_same_seed_gives_the_same_findings(record: AuditRecord) -> None:
    model = with_large_weights(Projecting()).double()
    # Not by ==, because NaN differs from itself.
    assert repr(audit(model, _batches(), claims="all").findings) == repr(record.findings)
    assert repr(audit(model, _batches(), claims="all", seed=1).findings) != repr(record.findings)


def test_only_the_selected_layers_are_measured(record: AuditRecord) -> None:
    model = with_large_weights(Projecting()).double()
    some = audit(model, _batches(), claims="all", layers={1})
    assert repr([f.value for f in some.findings]) == repr([f.value for f in record.findings if f.layer == 1])
    with pytest.raises(AuditError, match=r"layer 7.* 0 to 1"):
        audit(model, _batches(), layers={1, 7})


def test_batches_are_read_one_at_a_time_and_released() -> None:
    alive: list[int] = []

    class Counted(torch.Tensor):
        pass

    def batches() -> Iterator[Tensor]:
        for batch in _batches(6, size=2):
            gc.collect()
            alive.append(sum(isinstance(x, Counted) for x in gc.get_objects()))
            yield batch.as_subclass(Counted)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Projecting()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.as_subclass(torch.Tensor))

    gc.collect()
    gc.freeze()  # earlier objects are not searched
    try:
        audit(with_large_weights(Plain()).double(), batches())
    finally:
        gc.unfreeze()
    assert len(alive) == 6
    assert alive[5] <= alive[1] + 1, "batches pile up"


def test_the_baseline_is_one_more_control(record: AuditRecord) -> None:
    model, untrained = with_large_weights(Projecting()).double(), Projecting().double()
    compared = audit(model, list(_batches()), claims="all", baseline=untrained)
    alone = audit(untrained, list(_batches()), claims="all")
    assert untrained.training
    for plain, finding, before in zip(record.findings, compared.findings, alone.findings, strict=True):
        if plain.verdict is Verdict.TRUE_BY_CONSTRUCTION:
            assert repr(finding.controls) == repr(plain.controls)
            continue
        if not (plain.inputs and before.inputs):
            assert repr(finding.controls) == repr(plain.controls)
            continue
        *others, last = finding.controls
        assert repr(tuple(others)) == repr(plain.controls)
        assert (last.name, last.draws) == (f"the same {finding.claim.unit} before training", 1)
        assert last.value == pytest.approx(before.value, rel=1e-9, nan_ok=True)
        assert repr(finding.value) == repr(plain.value)
    planted = next(f for f in compared.findings if f.claim is kernel_pca.CAPTURED and (f.layer, f.head) == (1, 1))
    # The baseline has the planted head too; it is shown and does not decide.
    assert planted.value == pytest.approx(planted.controls[-1].value)
    assert planted.verdict is Verdict.SUPPORTED
    assert [f.verdict for f in compared.findings] == [f.verdict for f in record.findings]
    with pytest.raises(AuditError, match="a list"):
        audit(model, _batches(), baseline=untrained)

    class Once:
        left = _batches()

        def __iter__(self) -> Iterator[Tensor]:
            return iter(self.left)

    with pytest.raises(AuditError, match="same inputs"):
        audit(model, Once(), baseline=untrained, theories="symmetry")


def test_the_baseline_is_measured_without_dropout() -> None:
    class Dropping(Projecting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(functional.dropout(x, 0.5, self.training))

    baseline, batches = Dropping().double(), list(_batches(1))
    options: dict[str, Any] = {"theories": "kernel-pca", "layers": {0}}
    compared = audit(with_large_weights(Dropping()).double(), batches, baseline=baseline, **options)
    alone = audit(baseline, batches, **options)
    values = [(f.controls[-1].value, before.value) for f, before in zip(compared.findings, alone.findings, strict=True)]
    assert values
    assert all(value == pytest.approx(before, rel=1e-9, nan_ok=True) for value, before in values)


def test_training_mode_and_gradients_are_restored() -> None:
    model = with_large_weights(Projecting()).double()
    model.train()
    model.layers[0].eval()
    audit(model, _batches(1))
    assert [model.training, model.layers[0].training, model.layers[1].training] == [True, False, True]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_mappings_and_tuples_are_batches_too(record: AuditRecord) -> None:
    model = with_large_weights(Projecting()).double()
    expected = repr(tuple(f for f in record.findings if f.claim.theory == "symmetry"))
    for batches in (({"x": x} for x in _batches()), ((x,) for x in _batches())):
        assert repr(audit(model, batches, theories="symmetry").findings) == expected


def test_text_models_count_their_tokens() -> None:
    family = FAMILIES["bert"]
    inputs = family.inputs()
    # Heads of width 6 need more than 6 tokens: of the three passages, of 9, 5 and 13 tokens, two are usable.
    record = audit(family.make(), [inputs, inputs])
    assert (record.inputs, record.tokens) == (6, 2 * 27)
    assert {(f.claim.theory, f.inputs, f.skipped) for f in record.findings} == {
        ("kernel PCA", 4, 2),
        # Six inputs make one group, and the first group has no held-out group.
        ("max margin", 1, 0),
        ("max margin", 0, 1),
        ("coding rate", 6, 0),
        ("symmetry", 6, 0),
        ("attention sinks", 6, 0),
    }


class _Padded(nn.Module):
    """One head on tensors; `lengths` is the number of tokens that are not padding."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = (torch.arange(x.shape[-2]) < lengths[:, None])[:, None, None]
        return functional.scaled_dot_product_attention(*3 * (x[:, None],), attn_mask=mask)[:, 0]


def test_tensors_count_the_tokens_that_attention_sees() -> None:
    batches = [(x, torch.tensor([TOKENS, 17, 11, 7])) for x in _batches(2)]
    for layers in ([0], None):
        record = audit(_Padded(), batches, theories="attention-sinks", layers=layers)
        assert (record.inputs, record.tokens) == (8, 2 * (TOKENS + 17 + 11 + 7))


def test_a_model_that_the_theory_does_not_cover_gets_a_table_and_no_error() -> None:
    family = FAMILIES["mpnet"]
    record = audit(family.make(), [family.inputs()], theories=["kernel-pca"], claims="all")
    skipped, instead = (
        [f for f in record.findings if (f.claim is KERNEL) is measured_instead] for measured_instead in (False, True)
    )
    assert {f.verdict for f in skipped} == {Verdict.NOT_APPLICABLE}
    assert len(skipped) == 12 * len(kernel_pca.CLAIMS)
    assert len(instead) == 12
    assert Verdict.NOT_APPLICABLE not in {f.verdict for f in instead}


def test_a_relative_position_bias_shows_as_a_broken_symmetry() -> None:
    errors = {}
    for name in ("mpnet", "bert"):
        family = FAMILIES[name]
        record = audit(family.make(), [family.inputs()], theories=["symmetry"])
        errors[name] = [f.value for f in record.findings]
    assert min(errors["mpnet"]) > 1e-3
    assert max(errors["bert"]) < 1e-14


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 7, batch_first=True)


def _short() -> Any:
    return [torch.randn(4, 4, WIDTH, dtype=torch.float64)]


@pytest.mark.parametrize(
    ("make", "batches", "error", "message"),
    [
        (Projecting, list, AuditError, "no batch"),
        (_encoder, _short, AuditError, "too short .*4 tokens"),
        (lambda: nn.Linear(WIDTH, 2), _batches, AttentionNotSeenError, "no attention layers"),
    ],
)
def test_models_that_cannot_be_audited_raise_an_error(
    make: Any, batches: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        audit(make().double(), batches(), theories=("kernel-pca", "symmetry"))


def test_non_finite_weights_raise_an_error() -> None:
    model = _encoder().double()
    with torch.no_grad():
        model.self_attn.in_proj_weight[0, 0] = torch.nan
    with pytest.raises(AttentionNotSeenError, match="not finite"):
        audit(model, _batches())


def test_inputs_of_one_token() -> None:
    family = FAMILIES["bert"]
    with pytest.raises(AuditError, match="one token"):
        audit(family.make(), [{"input_ids": torch.tensor([[7]])}])


def test_invalid_settings_raise_an_error() -> None:
    model = with_large_weights(Projecting()).double()
    with pytest.raises(AuditError, match="layers is empty"):
        audit(model, _batches(), layers=[])
    for seed in (-1, 2**63):
        with pytest.raises(AuditError, match=f"seed .*{2**63 - 1}, not {seed}"):
            audit(model, _batches(), seed=seed)
    assert audit(model, _batches(1), seed=2**63 - 1).seed == 2**63 - 1


def test_one_theory_may_be_named_without_a_list() -> None:
    record = audit(with_large_weights(Projecting()).double(), _batches(1), theories="kernel-pca")
    assert {finding.claim.theory for finding in record.findings} == {"kernel PCA"}


def test_an_error_on_a_later_batch_names_the_batch() -> None:
    model = with_large_weights(Projecting()).double()
    batches = [*_batches(2), torch.ones(4, TOKENS, WIDTH + 1, dtype=torch.float64)]
    with pytest.raises(AuditError, match=r"model fails .*after 8 inputs"):
        audit(model, batches, theories="symmetry")


def test_an_error_on_a_single_input_names_the_input() -> None:
    class NeedsCompany(Projecting):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                raise KeyError("company")
            return super().forward(x)

    with pytest.raises(AuditError, match="alone: 'company'"):
        audit(with_large_weights(NeedsCompany()).double(), _batches())


class Swallowing(Projecting):
    """A model that catches all exceptions of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except Exception:
            return x


class Wrapping(Projecting):
    """A model that rephrases all errors."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except Exception as error:
            raise RuntimeError("something in the model") from error


@pytest.mark.parametrize("make", [Projecting, Swallowing, Wrapping])
def test_a_defect_of_a_theory_is_not_blamed_on_the_model(
    make: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = IndexError("a defect of ours")

    def fails(*_: object, **__: object) -> None:
        raise defect

    monkeypatch.setattr(engine, "make_examples", fails)
    with pytest.raises(IndexError) as caught:
        audit(with_large_weights(make()).double(), _batches(), theories=["kernel-pca"])
    assert caught.value is defect


def test_a_layer_that_runs_only_on_later_batches_raises_an_error() -> None:
    class Skips(Projecting):
        def forward(self, x: Tensor) -> Tensor:
            x = x + functional.scaled_dot_product_attention(x, x, x)
            return super().forward(x) if x.shape[1] > 20 else x

    batches = list(_batches())
    model = with_large_weights(Skips()).double()
    assert len(audit(model, batches, theories="symmetry").findings) == 1 + HEADS + HEADS
    with pytest.raises(AttentionNotSeenError, match="later batch"):
        audit(model, [batches[0][:, :13], *batches], theories="symmetry")


@pytest.fixture(scope="module")
def encoder_pair() -> tuple[nn.Module, nn.Module]:
    """Return a tiny BERT with large weights, and the same with initial weights."""
    family = FAMILIES["bert"]
    return with_large_weights(family.make()), family.make()


def test_a_theory_that_needs_the_baseline_has_it_among_its_controls(encoder_pair: Any) -> None:
    model, untrained = encoder_pair
    batches = [FAMILIES["bert"].inputs()] * 2
    options: dict[str, Any] = {"theories": ("coding-rate", "symmetry"), "claims": "all"}
    alone = audit(model, batches, baseline=None, **options)
    compared = audit(model, batches, baseline=iter([untrained] * 2), baseline_for="coding-rate", **options)
    one = audit(model, batches, baseline=untrained, baseline_for=["coding-rate"], **options)
    nobody = audit(model, batches, baseline=untrained, baseline_for=[], **options)
    itself = audit(untrained, batches, baseline=None, theories="coding-rate", claims="all")
    assert (
        alone.notes == nobody.notes == ("coding rate: undecided without a baseline; an untrained model may do as well",)
    )
    assert not compared.notes
    assert one.notes == ("coding rate: one baseline model is shown and does not decide; give several",)
    for record in (alone, one, nobody):
        measured = [f for f in record.findings if f.claim.theory == "coding rate" and f.inputs]
        verdicts = {f.verdict for f in measured if f.no_evidence is not NoEvidence.EQUAL}
        assert verdicts <= {Verdict.UNDECIDED, Verdict.NOT_APPLICABLE}
    assert not all(f.verdict is Verdict.UNDECIDED for f in compared.findings)
    assert not any(c.decisive for f in one.findings for c in f.controls if c.name == BASELINE)
    for finding in compared.findings:
        named = {control.name.replace("layer", "head"): control.decisive for control in finding.controls}
        assert named.get(BASELINE) is (True if finding.claim.theory == "coding rate" else None)
    assert not any(c.name == BASELINE for f in (*alone.findings, *nobody.findings) for c in f.controls)
    assert len(compared.curves) == 4
    for curve, plain, start in zip(compared.curves, alone.curves, itself.curves, strict=True):
        assert curve.lines[1].name == "the same model before training"
        assert curve.lines[1].values == pytest.approx(start.lines[0].values)
        assert (curve.lines[0], *curve.lines[2:]) == plain.lines


def test_a_baseline_without_finite_values_raises_an_error(encoder_pair: Any) -> None:
    model, untrained = encoder_pair
    broken = copy.deepcopy(untrained)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    with pytest.raises(AuditError, match=r"baseline .*coding rate at layer 0"):
        audit(model, [FAMILIES["bert"].inputs()] * 2, theories="coding-rate", baseline=broken)


def test_a_baseline_for_all_theories_can_be_reported(encoder_pair: Any, tmp_path: Path) -> None:
    """Saturated heads have claims that the baseline's heads do not have."""
    model, untrained = copy.deepcopy(encoder_pair[0]), encoder_pair[1]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(10)
    record = audit(model, [FAMILIES["bert"].inputs()] * 4, claims="all", baseline=untrained)
    nuclear = [f for f in record.findings if f.claim.statistic == "cosine, nuclear" and f.inputs]
    assert nuclear
    assert all(control.decisive for f in nuclear for control in f.controls), "the untrained head has no such number"
    written = write_report(record, tmp_path)
    stored = json.loads(written.findings.read_text())
    assert all(f["closest_control"] is None or f["closest_control"] in f["controls"] for f in stored["findings"])


def test_a_finding_with_only_the_baseline_as_control_can_be_reported(encoder_pair: Any, tmp_path: Path) -> None:
    record = audit(encoder_pair[0], [FAMILIES["bert"].inputs()], baseline=encoder_pair[1], theories="kernel-pca")
    alone = [dataclasses.replace(f, controls=f.controls[-1:]) for f in record.findings]
    assert not any(control.decisive for f in alone for control in f.controls)
    written = write_report(dataclasses.replace(record, findings=tuple(alone)), tmp_path)
    assert {f["closest_control"] for f in json.loads(written.findings.read_text())["findings"]} == {None}


class Collapsing(nn.Module):
    """Three layers without a residual connection, whose saturated heads give nearly equal vectors for all tokens."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(3))
        with torch.no_grad():
            for query, key, *_ in self.layers:
                query.weight *= 10
                key.weight *= 10

    def forward(self, x: Tensor) -> Tensor:
        for query, key, value, output in self.layers:
            q, k, v = (made(x).unflatten(-1, (2, -1)).transpose(1, 2) for made in (query, key, value))
            x = output(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


@pytest.mark.parametrize(("width", "dtype"), [(8, torch.float64), (4, torch.float32)])
def test_saturated_heads_whose_tokens_collapse_are_measured(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(6, 17, width, generator=generator).to(dtype) for _ in range(2)]
    record = audit(Collapsing(width, 0).to(dtype), batches, theories="max-margin")
    first = [f for f in record.findings if f.layer == 0]
    spans = [f.value for f in first if f.claim.statistic == "cosine in the span"]
    assert all(0 < value <= 1 for value in spans)
    saturated = [f for f in record.findings if f.claim.statistic == "saturated queries"]
    assert all(f.inputs == 2 for f in saturated), "saturation is measured whether or not a problem can be solved"


def test_only_theories_that_need_the_stream_have_it_captured(
    encoder_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    whole = passes.capture

    def noted(*args: Any, residual_stream: bool = False, **kwargs: Any) -> Any:
        asked.append(residual_stream)
        return whole(*args, residual_stream=residual_stream, **kwargs)

    monkeypatch.setattr(passes, "capture", noted)
    for theory in ("kernel-pca", "coding-rate"):
        audit(encoder_pair[0], [FAMILIES["bert"].inputs()], baseline=None, theories=theory)
    assert asked == [False, True]


def test_the_baseline_is_drawn_where_a_theory_needs_it(encoder_pair: Any) -> None:
    """Five models by the seeds after the audit's own, as the command line draws them, and only for that theory."""
    model, batches = encoder_pair[0], [FAMILIES["bert"].inputs()] * 2
    record = audit(model, batches, theories=("coding-rate", "symmetry"), seed=3)
    draw = baseline_draw(model, "bert")
    assert draw is not None
    given = audit(
        model, batches, theories=("coding-rate", "symmetry"), seed=3, baseline=[draw(seed) for seed in range(3, 8)],
        baseline_for="coding-rate",
    )  # fmt: skip
    assert repr(record.findings) == repr(given.findings)
    assert record.manifest is not None
    assert (
        record.manifest.seeds["baseline"] == record.manifest.seeds["baseline with the trained norms"] == [3, 4, 5, 6, 7]
    )
    assert given.manifest is not None
    assert given.manifest.seeds == {"controls": 3}
    assert {c.draws for f in record.findings for c in f.controls if c.name == BASELINE} == {5}


def test_what_has_no_baseline_is_undecided(encoder_pair: Any) -> None:
    batches = [FAMILIES["bert"].inputs()] * 2
    wrapped = nn.Sequential()
    wrapped.forward = encoder_pair[0].forward  # a model that is not of transformers
    wrapped.add_module("inner", encoder_pair[0])
    for record in (
        audit(encoder_pair[0], iter(batches), theories="coding-rate"),
        audit(wrapped, batches, theories="coding-rate"),
    ):
        assert {f.verdict for f in record.findings if f.inputs} <= {Verdict.UNDECIDED, Verdict.NOT_APPLICABLE}
    with pytest.raises(AuditError, match="random weights for Sequential"):
        audit(wrapped, batches, theories="coding-rate", baseline="all")
    with pytest.raises(AuditError, match='"auto", "all", None'):
        audit(encoder_pair[0], batches, theories="coding-rate", baseline="some")  # type: ignore[arg-type]


def test_unknown_theories_are_not_compared(encoder_pair: Any) -> None:
    with pytest.raises(ValueError, match="magic"):
        audit(encoder_pair[0], [FAMILIES["bert"].inputs()], baseline=encoder_pair[1], baseline_for=["magic"])


def test_the_check_runs_on_the_first_inputs_of_a_batch() -> None:
    rows = {"input_ids": torch.arange(21).view(7, 3), "labels": torch.arange(7), "use_cache": False}
    few = first_inputs(rows, 4)
    assert (few["input_ids"].shape, few["labels"].tolist(), few["use_cache"]) == ((4, 3), [0, 1, 2, 3], False)
    assert first_inputs(rows, 7) is rows
    assert first_inputs(torch.zeros(5, 3), 2).shape == (2, 3)
    assert [x.shape for x in first_inputs((torch.zeros(5, 3), torch.zeros(5, 4)), 2)] == [(2, 3), (2, 4)]


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.zeros(5, 3), "y": torch.zeros(6, 3)},
        {"x": torch.zeros(5, 5), "positions": torch.zeros(5)},
        {"x": torch.zeros(5, 3), "scale": torch.tensor(2.0)},
        [torch.zeros(5, 3), torch.zeros(1, 5, 3)],
        {"text": ["a", "b", "c", "d", "e"]},
    ],
)
def test_a_batch_with_other_tensors_than_rows_of_inputs_is_checked_whole(batch: Any) -> None:
    assert first_inputs(batch, 2) is batch
