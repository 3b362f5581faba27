"""What ships: the public names, lazy imports, the documents, the import contracts."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import clearhead
import clearhead_lab
from clearhead.theories import attention_sinks, coding_rate, kernel_pca, max_margin

ROOT = Path(__file__).parents[2]

PUBLIC = [
    "AttentionNotSeenError", "AttentionSpec", "AuditRecord", "Claim", "ClearheadError", "Comparison", "Control",
    "Direction", "Example", "Finding", "Heads", "InputError", "Interface", "Loader", "NamedOperator", "Need",
    "PackageWarning", "PlainWords", "Random", "Reader", "Reason", "ReasonKind", "Role", "Sample", "ShapeError", "Swap",
    "SwapWarning", "Theory", "Verdict", "__version__", "attention_svm",
    "audit", "capture", "check_attention", "check_fidelity", "compare", "find_swaps", "interfaces", "load_model",
    "load_swaps", "modules", "operators", "register_huggingface", "save_swaps", "swap", "write_report",
]  # fmt: skip


def test_the_public_names_are_pinned_and_exist() -> None:
    assert clearhead.__all__ == dir(clearhead) == PUBLIC
    for name in PUBLIC:
        assert getattr(clearhead, name) is not None
    assert callable(clearhead.audit)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = clearhead.atention


def test_no_module_hides_a_public_name() -> None:
    modules = {path.stem for path in (ROOT / "src" / "clearhead").iterdir()}
    assert modules & set(PUBLIC) == {"audit", "interfaces", "modules", "operators"}


def test_the_audit_package_is_called_as_its_function() -> None:
    code = "import clearhead.audit.record, inspect; print(list(inspect.signature(clearhead.audit).parameters)[:2])"
    assert _python(code) == "['model', 'batches']"


def test_a_name_is_the_same_before_and_after_its_module_is_imported() -> None:
    code = "import clearhead; first = clearhead.audit; import clearhead.audit.run; print(first is clearhead.audit)"
    assert _python(code) == "True"
    assert _python("import clearhead; print(clearhead.operators.__name__)") == "clearhead.operators"


def test_the_names_of_the_laboratory_exist() -> None:
    assert {"Attack", "attack", "train", "sweep"} <= set(clearhead_lab.__all__)
    for name in clearhead_lab.__all__:
        assert getattr(clearhead_lab, name) is not None


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == clearhead.__version__ == metadata.version("clearhead")
    assert f"## [{clearhead.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_importing_clearhead_imports_nothing_heavy() -> None:
    code = "import sys, clearhead; print({'torch', 'numpy', 'transformers', 'rich'} & set(sys.modules))"
    assert _python(code) == "set()"


def test_importing_the_operators_does_not_import_the_compiler() -> None:
    code = "import sys, clearhead.operators; print(any(name.startswith('torch._dynamo') for name in sys.modules))"
    assert _python(code) == "False"


def test_clearhead_works_without_test_dependencies() -> None:
    code = (
        "import sys\n"
        "for name in ('jaxtyping', 'beartype', 'hypothesis', 'timm', 'torchvision', 'transformers', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import torch, clearhead as ch\n"
        "layer = torch.nn.TransformerEncoderLayer(24, 4, 29, batch_first=True)\n"
        "x = torch.randn(5, 13, 24, generator=torch.Generator().manual_seed(0))\n"
        "print(len(ch.audit(layer, [x], claims='all').findings))"
    )
    by_head = (
        *kernel_pca.CLAIMS,
        *max_margin.CLAIMS[1:],
        *coding_rate.HEAD_CLAIMS,
        *coding_rate.NORM_CLAIMS,
        *coding_rate.MAP_CLAIMS,
    )
    by_layer = len(coding_rate.LAYER_CLAIMS)
    others = 1 + len(attention_sinks.THEORY.claims)
    assert int(_python(code).splitlines()[-1]) == 4 * (len(by_head) + others) + by_layer


def test_the_import_does_not_touch_torchvision() -> None:
    code = "import sys, clearhead, clearhead.audit.run, clearhead.interfaces; print('torchvision' in sys.modules)"
    assert _python(code) == "False"


def test_the_readme_shows_code_early_and_its_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make audit" in "\n".join(readme.splitlines()[:15])
    assert "import clearhead as ch" in "\n".join(readme.splitlines()[:15])
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"make (audit|test|\w+)\b", readme)) <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"\bch\.(\w+)", readme):
        assert name in PUBLIC
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"hf", "timm", "plots", "tables", "audio", "demo", "all"} == set(extras)


def test_torch_is_pinned_by_the_constraints_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "torch>=2.10" in project["dependencies"]
    assert (ROOT / "constraints.txt").read_text().split() == ["torch==2.13.0", "torchvision==0.28.0"]
    [command] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert command.startswith("INSTALL := ")  # every other line installs by it
    assert "--constraint constraints.txt" in (ROOT / "Makefile").read_text()


DOWN = "imports of the instrument point down"
BREAKS = {
    "no audit knows an experiment": (
        "audit/run.py",
        "import clearhead_lab.experiments",
        "the instrument does not import",
    ),
    "the audit writes no report": ("audit/run.py", "import clearhead.report.folder", DOWN),
    "upwards": ("numerics/precision.py", "import clearhead.audit.findings", DOWN),
    "the kernel stands alone": ("kernels/library.py", "import clearhead.numerics.precision", DOWN),
    "theories get no models": ("theories/theory.py", "import clearhead.interfaces", "theories get tensors"),
    "theories apart": ("theories/symmetry/claim.py", "import clearhead.theories.kernel_pca", "theories do not import"),
    "no transformers below": ("interfaces/huggingface.py", "import transformers", "the foundation needs torch"),
    "data knows no training": (
        "lab:data/batches.py",
        "import clearhead_lab.training.loop",
        "imports of the lab",
    ),
    "corruptions know no training": (
        "lab:robustness/corruptions.py",
        "import clearhead_lab.training.evaluation",
        "imports of the lab",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_each_import_contract_can_fail(tmp_path: Path, case: str) -> None:
    file, line, contract = BREAKS[case]
    folders = {"": tmp_path / "src" / "clearhead", "lab": tmp_path / "lab" / "src" / "clearhead_lab"}
    for folder in folders.values():
        shutil.copytree(ROOT / folder.relative_to(tmp_path), folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    distribution, _, name = file.rpartition(":")
    broken = folders[distribution] / name
    broken.write_text(broken.read_text() + f"\n{line}\n")
    code = (
        f"import sys; sys.path[:0] = {[str(folder.parent) for folder in folders.values()]!r}\n"
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    wide = {**os.environ, "COLUMNS": "300"}  # a contract and its verdict on one line
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=wide, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{contract}.* BROKEN", done.stdout)
    assert done.stdout.count("BROKEN") == 1


def test_no_package_has_a_vague_name() -> None:
    names = {path.stem for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"utils", "helpers", "common", "misc"}


def test_the_command_names_the_default_model_without_loading_it() -> None:
    from clearhead.cli import request
    from clearhead.loading import model as loading

    assert request.DEFAULT_MODEL == loading.DEFAULT_MODEL
