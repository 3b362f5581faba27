"""Building the kernel: all or nothing, and every failure is one line with a remedy."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from clearhead.kernels import build as building
from clearhead.kernels.build import CHECKSUM, LIBRARY, SOURCES, BuildError, build
from clearhead.kernels.library import ABI
from tests.kernels.small_sources import INTERFACE, VARIANT, needs_compiler, write_sources


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "sources")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def compiler_that(tmp_path: Path, *, refuses: str) -> str:
    """Return a wrapper of the compiler that rejects arguments like the given one."""
    real = building._find_compiler()[0]
    text = f'for a in "$@"; do case "$a" in {refuses}) echo "x.cpp:1: error: no $a" >&2; exit 1;; esac; done'
    return str(program(tmp_path / "compiler", f'{text}\nexec {shutil.which(real)} "$@"'))


@needs_compiler
def test_the_build_writes_a_library_and_no_other_files(sources: Path, target: Path) -> None:
    path = build(target, sources=sources)
    assert path == target / LIBRARY
    assert {*target.iterdir()} == {path, target / CHECKSUM}
    assert (target / CHECKSUM).read_text() == f"{sha256(path.read_bytes()).hexdigest()}  {LIBRARY}\n"
    library = ctypes.CDLL(str(path))
    assert library.clearhead_abi() == ABI
    assert not hasattr(library, "not_exported")
    before = path.stat().st_ino
    assert build(target, sources=sources).stat().st_ino != before  # a process that has loaded the old library keeps it


@needs_compiler
def test_shared_inline_functions_use_generic_instructions(sources: Path, target: Path) -> None:
    assert ctypes.CDLL(str(build(target, sources=sources))).width() == 4


@needs_compiler
def test_control_variants_in_reverse_order_use_wider_instructions(
    sources: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "x86_64" not in _machine():
        pytest.skip("the compiler's machine has one variant")
    monkeypatch.setattr(building, "_VARIANTS", dict(reversed(building._VARIANTS.items())))
    assert ctypes.CDLL(str(build(target, sources=sources))).width() == 16


def _machine() -> str:
    command = [*building._find_compiler(), "-dumpmachine"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_compiler
@pytest.mark.parametrize(
    ("refuses", "variants", "openmp"),
    [
        ("-mavx512*", ("generic", "avx2"), True),
        ("-mavx2", ("generic",), True),  # the avx512 variant gets the flag too
        ("-fopenmp", ("generic", "avx2", "avx512"), False),
    ],
)
def test_variants_that_the_compiler_does_not_support_are_left_out(
    sources: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: str,
    variants: tuple[str, ...],
    openmp: bool,
) -> None:
    whole = building._build(target, sources=sources, flags=())
    if whole.variants != ("generic", "avx2", "avx512") or not whole.openmp:
        pytest.skip(f"the compiler here makes only {', '.join(whole.variants)}, OpenMP {whole.openmp}")
    assert _bits(whole.path) == (7, 1)
    monkeypatch.setenv("CXX", compiler_that(tmp_path, refuses=refuses))
    (tmp_path / "less").mkdir()
    built = building._build(tmp_path / "less", sources=sources, flags=())
    assert (built.variants, built.openmp) == (variants, openmp)
    assert _bits(built.path) == (2 ** len(variants) - 1, openmp)


def _bits(path: Path) -> tuple[int, int]:
    library = ctypes.CDLL(str(path))
    return library.clearhead_instructions(), library.clearhead_openmp()


@needs_compiler
def test_the_target_machine_comes_from_the_compiler(
    sources: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which(building._find_compiler()[0])
    text = f'case "$1" in -dumpmachine) echo aarch64-linux-gnu;; *) exec {real} "$@";; esac'
    monkeypatch.setenv("CXX", str(program(tmp_path / "compiler", text)))
    assert building._build(target, sources=sources, flags=()).variants == ("generic",)


@needs_compiler
def test_compiler_flags_from_the_environment_are_passed(sources: Path, target: Path) -> None:
    (sources / "variant.cpp").write_text(VARIANT + '\n#ifdef ASKED\n#error "here it is"\n#endif\n')
    with pytest.raises(BuildError, match=r"does not compile variant\.cpp: .*here it is"):
        build(target, sources=sources, flags=("-DASKED",))
    assert build(target, sources=sources).exists()


def test_no_flag_changes_floating_point_modes_or_requires_this_processor() -> None:
    flags = " ".join((*building._FLAGS, *(flag for flags in building._VARIANTS.values() for flag in flags)))
    for never in ("fast-math", "unsafe-math", "Ofast", "march", "mtune", "flto"):
        assert never not in flags


def is_one_line(message: str) -> bool:
    return "\n" not in message and ";" in message


@needs_compiler
@pytest.mark.parametrize(
    ("broken", "name"), [({"variant": "int f( {"}, "variant.cpp"), ({"interface": "int f( {"}, "interface.cpp")]
)
def test_a_source_that_does_not_compile_leaves_the_old_library(
    tmp_path: Path, target: Path, broken: dict[str, str], name: str
) -> None:
    (target / LIBRARY).write_text("old")
    with pytest.raises(BuildError, match=f"does not compile {name}: .*error") as caught:
        build(target, sources=write_sources(tmp_path / "broken", **broken))
    assert is_one_line(str(caught.value))
    assert [*target.iterdir()] == [target / LIBRARY]
    assert (target / LIBRARY).read_text() == "old"


@needs_compiler
def test_a_failed_link_raises_a_build_error(tmp_path: Path, target: Path) -> None:
    lacking = INTERFACE.replace("return generic::width();", "return generic::height();").replace(
        "namespace generic { int width(); }", "namespace generic { int height(); }"
    )
    with pytest.raises(BuildError, match="height"):
        build(target, sources=write_sources(tmp_path / "lacking", interface=lacking), flags=("-Wl,--no-undefined",))


def test_a_missing_compiler_raises_a_build_error(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(target))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\); install one") as caught:
        build(target)
    assert is_one_line(str(caught.value))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "which is not a program here; .* unset it"),
        ("exit 3", "two lines of C[+][+]17: it ended with code 3 and no message; set CXX"),
        ("echo; echo 'note: hm'; echo 'fatal  error: licence' >&2; exit 1", "17: fatal error: licence; set CXX"),
        ("kill -9 $$", "code -9"),
    ],
)
def test_a_broken_compiler_raises_a_build_error(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, words: str
) -> None:
    path = tmp_path / "none" if text is None else program(tmp_path / "compiler", text)
    monkeypatch.setenv("CXX", f"{path} -m64")
    with pytest.raises(BuildError, match=words) as caught:
        build(target)
    assert is_one_line(str(caught.value))
    assert not [*target.iterdir()]


def test_a_compiler_that_hangs_is_killed_with_its_children(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "child"
    monkeypatch.setenv("CXX", str(program(tmp_path / "compiler", f"sleep 300 & echo $! > {recorded}; wait")))
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may be killed before it has a child
        monkeypatch.setattr(building, "_SECONDS", seconds)
        with pytest.raises(BuildError, match="it took longer than"):
            build(target)
        if recorded.exists() and recorded.read_text():
            break
    child = int(recorded.read_text())
    for _ in range(100):
        if not _alive(child):
            return
        time.sleep(0.05)
    pytest.fail("the compiler's child is still there")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().split()[2] != "Z"


@needs_compiler
def test_a_missing_folder_raises_a_build_error(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot write the kernel into .*nowhere \(No such file"):
        build(tmp_path / "nowhere", sources=sources)


@needs_compiler
def test_the_build_command_prints_one_line(tmp_path: Path) -> None:
    folder = write_sources(tmp_path / "compiled")
    shutil.copy(SOURCES / "build.py", folder)
    command = [sys.executable, "-I", "-S", str(folder / "build.py")]  # -S: without site-packages
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"built {folder / LIBRARY} (generic")
    assert done.stdout.count("\n") == 1
    failing = os.environ | {"CXX": "/bin/false"}
    done = subprocess.run(command, env=failing, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("clearhead: /bin/false does not compile")
