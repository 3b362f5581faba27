"""Stored swaps: names, numbers and tensors, applied only by the caller."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clearhead import find_swaps, load_swaps, save_swaps, swap
from clearhead.loading.model import load_model
from clearhead.operators.named import OPERATORS
from clearhead.storage import DamagedFileError
from clearhead.stored_json import write_json
from clearhead_lab.models.native import load_native, save_native
from tests.faults.damage import DAMAGES, damage
from tests.once import once
from tests.swap.models import MODELS, rounding, run, same, trace
from tests.swap.operators import Gained, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register an operator with parameters that a file may name."""
    monkeypatch.setattr(OPERATORS, "_registered", {})
    OPERATORS.register("gained", Gained)


def read_json_or_none(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _changed(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "clearhead_operator" in name:
                parameter.add_(0.25)


@pytest.mark.parametrize("name", MODELS)
def test_a_swap_is_saved_and_restored(name: str, tmp_path: Path) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    swap(model, "symmetric", layers=0)
    swap(model, Gained(start=1.5), layers=1)
    _changed(model)
    expected = run(model, inputs)
    save_swaps(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"clearhead-swap.json", "clearhead-swap.safetensors"}
    fresh = MODELS[name].make()
    before = trace(fresh)
    first, second = load_swaps(fresh, tmp_path)
    assert same(run(fresh, inputs), expected)
    assert find_swaps(fresh) == (first, second)
    first.undo()
    second.undo()
    assert trace(fresh) == before


def test_transformers_saves_the_note_but_does_not_apply_the_swap(tmp_path: Path) -> None:
    import transformers

    model, inputs = MODELS["llama"].make(), MODELS["llama"].inputs()
    alone = run(model, inputs)
    done = swap(model, "symmetric", layers=[0, 2])
    recorded = [{"operator": {"operator": "symmetric"}, "layers": ["layers.0.self_attn", "layers.2.self_attn"]}]
    assert model.config.clearhead_swap == recorded
    expected = run(model, inputs)
    model.save_pretrained(tmp_path)
    done.undo()
    assert not hasattr(model.config, "clearhead_swap")
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert same(run(loaded, inputs), alone)
    assert find_swaps(loaded) == ()
    with pytest.raises(ValueError, match="swapped attention"):
        load_model(str(tmp_path), max_tokens=7)
    (restored,) = load_swaps(loaded)
    assert same(run(loaded, inputs), expected)
    restored.undo()
    assert same(run(loaded, inputs), alone)
    assert not hasattr(loaded.config, "clearhead_swap")


def test_parameters_saved_by_transformers_are_loaded(tmp_path: Path) -> None:
    import transformers

    model, inputs = MODELS["bert"].make(), MODELS["bert"].inputs()
    swap(model, Gained(start=1.5), layers=1)
    _changed(model)
    expected = run(model, inputs)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    before = trace(loaded)
    with pytest.raises(ValueError, match=r"parameters, .*folder"):
        load_swaps(loaded)
    assert trace(loaded) == before
    load_swaps(loaded, tmp_path)
    assert same(run(loaded, inputs), expected)


def test_a_native_model_saved_while_swapped_is_saved_without_the_swap(tmp_path: Path) -> None:
    family = MODELS["own vision transformer"]
    model, inputs = family.make(), family.inputs()
    alone = run(model, inputs)
    swap(model, Gained(start=1.5))
    expected = run(model, inputs)
    save_native(model, tmp_path)
    save_swaps(model, tmp_path)
    loaded = load_native(tmp_path).eval()
    assert same(run(loaded, inputs), alone)
    load_swaps(loaded, tmp_path)
    assert same(run(loaded, inputs), expected)


def test_an_unnamed_operator_is_not_saved_but_noted(tmp_path: Path) -> None:
    import transformers

    model = MODELS["bert"].make()
    with pytest.raises(ValueError, match="nothing is swapped"):
        save_swaps(model, tmp_path)
    swap(model, uniform, layers=0)
    with pytest.raises(ValueError, match="named operators"):
        save_swaps(model, tmp_path)
    assert list(tmp_path.iterdir()) == []
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'uniform' had no name"):
        load_swaps(loaded)


_FIRST = "encoder.layer.0.attention.self"
WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({"operator": "symmetric"}, "expected a list of swaps"),
    "nothing": ([], "expected a list of swaps"),
    "no layers": ([{"operator": {"operator": "symmetric"}}], "expected a swap with an operator and layers"),
    "more": ([{"operator": {"operator": "symmetric"}, "layers": ["x"], "code": 1}], "expected a swap with an operator"),
    "a path of code": ([{"operator": {"operator": "os:system"}, "layers": ["x"]}], "expected an operator among"),
    "a list of code": ([{"operator": {"operator": []}, "layers": ["x"]}], "expected an operator among"),
    "a huge number": (
        [{"operator": {"operator": "rpc", "strength": 10**400}, "layers": ["x"]}],
        "strength, lambda, of zero or more",
    ),
    "a huge matrix": (
        [
            {
                "operator": {"operator": "scaled", "form": "matrix", "num_tokens": 10**9, "num_heads": 4},
                "layers": [_FIRST],
            }
        ],
        "cannot be built",
    ),
    "a setting": ([{"operator": {"operator": "symmetric", "x": 1}, "layers": ["x"]}], "has no setting x"),
    "numbers": ([{"operator": {"operator": "symmetric"}, "layers": [0]}], "expected layers as paths"),
    "elsewhere": ([{"operator": {"operator": "symmetric"}, "layers": ["x"]}], "there is no attention layer 'x'"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("in_config", [True, False])
def test_stored_swaps_are_validated(case: str, in_config: bool, tmp_path: Path, typechecked: bool) -> None:
    stored, message = WRONG[case]
    if typechecked and case == "a huge number":
        pytest.skip("the import hook refuses it before the options can")
    model = MODELS["bert"].make()
    if in_config:
        model.config.clearhead_swap = stored
    else:
        write_json(tmp_path / "clearhead-swap.json", {"swaps": stored})
    before = trace(model)
    with pytest.raises(ValueError, match=message) as caught:
        load_swaps(model, None if in_config else tmp_path)
    assert "\n" not in str(caught.value)
    assert trace(model) == before
    assert find_swaps(model) == ()


def test_missing_or_broken_files_are_named(tmp_path: Path) -> None:
    model = MODELS["bert"].make()
    with pytest.raises(ValueError, match="config notes no swap"):
        load_swaps(model)
    with pytest.raises(ValueError, match="holds no swap"):
        load_swaps(model, tmp_path)
    for broken in ("{", "[" * 100_000):
        (tmp_path / "clearhead-swap.json").write_text(broken)
        with pytest.raises(ValueError, match=r"clearhead-swap\.json: .*(not valid|nested too deeply)"):
            load_swaps(model, tmp_path)
    done = swap(model, Gained(start=1.5), layers=0)
    save_swaps(model, tmp_path)
    with pytest.raises(ValueError, match="swaps already"):
        load_swaps(model, tmp_path)
    done.undo()
    (tmp_path / "clearhead-swap.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"clearhead-swap\.safetensors has no checksum"):
        load_swaps(model, tmp_path)
    (tmp_path / "clearhead-swap.safetensors").unlink()
    with pytest.raises(ValueError, match=r"attention\.self\.clearhead_operator\.gain"):
        load_swaps(model, tmp_path)
    assert find_swaps(model) == ()


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", ["clearhead-swap.json", "clearhead-swap.safetensors"])
def test_damaged_files_are_not_used(file: str, kind: str, tmp_path: Path) -> None:
    model = MODELS["bert"].make()
    done = swap(model, Gained(start=1.5), layers=0)
    save_swaps(model, tmp_path)
    done.undo()
    intact = (tmp_path / file).read_bytes()
    for seed in range(10):
        (tmp_path / file).write_bytes(intact)
        damage(tmp_path / file, kind, seed)
        if file.endswith(".json") and read_json_or_none(tmp_path / file) == json.loads(intact):
            continue  # only whitespace changed
        with pytest.raises(DamagedFileError):
            load_swaps(model, tmp_path)
        assert find_swaps(model) == ()


@once
def test_a_pickled_swapped_model_works_in_a_new_process(tmp_path: Path) -> None:
    model, inputs = MODELS["bert"].make(), MODELS["bert"].inputs()
    swap(model, "symmetric")
    torch.save((model, inputs, run(model, inputs)), tmp_path / "whole.pt")
    close = rounding(model, inputs)
    code = (
        "import clearhead, torch; from clearhead.interfaces.torchvision_shim import ensure_torchvision; "
        "ensure_torchvision(); "
        f"model, inputs, expected = torch.load({str(tmp_path / 'whole.pt')!r}, weights_only=False); "
        "difference = (model(**inputs)[0] - expected[0]).abs().max() / expected[0].abs().max(); "
        "print(float(difference), len(clearhead.find_swaps(model)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    difference, swaps = ran.stdout.split() or [ran.stderr, ""]
    # Another process may use another number of threads, which changes the last bits.
    assert float(difference) <= close
    assert swaps == "1"
