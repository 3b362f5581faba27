"""Reports as attackers would write them, drawn from a seed, with checksums that fit: repeated, compared or refused.

`python tests/faults/hostile_reports.py` tries 200 and prints counts. A fault is code that runs, a file that is opened
without being confirmed, a file written outside the chosen folder, a traceback, several lines, a control character, or
more than 60 seconds. Half of the refused commands are followed by the command that the refusal prints.
"""

import contextlib
import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.cli.main import app
from clearhead.stored_json import read_json, write_json
from tests.faults.attempts import HangError, in_child, limited, run, try_all, wrong_end
from tests.faults.current_folder import make_model_folder

AUDIT = ("--theory", "symmetry", "--inputs", "2", "--baseline", "none", "--workers", "1", "--max-tokens", "8")
MARKER = "import pathlib\npathlib.Path({log!r}).write_text('ran')\nload = batches = loss = None\n"
FUNCTIONS = (
    "evil:load", "report.evil:load", "evil.inside:load", "here.evil:load", "os:getcwd", "evil:load\x1b[2J",
    "..evil:load", "evil:load; touch x", "report/evil.py:load",
)  # fmt: skip
PLAIN: dict[str, tuple[Any, ...]] = {
    "claims": ("x", 3), "baseline": ("", None), "theories": ([[1]], ["evil:load"], [None]), "seed": (-1, True, 10**30),
    "workers": (10**9, 0), "inputs": (0, 10**30), "batch_size": (-1, False), "layers": ("0-9999999", "\x1b[2J"),
    "baseline_for": (["evil:load"], "x"), "control_inputs": (-1, 10**30), "allow_swapped": ("x",),
    "device": ("evil:load", "meta", "\x1b[2J"), "column": ("\x1b[2J",), "max_tokens": (0, "8"),
}  # fmt: skip
"""Values of the options that name nothing."""


@dataclass(frozen=True, slots=True)
class World:
    """A hostile report, and everything it could reach.

    report: it came from somebody else; here: a current folder that is apart from it; secret: files that nobody named
    model, text: of the user; out: the folder that the user chooses; log: written by planted code
    """

    root: Path

    def __getattr__(self, name: str) -> Path:
        """Return the path of this name."""
        return self.root / name


def make_world(root: Path) -> World:
    """Audit a small model with a text, both the user's own."""
    world = World(root)
    for folder in (world.model, world.here, world.secret):
        folder.mkdir(parents=True)
    make_model_folder(world.model)
    world.text.write_text("the a a\n\na the\n")
    (world.secret / "text").write_text("the the\n\na a\n")
    (world.secret / "image.png").touch()
    os.mkfifo(world.secret / "pipe")
    (world.secret / "link").symlink_to(world.secret / "pipe")
    (world.secret / "zero").symlink_to("/dev/zero")
    (world.secret / "loop").symlink_to(world.secret / "loop")
    dataset, swap = world.secret / "dataset", world.secret / "swap"
    for folder in (dataset, swap):
        folder.mkdir()
    (dataset / "state.json").write_text('{"_data_files": [{"filename": "pipe"}]}')
    os.mkfifo(dataset / "pipe")
    write_json(swap / "clearhead-swap.json", {"swaps": [{"operator": {"operator": "scaled"}, "layers": ["x"]}]})
    os.mkfifo(swap / "weights.safetensors")
    arguments = ("audit", str(world.model), "--text", str(world.text), *AUDIT, "--out", "report")
    ended = in_child(lambda: str(_run(world.root, arguments)))
    assert (world.report / "manifest.json").exists(), ended
    return world


def _paths(world: World) -> list[str]:
    secret = [str(world.secret / n) for n in ("text", "pipe", "link", "zero", "loop", "dataset", "swap", "none", "")]
    return [
        *secret, "/dev/zero", "/dev/stdin", "/proc/self/environ", "/proc/self/mem", "/proc/kmsg", "/", "/sys", "", ".",
        "../secret/text", str(world.report / ".." / "secret" / "text"), "evil", "evil:load", "-rf", "--help", "x\0y",
        f"{world.secret}/\x1b[2J", f"{world.secret}/\u202etxt", f"{world.secret}/$(touch x)", "/" + "x" * 5000, "~",
    ]  # fmt: skip


def _change(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    path = world.report / "manifest.json"
    stored = read_json(path)
    together = {**stored["options"], **stored["command"]["options"]}
    change(together)
    stored["options"] = {name: together[name] for name in stored["options"]}
    stored["command"]["options"] = {name: value for name, value in together.items() if name not in stored["options"]}
    write_json(path, stored)


def _name(rng: random.Random, world: World, option: str, value: Any) -> None:
    _change(world, lambda options: options.update({option: value}))


def _name_function(rng: random.Random, world: World) -> None:
    _name(rng, world, rng.choice(["model", "batches", "loss", "describe"]), rng.choice(FUNCTIONS))


def name_planted_batches(rng: random.Random, world: World) -> None:
    """Name a function that is in the current folder."""
    _change(world, lambda options: options.update({"text": None, "batches": "evil:load"}))


def _name_path(rng: random.Random, world: World) -> None:
    option = rng.choice(["model", "text", "images", "audio", "describe", "swap"])
    if option in ("images", "audio"):
        _name(rng, world, "text", None)
    if option == "text" and rng.random() < 0.3:
        _name(rng, world, "column", "text")
    _name(rng, world, option, rng.choice(_paths(world)))


def _name_value(rng: random.Random, world: World) -> None:
    option = rng.choice(sorted(PLAIN))
    _name(rng, world, option, rng.choice(PLAIN[option]))


def _direct_output(rng: random.Random, world: World) -> None:
    """Send results elsewhere: by the manifest, or by a link where the default folders are."""
    _name(rng, world, "out", rng.choice([str(world.secret), "../secret", "/dev/null", "."]))
    for name in ("clearhead-rerun", "clearhead-comparison"):
        (world.report / name).symlink_to(world.secret, target_is_directory=True)


def _replace_file(rng: random.Random, world: World) -> None:
    path = world.report / rng.choice(["manifest.json", "findings.json", "samples.safetensors"])
    path.unlink(missing_ok=True)
    kind = rng.randrange(4)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == 2 else world.secret / "pipe")


ATTACKS = (
    _name_function,
    _name_function,
    _name_path,
    _name_path,
    _name_path,
    _name_value,
    _direct_output,
    _replace_file,
)


def _plant(world: World, folders: list[Path]) -> None:
    """Write modules that note that they ran."""
    source = MARKER.format(log=str(world.log))
    for folder in folders:
        (folder / "evil.py").write_text(source)
    (world.report / "evil").mkdir()
    for name in ("__init__", "inside"):
        (world.report / "evil" / f"{name}.py").write_text(source)


def _run(folder: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run a command in this process. Return its exit code, and what it printed to standard error."""
    os.chdir(folder)
    code, _, err = run(lambda: app(arguments, prog_name="clearhead", standalone_mode=False))
    return code, err


def _snapshot(world: World, *chosen: Path) -> dict[str, tuple[int, int]]:
    """Return the time and size of every file and folder that the command may not change."""
    left_out = (*chosen, world.log)
    paths = [path for path in _walk(world.root) if not any(path.is_relative_to(folder) for folder in left_out)]
    # A folder has a new time if the chosen folder is made in it.
    files = {path for path in paths if path.is_symlink() or not path.is_dir()}
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) if path in files else (0, 0) for path in paths}


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        yield from (Path(here) / name for name in (*folders, *files))


def _watch(world: World) -> list[str]:
    """Return a list that gets the name of every secret file that this process opens from now on."""
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith((str(world.secret.resolve()), "/dev/zero", "/proc/self/mem", "/proc/kmsg")):
                opened.append(path)

    sys.addaudithook(note)
    return opened


def _attempt(world: World, seed: int) -> str:
    """Change the report by the seed and use it, in this process, which must end afterwards."""
    rng = random.Random(seed)
    current = rng.choice([world.report, world.here, world.root])
    # What the user types after a refusal may run, unless it is in the report.
    follow = rng.random() < 0.5
    _plant(world, [world.report] if follow else [world.report, world.here, world.root])
    for attack in rng.sample(ATTACKS, k=rng.choice([1, 1, 2])):
        with contextlib.suppress(OSError, ValueError):  # an earlier change left nothing to change
            attack(rng, world)
    named = "." if current == world.report else os.path.relpath(world.report, current)
    trust = ("--trust-paths",) if rng.random() < 0.4 else ()
    out = () if rng.random() < 0.5 else ("--out", str(world.out))
    arguments = rng.choice(
        [("rerun", named), ("compare", named, str(world.model)), ("compare", str(world.model), named)]
    )
    arguments = (*arguments, *out, *trust)
    defaults = (current / "clearhead-rerun", current / "clearhead-comparison")
    chosen = (world.out,) if out else tuple(folder for folder in defaults if not folder.is_symlink())
    before = _snapshot(world, *chosen)
    opened = _watch(world)
    try:
        with limited():
            code, err = _run(current, arguments)
            faults = ["opened what was not confirmed"] if opened and not trust else []
            faults += wrong_end(code, err)
            if follow and code == 2 and "type clearhead " in err:
                words = shlex.split(err.partition("type clearhead ")[2].partition(", or confirm")[0])
                faults += wrong_end(*_run(current, tuple(words)))
    except HangError:
        faults = ["hang"]
    if world.log.exists():
        return f"executed: {shlex.join(arguments)}"
    if changed := {path for path, _ in _snapshot(world, *chosen).items() ^ before.items()}:
        return f"wrote elsewhere: {shlex.join(arguments)}: {sorted(changed)[:3]}"
    return faults[0] if faults else "refused" if code == 2 else "repeated"


def outcome(original: Path, root: Path, seed: int) -> str:
    """Return "refused", "repeated", or a description of the fault, of a copy of the world in a process of its own."""
    shutil.copytree(original, root, symlinks=True, copy_function=shutil.copy2, ignore=_ignore_pipes)
    for pipe in (path.relative_to(original) for path in _walk(original) if path.is_fifo() and not path.is_symlink()):
        os.mkfifo(root / pipe)
    _change(World(root), lambda options: options.update(_moved(options, original, root)))
    result = in_child(lambda: _attempt(World(root), seed))
    shutil.rmtree(root)
    return result


def _ignore_pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_fifo() and not (Path(folder) / name).is_symlink()]


def _moved(options: dict[str, Any], original: Path, root: Path) -> dict[str, Any]:
    moved: dict[str, Any] = json.loads(json.dumps(options).replace(str(original), str(root)))
    return moved


def _prepare(folder: Path) -> Callable[[int], str]:
    make_world(folder / "original")
    return lambda seed: outcome(folder / "original", folder / "world", seed)


if __name__ == "__main__":
    sys.exit(try_all(__doc__, _prepare, count=200, noun="reports", good={"refused", "repeated"}))
