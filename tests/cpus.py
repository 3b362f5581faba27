"""Run the tests that hang on arithmetic as other processors would: `python tests/cpus.py [pytest arguments]`.

Four things decide how a processor rounds: torch's own loops (ATEN_CPU_CAPABILITY), NumPy's and SciPy's BLAS
(OPENBLAS_CORETYPE), torch's BLAS (MKL_CBWR) and the variant of the compiled kernel (CLEARHEAD_KERNEL); and the number
of threads divides sums. Each row of the table is a run of the tests with one setting of each. `CELLS` has every level
of every factor, and every pair of levels of torch's loops, torch's BLAS and the kernel.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch

from clearhead.kernels.library import INSTRUCTIONS, kernel

ROOT = Path(__file__).parents[1]
LOOPS, OPENBLAS, MKL, KERNEL = "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE", "MKL_CBWR", "CLEARHEAD_KERNEL"
THREADS = "CLEARHEAD_TEST_THREADS"
"""Threads of torch in the tests (tests/conftest.py); BLAS and OpenMP get the same number."""
FACTORS = (LOOPS, OPENBLAS, MKL, KERNEL, THREADS)
CELLS = (
    ("default", "Prescott", "COMPATIBLE", "generic", "1"),
    ("default", "Haswell", "AVX2", "avx2", "2"),
    ("default", "Zen", "AVX512", "avx512", "1"),
    ("avx2", "Nehalem", "COMPATIBLE", "avx2", "1"),
    ("avx2", "Zen", "AVX2", "avx512", "2"),
    ("avx2", "Haswell", "AVX512", "generic", "1"),
    ("avx512", "SkylakeX", "COMPATIBLE", "avx512", "2"),
    ("avx512", "Nehalem", "AVX2", "generic", "2"),
    ("avx512", "Prescott", "AVX512", "avx2", "1"),
)
TESTS = tuple(f"tests/{name}" for name in ("theories", "numerics", "operators", "calibration", "audit", "capture",
                                           "modules", "models", "swap", "theorems", "testing"))  # fmt: skip
"""The folders whose tests compare numbers; files, pages and commands do not round."""


@dataclass(frozen=True)
class Row:
    """The outcome of the tests in one cell."""

    cell: Mapping[str, str]
    counts: Counter[str]
    failed: Sequence[str]
    seconds: float


def available(cell: Sequence[str], *, vectors: Sequence[str], kernels: Sequence[str]) -> dict[str, str]:
    """Return the variables of a cell. What this processor does not have is left to its choice.

    vectors: the levels of torch's loops that it has, smallest first; kernels: the variants of the kernel
    """
    setting = dict(zip(FACTORS, cell, strict=True))
    if setting[LOOPS] not in vectors:
        del setting[LOOPS]
    if setting[MKL].lower() not in ("compatible", *vectors):
        del setting[MKL]
    if setting[OPENBLAS] == "SkylakeX" and "avx512" not in vectors:
        del setting[OPENBLAS]
    if setting[OPENBLAS] in ("Haswell", "Zen") and "avx2" not in vectors:
        del setting[OPENBLAS]
    if setting[KERNEL] not in kernels:
        del setting[KERNEL]
    return setting


def settings() -> list[dict[str, str]]:
    """Return the different settings of this processor."""
    levels = ["default", "avx2", "avx512"]
    best = torch.backends.cpu.get_cpu_capability().lower()
    vectors = levels[: levels.index(best) + 1] if best in levels else levels[:1]
    compiled = kernel()
    supported = 0 if compiled is None else compiled.handle.clearhead_instructions()
    kernels = [name for name, bit in INSTRUCTIONS.items() if supported & bit]
    found: list[dict[str, str]] = []
    for cell in CELLS:
        setting = available(cell, vectors=vectors, kernels=kernels)
        if setting not in found:
            found.append(setting)
    return found


def environment(cell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run."""
    threads = cell[THREADS]
    return os.environ | cell | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def run(cell: Mapping[str, str], arguments: Sequence[str]) -> Row:
    """Run pytest in one cell."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", *arguments]
        done = subprocess.run(command, env=environment(cell), cwd=ROOT, capture_output=True, text=True, check=False)
        counts, failed = outcomes(results) if results.exists() else (Counter(), [])
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}"]
    return Row(cell, counts, failed, time.monotonic() - start)


def outcomes(results: Path) -> tuple[Counter[str], list[str]]:
    """Return how many tests passed, failed and were skipped, and the names of those that failed."""
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts, failed


def main(arguments: Sequence[str]) -> int:
    """Run every cell and print the table; return how many cells have a failed test."""
    arguments = arguments or ["-n", "2", "--dist", "worksteal"]
    if not any(not argument.startswith("-") and (ROOT / argument.partition("::")[0]).exists() for argument in arguments):
        arguments = [*arguments, *TESTS]
    print(f"{'torch loops':<12} {'OpenBLAS':<9} {'MKL':<11} {'kernel':<8} {'threads':<7} passed failed seconds")
    rows = []
    for cell in settings():
        row = run(cell, arguments)
        rows.append(row)
        names = [cell.get(factor, "own") for factor in FACTORS]
        print(
            f"{names[0]:<12} {names[1]:<9} {names[2]:<11} {names[3]:<8} {names[4]:<7} "
            f"{row.counts['passed']:>6} {row.counts['failed']:>6} {row.seconds:>7.0f}",
            flush=True,
        )
    red: dict[str, list[int]] = {}
    for i, row in enumerate(rows, 1):
        for name in row.failed:
            red.setdefault(name, []).append(i)
    for name, where in red.items():
        print(f"red in rows {', '.join(map(str, where))}: {name}")
    return sum(bool(row.failed) for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
