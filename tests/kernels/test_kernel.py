"""The kernel's sources compile. An installation without the kernel succeeds, so this needs its own test."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from clearhead.kernels import build as building
from clearhead.kernels.build import LIBRARY, SOURCES
from clearhead.kernels.library import INSTRUCTIONS, load
from tests.kernels.small_sources import needs_compiler
from tests.once import once

FEATURES = {
    "generic": set(),
    "avx2": {"avx2", "fma"},
    "avx512": {"avx2", "fma", "avx512f", "avx512dq", "avx512vl", "avx512bw"},
}


def compiles(source: str | Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*building._find_compiler(), *building._FLAGS, *flags, "-Werror", "-fsyntax-only", "-x", "c++", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def taken(*flags: str) -> bool:
    """Return whether the compiler accepts these flags."""
    return compiles(os.devnull, *flags).returncode == 0


def openmp() -> tuple[str, ...]:
    return ("-fopenmp",) if taken("-fopenmp") else ("-Wno-unknown-pragmas",)


@once
@needs_compiler
@pytest.mark.parametrize("name", building._VARIANTS)
def test_every_variant_compiles_without_a_warning(name: str) -> None:
    flags = building._VARIANTS[name]
    if not taken(*flags):
        pytest.skip(f"the compiler here does not know {' '.join(flags)}")
    done = compiles(SOURCES / "variant.cpp", *flags, f"-DCLEARHEAD_VARIANT={name}", *openmp())
    assert done.returncode == 0, done.stderr


@once
@needs_compiler
@pytest.mark.parametrize("has", [(), ("AVX2",), ("AVX2", "AVX512")])
def test_the_interface_compiles_without_a_warning_for_any_set_of_variants(has: tuple[str, ...]) -> None:
    done = compiles(SOURCES / "interface.cpp", *(f"-DCLEARHEAD_HAS_{name}" for name in has), *openmp())
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_this_installation_has_the_kernel() -> None:
    if os.environ.get("CLEARHEAD_NO_KERNEL"):
        pytest.skip("CLEARHEAD_NO_KERNEL is set")
    result = load(SOURCES / LIBRARY)
    assert result.kernel is not None, result.reason


@needs_compiler
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="Linux tells what an x86 can do"
)
def test_the_kernel_uses_instructions_that_the_processor_has() -> None:
    result = load(SOURCES / LIBRARY)
    if result.kernel is None:
        pytest.skip(f"the kernel is {result.reason}")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = set(next(line for line in lines if line.startswith("flags")).split())
    expected = {name for name, needs in FEATURES.items() if needs <= has and taken(*building._VARIANTS[name])}
    mask = result.kernel.handle.clearhead_instructions()
    assert {name for name, bit in INSTRUCTIONS.items() if mask & bit} == expected
