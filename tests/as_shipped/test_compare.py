"""`clearhead compare`: reports, models, a model with a report, and before and after a swap."""

import json
import warnings
from pathlib import Path
from types import ModuleType

import torch

import clearhead
from clearhead.audit.run import audit
from clearhead.report.folder import write_report
from tests.as_shipped.conftest import HEADS, WIDTH, Attending, Run, batches

OPTIONS = ("--batches", "small_models:batches", "--theory", "attention-sinks")


class SelfAttending(torch.nn.Module):
    """Two layers of torch's own attention, in which operators can be swapped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the output of each layer to the tokens."""
        for layer in (self.first, self.second):
            x = x + layer(x, x, x, need_weights=False)[0]
        return x


def changed() -> Attending:
    """Return the small model with the keys of layer 1, head 2 enlarged."""
    model = Attending()
    model.maps[1].weight.data[WIDTH + 8 : WIDTH + 12] *= 4
    return model


def test_two_models_are_audited_on_the_same_inputs(command: Run, small: ModuleType, tmp_path: Path) -> None:
    small.changed = changed
    done = command("compare", "small_models:model", "small_models:changed", *OPTIONS)
    assert done.code == 0, done.err
    assert "The differences begin in layer 1, head 2." in " ".join(done.out.split())
    paths = ["report    clearhead-comparison/index.html", "numbers   clearhead-comparison/comparison.json"]
    assert done.out.splitlines()[-2:] == paths
    folder = tmp_path / "clearhead-comparison"
    assert {path.name for path in folder.iterdir()} == {"a", "b", "index.html", "comparison.json"}
    stored = json.loads((folder / "comparison.json").read_text())
    again = command("compare", "clearhead-comparison/a", "clearhead-comparison/b/findings.json", "--json", "--out", "c")
    assert json.loads(again.out) == stored
    like = command("compare", "clearhead-comparison/a", "small_models:changed", *OPTIONS[:2], "--json", "--out", "d")
    assert json.loads(like.out) == stored
    assert {d["theory"] for d in stored["differences"]} == {"attention sinks"}


def test_a_model_and_itself_do_not_differ(command: Run) -> None:
    done = command("compare", "small_models:model", "small_models:model", *OPTIONS)
    assert done.code == 0, done.err
    assert "No head differs: all values of 6 heads are identical to the last bit." in " ".join(done.out.split())


def test_before_and_after_a_swap(command: Run, small: ModuleType, tmp_path: Path) -> None:
    small.model = SelfAttending
    done = command("compare", "small_models:model", "--swap", "symmetric:0", "--json", *OPTIONS)
    assert done.code == 0, done.err
    values = json.loads(done.out)
    assert values["b"] == "small_models:model with symmetric:0"
    assert {d["layer"] for d in values["differences"]} == {1}
    assert values["notes"][0].startswith("B (small_models:model with symmetric:0) has Symmetric() at first")
    model = SelfAttending()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", clearhead.SwapWarning)
        clearhead.swap(model, "symmetric", layers=[0])
    clearhead.save_swaps(model, tmp_path / "saved")
    models = ("clearhead-comparison/a", "small_models:model", *OPTIONS[:2])
    saved = command("compare", *models, "--swap", "saved", "--json", "--out", "c")
    assert saved.code == 0, saved.err
    assert json.loads(saved.out)["differences"] == values["differences"]


def test_what_cannot_be_compared_is_refused_in_one_line(command: Run, small: ModuleType, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = command("compare", *arguments)
        assert (done.code, done.out) == (2, "")
        return done.err.splitlines()[-1]

    assert "give two reports or models to compare, or one model and --swap" in refused("small_models:model")
    assert "there is no model folder 'nowhere'" in refused("nowhere", "small_models:model", *OPTIONS)
    write_report(audit(Attending(), batches(), theories=["attention-sinks"]), tmp_path / "python")
    assert "--swap needs a model" in refused("small_models:model", "python", "--swap", "rpc:0")
    assert "of an audit from Python, so its inputs are not known" in refused("python", "small_models:model")
    write_report(audit(Attending(), batches(3), theories=["attention-sinks"]), tmp_path / "other")
    assert "the audits are on different inputs" in refused("python", "other")
    (tmp_path / "other" / "samples.safetensors").write_bytes(b"")
    assert "does not match manifest.json" in refused("python", "other")
    small.model = SelfAttending
    assert "--swap takes numbers" in refused("small_models:model", "--swap", "symmetric:x", *OPTIONS)
    assert "every layer has a swapped operator" in refused("small_models:model", "--swap", "symmetric", *OPTIONS)
