"""Theories of installed packages: found by entry points, loaded when used, and named with their package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.audit.run import audit
from clearhead.errors import InputError
from clearhead.theories.catalogue import find_theories, load_theories
from tests.audit.test_run import Projecting, _batches
from tests.interfaces.zoo import with_large_weights

PLUGIN = """
from clearhead.theories.theory import Claim, Sample, Theory
import numpy as np

CLAIM = Claim(theory="x theory", statistic="one", statement="", formula="", citation="", predicted=1.0)
THEORY = Theory(
    key="x-theory",
    title="x theory",
    claims=(CLAIM,),
    measure=lambda example, rng: {CLAIM: Sample(value=np.ones(example.q.shape[0]), controls={})},
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a distribution with these entry points on the path."""

    def put(entries: str, *, code: str = PLUGIN, name: str = "xplug") -> None:
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[clearhead.theories]\n{entries}\n")
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return put


def test_clearhead_s_own_theories_come_first_and_in_order() -> None:
    loaded = load_theories()
    keys = [source.key for source in loaded.sources]
    assert keys[:5] == ["kernel-pca", "max-margin", "coding-rate", "symmetry", "attention-sinks"]
    assert {source.package for source in loaded.sources[:5]} == {"clearhead"}
    assert not loaded.failures


def test_a_plug_in_is_measured_and_the_record_says_where_it_is_from(install) -> None:
    install("x-theory = xplug:THEORY")
    record = audit(with_large_weights(Projecting()).double(), _batches(1), theories=["x-theory", "symmetry"])
    assert next((s.key, s.package, s.version) for s in record.theories) == ("x-theory", "xplug", "1.5")
    assert {f.value for f in record["x-theory"]} == {1.0}
    assert "x-theory" in [theory.key for theory in find_theories()]
    assert record.to_dict()["theories"][0] == {
        "key": "x-theory", "title": "x theory", "package": "xplug", "version": "1.5",
    }  # fmt: skip


def test_the_manifest_says_that_the_file_of_a_plug_in_changed(install, tmp_path: Path) -> None:
    install("x-theory = xplug:THEORY")
    manifests = []
    for code in (PLUGIN, PLUGIN, f"{PLUGIN}# edited\n"):
        (tmp_path / "xplug.py").write_text(code)
        sys.modules.pop("xplug", None)
        record = audit(with_large_weights(Projecting()).double(), _batches(1), theories=["x-theory", "symmetry"])
        manifests.append(record.manifest)
    assert manifests[0].differences(manifests[1]) == []
    (line,) = manifests[1].differences(manifests[2])
    assert re.fullmatch(r"theory x-theory: xplug 1\.5 source \w{12}, now xplug 1\.5 source \w{12}", line)
    assert "source" not in manifests[2].plugins["symmetry"]


@pytest.mark.parametrize(
    ("entries", "code", "words"),
    [
        ("x-theory = xplug:THEORY", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x-theory = xplug:MISSING", PLUGIN, "AttributeError"),
        ("x-theory = xplug:CLAIM", PLUGIN, "is not a Theory with the key x-theory"),
        ("other = xplug:THEORY", PLUGIN, "is not a Theory with the key other"),
        ("x-theory = xplug:THEORY", "raise RuntimeError('line\\nbreak')", "RuntimeError: line break"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_gives_one_line(install, entries: str, code: str, words: str) -> None:
    install(entries, code=code)
    key = entries.split(" = ")[0]
    with pytest.raises(InputError) as caught:
        find_theories([key])
    line = f"the theory {key} of xplug cannot be loaded: "
    assert str(caught.value).startswith(line)
    assert words in str(caught.value)
    assert ("correct, reinstall or uninstall" in str(caught.value)) is ("is not" not in words)
    assert "\n" not in str(caught.value)
    loaded = load_theories()
    assert len(loaded.theories) == 5
    assert [failure.startswith(line) for failure in loaded.failures] == [True]


def test_a_plug_in_cannot_replace_a_theory_of_clearhead(install) -> None:
    install("symmetry = aplug:THEORY", name="aplug")  # first by name
    loaded = load_theories()
    assert [s.package for s in loaded.sources if s.key == "symmetry"] == ["clearhead"]
    assert loaded.failures == ("the theory symmetry of aplug is not used: clearhead has one of that name",)


def test_unknown_keys_are_named() -> None:
    with pytest.raises(InputError, match="no theory is called magic; installed: kernel-pca, max-margin"):
        find_theories(["symmetry", "magic"])


def test_one_theory_is_loaded_without_the_others() -> None:
    code = (
        "import sys; from clearhead.theories.catalogue import find_theories; find_theories(['symmetry']);"
        "print([n for n in ('max_margin', 'coding_rate') if f'clearhead.theories.{n}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_capture_imports_no_theory() -> None:
    code = "import sys, clearhead; clearhead.capture; print(sorted(n for n in sys.modules if 'theories' in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
