"""The options of an audit: one value, made of arguments, of a command and of a manifest."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.audit.options import AuditOptions, Baseline, Claims
from clearhead.audit.run import audit, options_and_baseline
from clearhead.audit.shards import audit_shard
from clearhead.cli.request import AuditRequest
from clearhead.errors import AuditError, InputError
from clearhead.interfaces import AttentionSpec
from tests.audit.small_models import MODELS, subject

SPEC = AttentionSpec(module="x.Y", q="q", k="k", v="v")


def loss(output: Any, batch: Any) -> torch.Tensor:
    value: torch.Tensor = output.sum()
    return value


def test_arguments_may_have_the_forms_of_python_and_of_a_command() -> None:
    written = AuditOptions(
        theories=("symmetry",), claims=Claims.ALL, layers=(0, 2, 3), describe=(SPEC,), baseline=Baseline.NONE,
        baseline_for=("symmetry",), device="cpu", workers=3,
    )  # fmt: skip
    common: dict[str, Any] = {"claims": "all", "describe": [SPEC], "baseline": "none", "workers": 3}
    python = {"theories": "symmetry", "layers": {3, 0, 2}, "baseline_for": "symmetry", "device": torch.device("cpu")}
    command = {"theories": ["symmetry"], "layers": "0,2-3", "baseline_for": ["symmetry"], "device": "cpu"}
    assert AuditOptions.of({**common, **python}) == AuditOptions.of({**common, **command}) == written
    assert AuditOptions.of({}) == AuditOptions()


def test_a_baseline_is_a_choice_or_models() -> None:
    model = nn.Linear(2, 3)
    assert options_and_baseline({"baseline": "all"}) == (AuditOptions(baseline=Baseline.ALL), None)
    for given, models in ((model, [model]), ([model, model], [model, model]), (None, None)):
        assert options_and_baseline({"baseline": given, "seed": 3}) == (
            AuditOptions(baseline=Baseline.NONE, seed=3), models
        )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"layers": []}, AuditError, "layers is empty"),
        ({"layers": "3-1"}, InputError, "give 1-3"),
        ({"claims": "some"}, AuditError, "some"),
        ({"baseline": 3}, AuditError, "3"),
        ({"seed": -1}, AuditError, "-1"),
        ({"control_inputs": -1}, AuditError, "-1"),
        ({"thories": "symmetry"}, TypeError, "thories"),
    ],
)
def test_options_are_checked_when_they_are_made(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AuditOptions.of(values)


def test_a_manifest_holds_every_option_and_gives_it_back() -> None:
    options = AuditOptions(
        theories=("symmetry", "max-margin"), claims=Claims.ALL, layers=(0, 3), seed=5, describe=Path("a.toml"),
        allow_unseen=True, allow_swapped=True, baseline=Baseline.ALL, baseline_for=("symmetry",), loss="module:loss",
        control_inputs=7, device="cuda", workers=None,
    )  # fmt: skip
    defaults = AuditOptions()
    assert all(getattr(options, name) != getattr(defaults, name) for name in AuditOptions.__slots__)
    stored = json.loads(json.dumps(options.to_dict()))
    assert AuditOptions.from_dict(stored) == options.changed({"describe": Path("a.toml").absolute()})
    assert AuditOptions.from_dict(json.loads(json.dumps(defaults.to_dict()))) == defaults
    with pytest.raises(InputError, match="seed"):
        AuditOptions.from_dict({name: value for name, value in stored.items() if name != "seed"})


def test_what_only_python_can_give_is_told_by_the_manifest() -> None:
    stored = AuditOptions(claims=Claims.ALL, describe=(SPEC,), loss=loss).to_dict()
    assert stored["loss"] == f"{__name__}:loss"
    assert "x.Y" in stored["describe"]
    assert stored["describe"] != AuditOptions(describe=(SPEC, SPEC)).to_dict()["describe"]


def test_an_audit_from_python_stores_its_options() -> None:
    small = subject(next(iter(MODELS)))
    record = audit(small.model, small.batches, theories="coding-rate", layers=[0], baseline=small.draws, seed=3)
    assert record.manifest is not None
    options = record.manifest.options
    assert (options["theories"], options["layers"], options["seed"]) == (["coding-rate"], "0", 3)
    assert (options["baseline"], options["baseline_for"]) == ("none", ["coding-rate"])
    everything = audit(small.model, small.batches, theories="symmetry", layers=[0])
    assert everything.manifest is not None
    assert everything.manifest.options["baseline_for"] == []


@pytest.mark.parametrize("function", [ch.audit, audit, audit_shard])
def test_python_shows_every_option_with_its_default_and_its_help(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters)[:2] == ["model", "batches"]
    assert parameters["control_inputs"].default == 24
    assert parameters["workers"].default == 1
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    told = inspect.getdoc(audit if function is ch.audit else function) or ""
    assert all(f"\n{name}: " in told or f"\n    {name}: " in told for name in AuditOptions.__slots__)


def test_a_request_is_of_inputs_and_options() -> None:
    request = AuditRequest.of({"model": "m", "text": Path("t"), "seed": 3, "claims": Claims.ALL}, Path("out"))
    assert (request["model"], request["text"], request["seed"]) == ("m", Path("t"), 3)
    assert request.options == AuditOptions(seed=3, claims=Claims.ALL)
    other = request.with_values({"model": "n", "seed": 4})
    assert (other["model"], other["seed"], other["claims"], other.out) == ("n", 4, Claims.ALL, Path("out"))
