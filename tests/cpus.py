"""Run the tests once for each instruction set of this processor: `python tests/cpus.py [pytest arguments]`.

ATEN_CPU_CAPABILITY chooses torch's own loops, CLEARHEAD_KERNEL the variant of the compiled kernel. MKL chooses by the
processor alone, so this is an approximation of older machines.
"""

import os
import subprocess
import sys

import torch

from clearhead.kernels.library import INSTRUCTIONS, Instructions, kernel

LEVELS: dict[str, Instructions] = {"default": "generic", "avx2": "avx2", "avx512": "avx512"}


def environments() -> list[dict[str, str]]:
    """Return the environment variables of each run: every level up to the best of this processor."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    levels = list(LEVELS)[: list(LEVELS).index(best) + 1] if best in LEVELS else ["default"]
    compiled = kernel()
    supported = 0 if compiled is None else compiled.handle.clearhead_instructions()
    return [
        {"ATEN_CPU_CAPABILITY": level}
        | ({"CLEARHEAD_KERNEL": LEVELS[level]} if supported & INSTRUCTIONS[LEVELS[level]] else {})
        for level in levels
    ]


def main(arguments: list[str]) -> int:
    """Run pytest in each environment; return the number of runs that failed."""
    failed = []
    for environment in environments():
        setting = " ".join(f"{name}={value}" for name, value in environment.items())
        print(f"== {setting}", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        if subprocess.run(command, env=os.environ | environment, check=False).returncode:
            failed.append(setting)
    for setting in failed:
        print(f"failed with {setting}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
