"""Damage stored state and read it: every kind of file that Clearhead writes and reads again.

`python tests/faults/stored_damage.py` does 200 of each of seven kinds of damage to each file and prints counts. A file
is "refused" if reading raises a ClearheadError, "older" if the state before it is used with a notice, "unchanged" if
what is read equals what was written (a changed space in JSON), and "silent" if something else is read.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.errors import ClearheadError
from clearhead.loading.model import load_model
from clearhead.storage import write_checksums
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.batches import TensorBatches
from clearhead_lab.training.checkpoint import State, load_checkpoint
from clearhead_lab.training.loop import Stepper, read_log, train
from clearhead_lab.training.metrics import METRICS
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification
from tests.faults.current_folder import make_model_folder
from tests.faults.damage import DAMAGES, damage

CONFIG = VisionTransformerConfig(
    image_size=4, patch_size=2, channels=1, classes=2, width=6, layers=1, heads=2, mlp_width=5
)
RECIPE = Recipe(epochs=2, batch_size=5, warmup=0.0)


def _model() -> VisionTransformer:
    return VisionTransformer(CONFIG, generator=torch.Generator().manual_seed(0))


def _weights(model: nn.Module) -> dict[str, Any]:
    return {name: (tensor.dtype, tensor.tolist()) for name, tensor in model.state_dict().items()}


def _make_run(folder: Path) -> None:
    images = torch.randint(0, 255, (10, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batches = TensorBatches(images, torch.arange(10) % 2, batch_size=RECIPE.batch_size, seed=RECIPE.seed)
    train(_model(), Classification(RECIPE, lambda _: {"accuracy": 0.5}), batches, recipe=RECIPE, folder=folder)
    (folder / METRICS).unlink()  # for people: no result depends on it


class OlderStateError(ClearheadError):
    """A notice that the state before the damaged one is used."""


def _older(line: str) -> None:
    raise OlderStateError(line)


def _read_run(folder: Path) -> Any:
    model = _model()
    stepper = Stepper(model, RECIPE, Classification(RECIPE))
    run = {name: getattr(RECIPE, name) for name in Recipe.__dataclass_fields__} | {"steps": 2}
    state = State(model=model, optimizer=stepper.optimizer)
    progress = load_checkpoint(folder / "checkpoint.safetensors", state, run=run, notice=_older)
    optimizer = stepper.optimizer.state_dict()["state"]
    return (
        progress,
        _weights(model),
        str(sorted((n, sorted(optimizer[n].items())) for n in optimizer)),
        read_log(folder),
    )


def _make_folder_with_checksums(folder: Path) -> None:
    make_model_folder(folder)
    write_checksums(folder, [path.name for path in folder.iterdir()])


STATES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "training run": (_make_run, _read_run),
    "model of Clearhead": (
        lambda folder: save_native(_model(), folder),
        lambda folder: (_weights(load_native(folder)), load_native(folder).config),
    ),
    "prepared Hugging Face model": (
        _make_folder_with_checksums,
        lambda folder: _weights(load_model(str(folder), max_tokens=8).model),
    ),
    "cached result": (
        lambda folder: write_json(folder / "result.json", {"accuracy": 0.7256, "runs": [1, 2.5], "name": "ä"}),
        lambda folder: read_json(folder / "result.json"),
    ),
}
"""State: how to write it into a folder, and how to read it. Saved swaps have their own test."""


def outcomes(
    state: str, folder: Path, *, count: int, first: int = 0, kinds: Iterable[str] = tuple(DAMAGES)
) -> Counter[str]:
    """Damage each file of the state `count` times in each way. Return how often reading was refused or not."""
    write, read = STATES[state]
    folder.mkdir()
    write(folder)
    (folder / ".lock").unlink(missing_ok=True)
    expected, results = read(folder), Counter[str]()
    intact = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    for path in intact:
        if path.name.startswith("previous-"):  # it is read only if another file is damaged
            continue
        for kind in kinds:
            for seed in range(first, first + count):
                damage(path, kind, seed)
                try:
                    outcome = "unchanged" if read(folder) == expected else "silent"
                except OlderStateError:
                    outcome = "older"
                except ClearheadError:
                    outcome = "refused"
                if outcome == "silent":
                    repeat = f'--state "{state}" --kind "{kind}" --first {seed} --count 1'
                    print(f"fault: {repeat}: silent damage of {path.name}", flush=True)
                results[outcome] += 1
                for name, content in intact.items():
                    name.write_bytes(content)
    shutil.rmtree(folder)
    return results


def main() -> int:
    """Try everything; return 1 if damage was silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="damages of each kind for each file")
    parser.add_argument("--first", type=int, default=0, help="seed of the first damage")
    parser.add_argument("--state", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--kind", nargs="+", choices=DAMAGES, default=tuple(DAMAGES))
    options = parser.parse_args()
    silent = 0
    with tempfile.TemporaryDirectory() as temporary:
        for state in options.state:
            settings = {"count": options.count, "first": options.first, "kinds": options.kind}
            results = outcomes(state, Path(temporary) / "state", **settings)
            silent += results["silent"]
            counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(results.items()))
            print(f"{state}: {results.total()} damages: {counts}", flush=True)
    print(f"{len(options.kind)} kinds x {options.count}, seeds from {options.first}: {silent} silent")
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
