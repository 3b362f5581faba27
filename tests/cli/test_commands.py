"""Commands in this process, without a model: what they pass on of their options, and what they print."""

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from clearhead.audit.baseline import BASELINE_DRAWS, baseline_seeds
from clearhead.audit.options import AuditOptions, Baseline, Claims
from clearhead.cli import audit_command
from clearhead.cli.audit_command import run_audit
from clearhead.cli.console import progress_bar
from clearhead.cli.failure import CommandError
from clearhead.cli.request import AuditRequest
from clearhead.data.text import default_passages
from clearhead.loading.model import LoadedModel
from clearhead_lab.cli.reproduce_command import print_outcome, run_experiment
from clearhead_lab.experiments.experiment import Outcome

OPTIONS: dict[str, Any] = {"model": "folder", "max_tokens": 16, "batch_size": 2, "seed": 7}


class StopBeforeAuditError(Exception):
    """Ends the command where the audit would begin."""


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs the command with some options and returns the arguments of its audit."""
    arguments: dict[str, Any] = {}

    def measure(model: nn.Module, batches: Any, options: AuditOptions, **others: Any) -> None:
        arguments.update(others, options=options, batches=batches)
        raise StopBeforeAuditError

    loaded = LoadedModel(
        model=nn.Identity(),
        name="small",
        encode=lambda passages: {"passages": list(passages)},
        draw_baseline=lambda seed: seed,  # type: ignore[arg-type, return-value]
    )
    monkeypatch.setattr(audit_command, "measure_part", measure)
    monkeypatch.setattr(audit_command, "load_named_model", lambda name, max_tokens: loaded)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(**options: Any) -> dict[str, Any]:
        with pytest.raises(StopBeforeAuditError), progress_bar("") as bar:
            run_audit(AuditRequest.of(OPTIONS | options, tmp_path / "report"), bar)
        return arguments

    return run


def test_the_options_reach_the_audit_as_they_are(audited) -> None:
    given = {"claims": "all", "baseline": "none", "baseline_for": ["symmetry"], "control_inputs": 5, "device": "cpu"}
    options = audited(theories=["symmetry"], layers="0, 3-6,11", workers=2, **given)["options"]
    assert options == AuditOptions(
        theories=("symmetry",), layers=(0, 3, 4, 5, 6, 11), seed=7, claims=Claims.ALL, baseline=Baseline.NONE,
        baseline_for=("symmetry",), control_inputs=5, workers=2,
    )  # fmt: skip
    assert audited()["options"] == AuditOptions(seed=7)


def test_a_swapped_layer_is_not_measured(audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_command, "_swapped", lambda loaded, description: loaded)
    assert audited(swap="rpc:0")["options"].allow_swapped
    assert not audited()["options"].allow_swapped


@pytest.mark.parametrize("inputs", [None, 3])
def test_the_first_passages_are_read_in_batches(audited, tmp_path: Path, inputs: int | None) -> None:
    batches = [batch["passages"] for batch in audited(inputs=inputs)["batches"]]
    assert {len(batch) for batch in batches[:-1]} == {2}
    assert list(chain.from_iterable(batches)) == default_passages()[:inputs]
    text = tmp_path / "text.txt"
    text.write_text("one\ntwo\nthree\nfour\n")
    batches = [batch["passages"] for batch in audited(inputs=inputs, text=text)["batches"]]
    assert list(chain.from_iterable(batches)) == ["one", "two", "three", "four"][:inputs]


def test_every_model_of_the_baseline_has_another_seed() -> None:
    assert baseline_seeds(7) == list(range(7, 7 + BASELINE_DRAWS))


def test_an_outcome_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome("x", Outcome(headline="won\x1b[2J\n", remarks=("a\x07b",), files=(Path("c\x1bd"),)))
    assert capsys.readouterr().out == "a?b\nx: won?[2J \nc?d\n"


def test_options_that_an_experiment_does_not_take_are_refused(tmp_path: Path) -> None:
    options = {"data": None, "epochs": 2, "fetch": True, "seeds": None}
    message = "--fetch.*--epochs, --seed and --out"
    with pytest.raises(CommandError, match=message), progress_bar("") as bar:
        run_experiment("vit/digits", out=tmp_path, seed=0, options=options, bar=bar)
    assert list(tmp_path.iterdir()) == []
