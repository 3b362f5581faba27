"""Plant bugs one at a time, and report which of them the tests detect.

    python tests/faults/inject.py [--only NAME ...] [--jobs 2]

--only takes the first letters of names: `--only swap:` plants every bug whose name begins with "swap:".

Each fault is one replacement in a copy of the package, on which the tests named with it run until the first failure.
Exit code 1 if a fault survives. A command of its own, not a part of `make test`: it runs the tests once per fault.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from attack_faults import ATTACK_FAULTS
from audit_faults import AUDIT_FAULTS
from calibration_faults import CALIBRATION_FAULTS
from comparison_faults import COMPARISON_FAULTS
from crate_faults import CRATE_FAULTS
from data_faults import DATA_FAULTS
from experiment_faults import EXPERIMENT_FAULTS
from fault import Fault
from interface_faults import INTERFACE_FAULTS
from kernel_pca_faults import KERNEL_PCA_FAULTS
from map_faults import MAP_FAULTS
from margin_claim_faults import MARGIN_CLAIM_FAULTS
from margin_faults import MARGIN_FAULTS
from model_faults import MODEL_FAULTS
from operator_faults import OPERATOR_FAULTS
from presentation_faults import PRESENTATION_FAULTS
from pursuit_faults import PURSUIT_FAULTS
from rate_claim_faults import RATE_CLAIM_FAULTS
from rate_faults import RATE_FAULTS
from report_faults import REPORT_FAULTS
from robustness_metrics_faults import ROBUSTNESS_METRICS_FAULTS
from scale_faults import SCALE_FAULTS
from scaled_faults import SCALED_FAULTS
from stored_faults import STORED_FAULTS
from study_faults import STUDY_FAULTS
from symmetric_faults import SYMMETRIC_FAULTS
from training_faults import TRAINING_FAULTS

ROOT = Path(__file__).parents[2]
FAULTS = (
    OPERATOR_FAULTS
    + SYMMETRIC_FAULTS
    + PURSUIT_FAULTS
    + SCALED_FAULTS
    + MARGIN_FAULTS
    + MARGIN_CLAIM_FAULTS
    + RATE_CLAIM_FAULTS
    + RATE_FAULTS
    + CRATE_FAULTS
    + MODEL_FAULTS
    + DATA_FAULTS
    + MAP_FAULTS
    + KERNEL_PCA_FAULTS
    + AUDIT_FAULTS
    + INTERFACE_FAULTS
    + EXPERIMENT_FAULTS
    + STORED_FAULTS
    + TRAINING_FAULTS
    + STUDY_FAULTS
    + REPORT_FAULTS
    + PRESENTATION_FAULTS
    + COMPARISON_FAULTS
    + CALIBRATION_FAULTS
    + SCALE_FAULTS
    + ATTACK_FAULTS
    + ROBUSTNESS_METRICS_FAULTS
)


@dataclass(frozen=True)
class Outcome:
    fault: Fault
    detected: bool
    by: str


def inject(fault: Fault) -> Outcome:
    """Run the fault's tests on a copy of the package that has it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / "clearhead" / fault.file
        text = file.read_text()
        if text.count(fault.right) != 1:
            raise SystemExit(
                f"{fault.name}: {fault.right!r} occurs {text.count(fault.right)} times in {fault.file}; update it"
            )
        file.write_text(text.replace(fault.right, fault.wrong))
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if "kernels" in file.parts and file.suffix != ".py":
            subprocess.run(
                [sys.executable, "-m", "clearhead.kernels.build"],
                cwd=copy,
                env=environment,
                check=True,
                capture_output=True,
            )
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Outcome(fault, detected=done.returncode != 0, by=failed[0].split(" - ")[0] if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if not options.only or fault.name.startswith(tuple(options.only))]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(inject, chosen):
            outcomes.append(outcome)
            print(
                f"{'detected' if outcome.detected else 'SURVIVED':9s} {outcome.fault.name:44s} {outcome.by}", flush=True
            )
    survived = sum(not outcome.detected for outcome in outcomes)
    print(f"{len(outcomes) - survived} of {len(outcomes)} detected")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
