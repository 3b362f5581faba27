"""Run the kernel on random shapes under AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize`.

    python tests/kernels/sanitize.py --shapes 10000 --lanes 4 8 16

compiles stress.cpp with the kernel's own sources, once for each width of vectors, and runs it. ThreadSanitizer is not
used: it does not understand libgomp's barriers and reports all of them. Threads are tested by their results.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from clearhead.kernels import build as building
from clearhead.kernels.build import SOURCES

__all__ = ["LANES", "SANITIZERS", "compile_driver", "compile_object", "instructions", "link", "run"]

VARIANTS = {4: "generic", 8: "avx2", 16: "avx512"}
"""The variant of the kernel whose vectors have this many lanes."""
LANES = tuple(VARIANTS)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")
DRIVER = Path(__file__).parent / "stress.cpp"


def compile_object(source: Path, target: Path, *, lanes: int, flags: Sequence[str]) -> Path:
    """Compile one file of the kernel or the driver for vectors of this width."""
    defined = (f"-DCLEARHEAD_LANES={lanes}", "-DCLEARHEAD_VARIANT=generic", f"-I{source.parent}", f"-I{SOURCES}")
    _compile(*flags, *instructions(lanes), *defined, "-c", source, "-o", target)
    return target


def link(objects: Sequence[Path], target: Path, *, flags: Sequence[str]) -> Path:
    _compile(*flags, *objects, "-o", target)
    return target


def compile_driver(folder: Path, *, lanes: int, flags: Sequence[str]) -> Path:
    """Build the program from stress.cpp and the kernel."""
    sources = (DRIVER, SOURCES / "interface.cpp", SOURCES / "variant.cpp")
    made = [compile_object(path, folder / f"{path.stem}-{lanes}.o", lanes=lanes, flags=flags) for path in sources]
    return link(made, folder / f"stress-{lanes}", flags=flags)


def run(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the driver and return its output; a sanitizer's report is in stderr."""
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def _compile(*arguments: str | Path) -> None:
    command = [*building._find_compiler(), *building._FLAGS, "-fopenmp", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise building.BuildError(done.stderr)


def instructions(lanes: int) -> tuple[str, ...]:
    """Return the flags of the kernel's variant of this width; none if the processor here could not run it."""
    flags = building._VARIANTS[VARIANTS[lanes]]
    cpus = Path("/proc/cpuinfo")
    available = set(cpus.read_text().split()) if cpus.exists() else set()
    return flags if {flag.removeprefix("-m") for flag in flags} <= available else ()


def main() -> int:
    """Print one line for each width; return 1 if a sanitizer or the driver reports an error."""
    parser = argparse.ArgumentParser(description="the kernel on drawn shapes, under sanitizers")
    parser.add_argument("--shapes", type=int, default=10_000, help="for each width")
    parser.add_argument("--lanes", type=int, nargs="+", choices=LANES, default=LANES)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    result = 0
    with tempfile.TemporaryDirectory() as folder:
        for lanes in asked.lanes:
            program = compile_driver(Path(folder), lanes=lanes, flags=(*SANITIZERS, "-O2"))
            began = time.monotonic()
            done = run(program, asked.shapes, asked.seed)
            result |= done.returncode != 0
            used = VARIANTS[lanes] if instructions(lanes) else "generic"
            outcome = f"{done.stdout}{done.stderr}".rstrip()
            print(f"{outcome} ({used} instructions, {time.monotonic() - began:.0f} s)", flush=True)
    return int(result)


if __name__ == "__main__":
    sys.exit(main())
