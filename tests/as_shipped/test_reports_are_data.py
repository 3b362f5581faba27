"""A report is data: functions, paths and folders that it names are used only if the user names them too."""

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest

from clearhead.audit.options import AuditOptions
from clearhead.cli.confirmed import NAMED, Typed, confirm
from clearhead.cli.request import AuditRequest
from clearhead.data.tables import read_column
from clearhead.errors import InputError
from clearhead.loading.model import DEFAULT_MODEL
from clearhead.stored_json import read_json, write_json
from tests.as_shipped.conftest import Ended, Run

AUDIT = ("--batches", "small_models:batches", "--theory", "attention-sinks", "--layers", "1")
MODEL, BATCHES = ("--model", "small_models:model"), ("--batches", "small_models:batches")
Change = Callable[..., None]


@pytest.fixture
def change(command: Run, tmp_path: Path) -> Change:
    """Audit the small model, and return a function that changes options in the manifest of the report."""
    assert command("audit", "small_models:model", *AUDIT, "--out", "report").code == 0

    def write(**options: Any) -> None:
        stored = read_json(tmp_path / "report" / "manifest.json")
        for name, value in options.items():
            (stored["options"] if name in stored["options"] else stored["command"]["options"])[name] = value
        write_json(tmp_path / "report" / "manifest.json", stored)

    return write


def plant(folder: Path, name: str = "planted") -> Path:
    """Write a module, and return the file that it writes when it runs."""
    ran = folder / "ran"
    (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\nload = batches = loss = None\n")
    return ran


def refused(done: Ended) -> str:
    """Return the line of a refused command."""
    assert (done.code, done.out) == (2, "")
    assert sum(line.startswith("clearhead: ") for line in done.err.splitlines()) == 1
    assert all(line.isprintable() for line in done.err.splitlines())
    return done.err.splitlines()[-1]


def typed(line: str) -> list[str]:
    """Return the arguments of the command that a refusal prints."""
    return shlex.split(line.partition("type clearhead ")[2].partition(", or confirm")[0])


@pytest.mark.parametrize("option", ["model", "batches", "loss"])
@pytest.mark.parametrize("use", [("rerun", "report"), ("compare", "report", "small_models:model")])
def test_a_function_runs_only_if_it_is_typed(
    option: str, use: tuple[str, ...], command: Run, change: Change, tmp_path: Path
) -> None:
    ran = plant(tmp_path)
    change(**{option: "planted:load"})
    for trust in ((), ("--trust-paths",)):
        done = command(*use, *trust)
        if (option, use[0]) != ("model", "compare"):  # which has a model from the user
            assert typed(refused(done)).count("planted:load") == 1
    assert not ran.exists()


def test_the_printed_command_repeats_the_audit(command: Run, change: Change) -> None:
    line = refused(command("rerun", "report", "--out", "a b"))
    words = typed(line)
    assert words == ["rerun", "report", "--out", "a b", *MODEL, *BATCHES]
    assert command(*words).code == 0
    words = typed(refused(command("compare", "report", "--swap", "softmax:0", "--json")))
    assert words == ["compare", "report", "--swap", "softmax:0", "--json", *MODEL[1:], *BATCHES]


@pytest.mark.parametrize("current", ["report", "."])
def test_no_code_of_the_report_runs_even_if_it_is_typed(
    current: str, command: Run, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = plant(tmp_path / "report")
    monkeypatch.chdir(tmp_path / current)
    monkeypatch.syspath_prepend(str(tmp_path / "report"))
    report, name = (".", "planted:load") if current == "report" else ("report", "report.planted:load")
    line = refused(command("rerun", report, "--model", name, *BATCHES, "--out", str(tmp_path / "out")))
    assert f"cannot import {name}: " in line
    line = refused(command("compare", report, name, *BATCHES, "--out", str(tmp_path / "out")))
    assert f"cannot import {name}: " in line
    assert not ran.exists()


def test_a_path_is_used_only_if_it_is_typed_or_confirmed(command: Run, change: Change, tmp_path: Path) -> None:
    described = tmp_path / "described.toml"
    described.write_text('[[attention]]\nmodule = "x.Y"\nq = "q"\nk = "k"\nv = "v"\n')
    change(describe=str(described))
    line = refused(command("rerun", "report", *MODEL, *BATCHES))
    assert typed(line) == ["rerun", "report", *MODEL, *BATCHES, "--describe", str(described)]
    assert line.endswith(", or confirm its paths with --trust-paths")
    assert command(*typed(line)).code == 0
    assert command("rerun", "report", *MODEL, *BATCHES, "--trust-paths", "--out", "b").code == 0
    done = command("compare", "report", "small_models:model", *BATCHES, "--trust-paths", "--out", "c")
    assert done.code == 0


@pytest.mark.parametrize("option", ["text", "images", "audio", "describe", "swap", "model"])
@pytest.mark.parametrize(
    "kind", ["relative", "parent", "control", "dashes", "pipe", "link", "device", "system", "root"]
)
def test_no_path_is_opened_that_is_not_a_file_or_folder(
    option: str, kind: str, command: Run, change: Change, tmp_path: Path, small: ModuleType
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    value = {
        "relative": "report", "parent": "../x", "control": f"{tmp_path}/\x1b[2J\u202e", "dashes": "--help",
        "pipe": str(tmp_path / "pipe"), "link": str(tmp_path / "link"), "device": "/dev/zero",
        "system": "/proc/self/environ", "root": "/",
    }[kind]  # fmt: skip
    small.model = lambda: pytest.fail("the model was loaded")
    change(**{option: value})
    names = () if option == "model" else MODEL
    asked = refused(command("rerun", "report", *names, *BATCHES))
    assert f"{'--text' if option in ('images', 'audio') else f'--{option}'} " in asked
    trusted = refused(command("rerun", "report", *names, *BATCHES, "--trust-paths"))
    if kind in ("relative", "parent", "control", "dashes"):
        assert f"{'--text' if option in ('images', 'audio') else f'--{option}'} PATH" in asked
        assert "PATH" in trusted
    else:
        assert "is a pipe, a device or a part of the system" in trusted
        if option not in ("model", "swap"):
            assert "is a pipe, a device or a part of the system" in refused(command(*typed(asked)))


def test_a_swap_of_the_manifest_is_an_operator_and_no_folder_of_its_name(
    command: Run, change: Change, tmp_path: Path
) -> None:
    change(swap="softmax:0")
    (tmp_path / "softmax:0").mkdir()
    assert "--swap PATH" in refused(command("rerun", "report", *MODEL, *BATCHES))


def test_results_never_go_where_the_report_says(
    command: Run, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    change(out=str(elsewhere))
    assert command("rerun", "report", *MODEL, *BATCHES).code == 0
    assert command("compare", "report", "small_models:model", *BATCHES).code == 0
    for name in ("clearhead-rerun", "clearhead-comparison"):
        (tmp_path / "report" / name).symlink_to(elsewhere, target_is_directory=True)
    assert "would be overwritten" in refused(command("rerun", "report", *MODEL, *BATCHES, "--out", "report"))
    monkeypatch.chdir(tmp_path / "report")
    assert "is a part of the report" in refused(command("rerun", ".", *MODEL, *BATCHES))
    assert "is a part of the report" in refused(command("compare", ".", "small_models:model", *BATCHES))
    assert "is a part of the report" in refused(command("rerun", ".", *MODEL, *BATCHES, "--out", "clearhead-rerun/a"))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("claims", "x"), ("baseline", "x"), ("theories", [1]), ("seed", -1), ("seed", True), ("inputs", 0),
        ("workers", 10**9), ("batch_size", -1), ("max_tokens", False),
    ],
)  # fmt: skip
def test_an_option_of_the_manifest_has_the_limits_of_the_command(
    option: str, value: Any, command: Run, change: Change
) -> None:
    change(**{option: value})
    assert f"no usable option {option}" in refused(command("rerun", "report", *MODEL, *BATCHES))


def test_options_that_are_no_mapping_are_refused(command: Run, change: Change, tmp_path: Path) -> None:
    stored = read_json(tmp_path / "report" / "manifest.json")
    stored["command"]["options"] = ["model"]
    write_json(tmp_path / "report" / "manifest.json", stored)
    assert "no usable option model" in refused(command("rerun", "report", *MODEL, *BATCHES))


def test_every_option_that_holds_text_is_known_to_name_something_or_nothing() -> None:
    harmless = {"layers", "theories", "claims", "baseline", "baseline_for", "device", "column"}
    fields = [field for kind in (AuditRequest, AuditOptions) for field in dataclasses.fields(kind) if field.metadata]
    texts = {
        field.name
        for field in fields
        if not {*(get_args(field.metadata["typed"]) or [field.metadata["typed"]])} <= {int, bool, type(None)}
    }
    assert texts == harmless | set(NAMED)


def test_a_manifest_of_an_earlier_audit_has_all_options_in_its_command(
    command: Run, change: Change, tmp_path: Path
) -> None:
    """And none that came later. What it names is not trusted either."""
    ran = plant(tmp_path)
    stored = read_json(tmp_path / "report" / "manifest.json")
    flat = {**stored.pop("options"), **stored["command"]["options"]}
    for name in ("column", "images", "audio", "device", "workers", "swap", "allow_swapped", "baseline_for"):
        del flat[name]
    for options in (flat, {**flat, "loss": "planted:loss", "claims": "all"}):
        stored["command"]["options"] = {**options, "out": str(tmp_path / "elsewhere")}
        write_json(tmp_path / "report" / "manifest.json", stored)
        done = command("rerun", "report", *MODEL, *BATCHES)
        assert (done.code, "planted:loss" in done.err) == ((2, True) if options["loss"] else (0, False))
    assert not ran.exists()
    assert not (tmp_path / "elsewhere").exists()


def test_a_dataset_folder_that_names_a_pipe_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "pipe"}]}')
    (tmp_path / "pipe").symlink_to("/dev/null")
    with pytest.raises(InputError, match="pipe: it is not a regular file"):
        read_column(tmp_path, "text")


def test_the_default_audit_is_repeated_without_a_flag() -> None:
    options = AuditOptions(theories=("symmetry",), workers=None)
    request = AuditRequest(model=DEFAULT_MODEL, options=options)
    manifest = SimpleNamespace(options=options.to_dict(), command={"options": request.to_dict()})
    stored = AuditRequest.of_manifest(manifest)  # type: ignore[arg-type]
    assert stored == request
    assert confirm(stored, Path("x"), Typed(command=[], values={}, trust_paths=False)) == stored
