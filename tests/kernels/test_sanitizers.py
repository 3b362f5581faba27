"""The kernel under sanitizers on some random shapes; `make sanitize` uses ten thousand."""

import re
import shutil
from pathlib import Path

import pytest

from clearhead.kernels.build import SOURCES, BuildError
from tests.kernels import sanitize
from tests.kernels.small_sources import needs_compiler
from tests.once import once

pytestmark = [needs_compiler, once]
FLAGS = (*sanitize.SANITIZERS, "-O0")  # slower to run than with -O1, and much quicker to compile
LANES = 8


def sanitizers_work(folder: Path) -> str:
    """Return why sanitizers do not work here, in one line; empty if they do."""
    probe = folder / "probe.cpp"
    probe.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
    try:
        made = sanitize.compile_object(probe, folder / "probe.o", lanes=LANES, flags=FLAGS)
        done = sanitize.run(sanitize.link([made], folder / "probe", flags=FLAGS))
    except BuildError as error:
        return f"the compiler here has no sanitizers: {error}"
    return f"sanitizers do not run here: {done.stderr}" if done.returncode else ""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stress")
    if why := sanitizers_work(folder):
        pytest.skip(" ".join(why.split())[:200])
    return sanitize.compile_driver(folder, lanes=LANES, flags=FLAGS)


def test_sanitizers_report_nothing(driver: Path) -> None:
    done = sanitize.run(driver, 211)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "211 shapes" in done.stdout
    assert done.stdout.endswith(" 0 failures\n")
    assert done.stderr == ""
    # The random shapes include heads computed row by row, some by several threads, some compared with double precision.
    counts = re.search(
        r"(\d+) row by row, (\d+) of these by several threads; \d+ compared .*?, (\d+) of these", done.stdout
    )
    assert counts is not None
    assert all(int(count) for count in counts.groups())


@pytest.mark.parametrize(("lanes", "macro"), [(8, "__AVX2__"), (16, "__AVX512F__")])
def test_each_width_is_compiled_with_its_instructions(tmp_path: Path, lanes: int, macro: str) -> None:
    if not sanitize.instructions(lanes):
        pytest.skip(f"the processor here has no instructions for {lanes} lanes")
    source = tmp_path / "source.cpp"
    source.write_text(f"#if !defined({macro}) || CLEARHEAD_LANES != {lanes}\n#error without them\n#endif\n")
    assert sanitize.compile_object(source, tmp_path / "source.o", lanes=lanes, flags=()).exists()
    with pytest.raises(BuildError, match="without them"):
        sanitize.compile_object(source, tmp_path / "other.o", lanes=4, flags=())


def test_control_an_output_one_float_too_short_is_reported(driver: Path) -> None:
    done = sanitize.run(driver, 211, 1, 0, "short")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "forward.h" in done.stderr


def test_control_a_reference_with_another_scale_fails(driver: Path) -> None:
    done = sanitize.run(driver, 53, 1, 0, "other")
    assert done.returncode == 1
    assert "attention (" in done.stdout
    assert "gradient for k (" in done.stdout


def test_control_scratch_memory_one_float_too_short_is_reported(driver: Path, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "sources", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    file = tmp_path / "sources" / "backward.h"
    text = file.read_text()
    assert text.count("a_dot_o(scratch.take(tiling.padded))") == 1
    file.write_text(text.replace("scratch.take(tiling.padded))", "scratch.take(tiling.padded - 1))"))
    broken = sanitize.compile_object(tmp_path / "sources/variant.cpp", tmp_path / "x.o", lanes=LANES, flags=FLAGS)
    objects = [driver.parent / f"{name}-{LANES}.o" for name in ("stress", "interface")]
    done = sanitize.run(sanitize.link([*objects, broken], tmp_path / "stress", flags=FLAGS), 53)
    assert done.returncode != 0
    assert "use-after-poison" in done.stderr
    assert "backward.h" in done.stderr
