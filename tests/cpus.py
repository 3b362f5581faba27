"""Run the tests of arithmetic as other processors would round: `python tests/cpus.py [--rows 1 2] [pytest arguments]`.

Four things decide how a processor rounds: torch's own loops (ATEN_CPU_CAPABILITY), the BLAS of NumPy and SciPy
(OPENBLAS_CORETYPE), torch's BLAS (MKL_CBWR) and the variant of the compiled kernel (CLEARHEAD_KERNEL). The number of
threads divides sums. Each row of the table is a run of the tests with one level of each.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import torch

from clearhead.kernels.library import INSTRUCTIONS, kernel

ROOT = Path(__file__).parents[1]
FACTORS = {
    "ATEN_CPU_CAPABILITY": "torch loops",
    "OPENBLAS_CORETYPE": "OpenBLAS",
    "MKL_CBWR": "MKL",
    "CLEARHEAD_KERNEL": "kernel",
    "CLEARHEAD_TEST_THREADS": "threads",
}
"""Environment variables and the heads of their columns. conftest.py gives torch the number of threads."""
CELLS = (
    ("default", "Haswell", "AVX2", "avx2", "2"),
    ("default", "Prescott", "COMPATIBLE", "generic", "1"),
    ("default", "Zen", "AVX512", "avx512", "1"),
    ("avx2", "Nehalem", "COMPATIBLE", "avx2", "1"),
    ("avx2", "Zen", "AVX2", "avx512", "2"),
    ("avx2", "Haswell", "AVX512", "generic", "1"),
    ("avx512", "SkylakeX", "COMPATIBLE", "avx512", "2"),
    ("avx512", "Nehalem", "AVX2", "generic", "2"),
    ("avx512", "Prescott", "AVX512", "avx2", "1"),
)
"""Every level of every factor, and every pair of levels of torch's loops, MKL and the kernel."""
NEEDS = {"SkylakeX": "avx512", "Zen": "avx2", "Haswell": "avx2", "AVX512": "avx512", "AVX2": "avx2"}
"""The instructions that a level needs."""
TESTS = (
    "tests/theories", "tests/numerics", "tests/operators", "tests/calibration", "tests/audit", "tests/capture",
    "tests/modules", "lab/tests/theorems",
)  # fmt: skip
"""The folders whose tests compare numbers; files, pages and commands do not round."""


def available(cell: Sequence[str], *, loops: Sequence[str], kernels: Sequence[str]) -> dict[str, str]:
    """Return the variables of a cell, without those whose level this processor does not have.

    loops: the levels of torch's loops that it has; kernels: the variants of the kernel
    """
    setting = dict(zip(FACTORS, cell, strict=True))
    has = {"ATEN_CPU_CAPABILITY": loops, "CLEARHEAD_KERNEL": kernels}
    return {
        name: level
        for name, level in setting.items()
        if (level in has[name] if name in has else NEEDS.get(level, "default") in ("default", *loops))
    }


def settings() -> list[dict[str, str]]:
    """Return the settings of this processor, each once."""
    levels = ["default", "avx2", "avx512"]
    best = torch.backends.cpu.get_cpu_capability().lower()
    loops = levels[: levels.index(best) + 1] if best in levels else levels[:1]
    compiled = kernel()
    supported = 0 if compiled is None else compiled.handle.clearhead_instructions()
    kernels = [name for name, bit in INSTRUCTIONS.items() if supported & bit]
    found: list[dict[str, str]] = []
    for cell in CELLS:
        setting = available(cell, loops=loops, kernels=kernels)
        if setting not in found:
            found.append(setting)
    return found


def run(setting: Mapping[str, str], arguments: Sequence[str]) -> tuple[Counter[str], list[str]]:
    """Run pytest with a setting; return how many tests passed, failed and were skipped, and which failed."""
    threads = setting["CLEARHEAD_TEST_THREADS"]
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", *arguments]
        done = subprocess.run(
            command, env=os.environ | numbers | setting, cwd=ROOT, capture_output=True, text=True, check=False
        )
        counts, failed = outcomes(results) if results.exists() else (Counter(), [])
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}"]
    return counts, failed


def outcomes(results: Path) -> tuple[Counter[str], list[str]]:
    """Return how many tests passed, failed and were skipped by an XML file of pytest, and which failed."""
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(results).iter("testcase"):
        kinds = {element.tag for element in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[outcome] += 1
        if outcome == "failed":
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return counts, failed


def main(arguments: Sequence[str]) -> int:
    """Run the rows and print the table and the tests that failed; return how many rows have one."""
    parser = argparse.ArgumentParser(description="Run the tests of arithmetic as other processors would round.")
    parser.add_argument("--rows", type=int, nargs="+", help="rows of the table, from 1; default: all")
    options, others = parser.parse_known_args(arguments)
    if not any((ROOT / other.partition("::")[0]).exists() for other in others):
        others = [*others, *TESTS]
    print("row", *(f"{title:<11}" for title in FACTORS.values()), "passed failed seconds", flush=True)
    red: dict[str, list[int]] = {}
    for number, setting in enumerate(settings(), 1):
        if options.rows and number not in options.rows:
            continue
        start = time.monotonic()
        counts, failed = run(setting, others)
        levels = (f"{setting.get(factor, 'own'):<11}" for factor in FACTORS)
        seconds = time.monotonic() - start
        print(f"{number:<3}", *levels, f"{counts['passed']:>6} {counts['failed']:>6} {seconds:>7.0f}", flush=True)
        for name in failed:
            red.setdefault(name, []).append(number)
    for name, rows in red.items():
        print(f"red in row {', '.join(map(str, rows))}: {name}")
    return len({row for rows in red.values() for row in rows})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
