"""A model folder full of modules that libraries import if they find them: none may run when it is the current folder.

`python tests/faults/current_folder.py` tries every name with every way to start every command and prints counts.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import clearhead

__all__ = ["NAMES", "STARTS", "imported_names", "make_model_folder", "poison"]

NAMES = (Path(__file__).parent / "optional_modules.txt").read_text().split()
"""Modules that torch, transformers, numpy, scipy, rich, typer and what they need import where they are installed."""

_SOURCE = """
import os
with open(os.environ["POISON_LOG"], "a") as log:
    log.write(__name__ + "\\n")
raise ModuleNotFoundError(name=__name__)
"""

COMMANDS: dict[str, tuple[str, ...]] = {
    "audit": ("audit", ".", "--theory", "symmetry", "--inputs", "1", "--layers", "0", "--out", "../report"),
    "doctor": ("doctor",),
    "reproduce": ("reproduce", "--list"),
    "verify": ("verify", "--json"),
}
STARTS = ("script", "module", "empty entry of PYTHONPATH", "the folder in PYTHONPATH")


def make_model_folder(folder: Path) -> None:
    """Write a small BERT with its tokenizer."""
    import torch
    import transformers

    from clearhead.interfaces.torchvision_shim import ensure_torchvision

    ensure_torchvision()

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=11
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\na\n")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def poison(folder: Path, names: Sequence[str]) -> None:
    """Write a module of each name, half of them as packages. Each notes that it ran, then claims to be absent."""
    for index, name in enumerate(names):
        path = folder / name / "__init__.py" if index % 2 else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_SOURCE)


def imported_names(folder: Path, command: str, start: str) -> tuple[set[str], int]:
    """Run a command with the folder as the current folder. Return the poisoned modules that ran, and the exit code."""
    log = folder.parent / "log"
    log.write_text("")
    source = str(Path(clearhead.__file__).parents[1])
    script = folder.parent / "clearhead-script.py"
    script.write_text("import sys\nfrom clearhead.__main__ import main\nsys.exit(main())\n")
    path = {
        "empty entry of PYTHONPATH": os.pathsep + source,
        "the folder in PYTHONPATH": os.pathsep.join([source, str(folder)]),
    }.get(start, source)
    program = ["-m", "clearhead"] if start == "module" else [str(script)]
    environment = os.environ | {"PYTHONPATH": path, "POISON_LOG": str(log), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, *program, *COMMANDS[command]], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return set(log.read_text().split()), done.returncode


def main() -> int:
    """Try everything; return 1 if a module ran or a command failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="order of the names, so which are packages")
    parser.add_argument("--command", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--start", nargs="+", choices=STARTS, default=STARTS)
    options = parser.parse_args()
    names = random.Random(options.seed).sample(NAMES, len(NAMES))
    faults = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        make_model_folder(folder)
        poison(folder, names)
        for command in options.command:
            for start in options.start:
                ran, code = imported_names(folder, command, start)
                faults += len(ran) + (code != 0)
                if ran or code:
                    repeat = f'--command {command} --start "{start}" --seed {options.seed}'
                    print(f"fault: {repeat}: exit {code}, ran {sorted(ran)}")
    starts = len(options.command) * len(options.start)
    print(f"{len(names)} names, {starts} starts of commands, seed {options.seed}: {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
