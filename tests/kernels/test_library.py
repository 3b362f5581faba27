"""Loading the kernel: once, on first use, only with supported instructions; if it is missing, with a reason."""

import ctypes
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clearhead.errors import InputError
from clearhead.kernels import library
from clearhead.kernels.build import CHECKSUM, LIBRARY, SOURCES, build, checksum_line
from clearhead.kernels.library import ABI, INSTRUCTIONS, KernelStatus, load
from tests.kernels.small_sources import INTERFACE, needs_compiler, write_sources
from tests.once import once


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub library on a processor with all instructions."""
    return _built(tmp_path_factory.mktemp("whole"), INTERFACE.replace("1 | 2 * HAS2 | 4 * HAS4", "7"))


def _built(folder: Path, interface: str) -> Path:
    return build(folder, sources=write_sources(folder / "sources", interface=interface))


@needs_compiler
@pytest.mark.parametrize(("wanted", "expected"), [("", "avx512"), *((name, name) for name in INSTRUCTIONS)])
def test_the_best_or_the_requested_instructions_are_used(built: Path, wanted: str, expected: str) -> None:
    result = load(built, wanted=wanted)
    assert result.reason == ""
    assert result.kernel is not None
    assert (result.kernel.instructions, result.kernel.path) == (expected, built)
    assert result.kernel.openmp == bool(result.kernel.handle.clearhead_openmp())


@needs_compiler
@pytest.mark.parametrize(("mask", "best", "lacking"), [(1, "generic", ["avx2", "avx512"]), (3, "avx2", ["avx512"])])
def test_unsupported_instructions_are_never_chosen(tmp_path: Path, mask: int, best: str, lacking: list[str]) -> None:
    path = _built(tmp_path, INTERFACE.replace("1 | 2 * HAS2 | 4 * HAS4", str(mask)))
    kernel = load(path).kernel
    assert kernel is not None
    assert kernel.instructions == best
    for name in lacking:
        with pytest.raises(ValueError, match=rf"CLEARHEAD_KERNEL={name} names .* does not have; set it to generic"):
            load(path, wanted=name)


def test_an_unknown_setting_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CLEARHEAD_KERNEL=sse9 is not known; set it to off, generic, avx2, avx512"):
        load(tmp_path / LIBRARY, wanted="sse9")


def test_a_kernel_that_is_missing_or_switched_off_has_a_reason(tmp_path: Path) -> None:
    assert load(tmp_path / LIBRARY).reason == "not built; python -m clearhead.kernels.build builds it"
    assert load(tmp_path / LIBRARY, wanted="off").reason.startswith("switched off by CLEARHEAD_KERNEL=off; ")
    with pytest.raises(ValueError, match="CLEARHEAD_KERNEL=generic needs the compiled kernel, but it is not built"):
        load(tmp_path / LIBRARY, wanted="generic")


def test_a_library_that_the_loader_refuses_has_a_reason(tmp_path: Path) -> None:
    content = b"\x7fELF of another machine"
    (tmp_path / LIBRARY).write_bytes(content)
    (tmp_path / CHECKSUM).write_text(checksum_line(content))
    result = load(tmp_path / LIBRARY)
    assert result.kernel is None
    assert re.fullmatch(r"built, but cannot be loaded here \(.+\); python -m \S+ builds it again", result.reason)


def _truncate(library: Path) -> None:
    library.write_bytes(library.read_bytes()[:-4096])


def _flip_a_bit(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)


def _delete_the_checksum(library: Path) -> None:
    library.with_name(CHECKSUM).unlink()


@needs_compiler
@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, _delete_the_checksum])
def test_a_damaged_library_is_not_loaded(
    built: Path, tmp_path: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(built, tmp_path)
    shutil.copy(built.with_name(CHECKSUM), tmp_path)
    path = tmp_path / LIBRARY
    assert load(path).kernel is not None
    damage(path)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: pytest.fail(f"{path} was loaded, which can end the process"))
    reason = (
        "built, but its content does not match _symmetric.so.sha256; python -m clearhead.kernels.build builds it again"
    )
    assert load(path) == KernelStatus(kernel=None, reason=reason)
    with pytest.raises(InputError, match="CLEARHEAD_KERNEL=generic needs the compiled kernel, but it is built, but"):
        load(path, wanted="generic")


@needs_compiler
@pytest.mark.parametrize("change", [("VERSION", "VERSION + 1"), ("clearhead_abi", "clearhead_other")])
def test_a_library_of_another_version_is_not_loaded(tmp_path: Path, change: tuple[str, str]) -> None:
    result = load(_built(tmp_path, INTERFACE.replace(*change, 1)))
    assert result.kernel is None
    assert result.reason.startswith("built from the sources of another version; ")


def test_sources_and_loader_have_the_same_version() -> None:
    text = (SOURCES / "interface.cpp").read_text()
    assert re.findall(r"clearhead_abi\((?:void)?\)\s*\{\s*return (\d+);", text) == [str(ABI)]


def test_the_library_is_loaded_once_even_from_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def slowly(path: Path, *, wanted: str) -> KernelStatus:
        calls.append(path)
        time.sleep(0.1)  # gives the other threads time to arrive
        return load(path, wanted="off")

    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(library, "load", slowly)
    with ThreadPoolExecutor(7) as pool:
        result = [*pool.map(lambda _: library.status(), range(23))]
    assert calls == [SOURCES / LIBRARY]
    assert all(status is result[0] for status in result)
    assert library.kernel() is None


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


@once
def test_the_environment_variable_is_read_on_first_use() -> None:
    code = (
        "import os; from clearhead.kernels.library import status\n"
        "os.environ['CLEARHEAD_KERNEL'] = 'off'; print(status().reason)\n"
        "os.environ['CLEARHEAD_KERNEL'] = 'sse9'; print(status().reason)"
    )
    first, second = _python(code).splitlines()
    assert first == second
    assert first.startswith("switched off")


@once
@needs_compiler
def test_torch_and_the_kernel_share_one_openmp_runtime(built: Path) -> None:
    code = (
        "from pathlib import Path; from clearhead.kernels.library import load\n"
        f"kernel = load(Path({str(built)!r})).kernel\n"
        "from threadpoolctl import threadpool_info\n"
        "print(kernel.openmp, [x['prefix'] for x in threadpool_info() if x['user_api'] == 'openmp'])"
    )
    shown = _python(code)
    if shown.startswith("False") or "libomp" in shown:
        pytest.skip(f"torch or the compiler here is without GNU's OpenMP: {shown}")
    assert shown == "True ['libgomp']"


@once
def test_importing_clearhead_does_not_load_the_kernel() -> None:
    code = (
        "import clearhead.operators, clearhead.modules, pathlib\n"
        "maps = pathlib.Path('/proc/self/maps')\n"
        f"print({LIBRARY!r} in maps.read_text() if maps.exists() else False)"
    )
    assert _python(code) == "False"
