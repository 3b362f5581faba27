"""Plant bugs one at a time, and report which of them the tests notice.

    python -m tests.mutants [--only TEXT ...] [--sample N] [--changed REVISION] [--log FILE] [--dry-run]

Each mutant is one edit in a copy of the sources, on which the tests named with it run until the first failure: killed,
or SURVIVED if none fails. A mutant whose function was renamed or rewritten is reported as "does not apply". Exit code 1
if a mutant survives. A command of its own, not a part of `make test`: it runs tests once per mutant.
"""

import argparse
import importlib
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutant import DoesNotApplyError, Mutant, Sources

ROOT = Path(__file__).parents[2]
FOLDERS = [name for name in ("src", "lab/src") if (ROOT / name).is_dir()]
KILLED, SURVIVED, DOES_NOT_APPLY, APPLIES = "killed", "SURVIVED", "does not apply", "applies"


def all_mutants() -> list[Mutant]:
    """Return the mutants of all files `*_bugs.py` of this folder."""
    files = sorted(Path(__file__).parent.glob("*_bugs.py"))
    return [mutant for file in files for mutant in importlib.import_module(f"tests.mutants.{file.stem}").MUTANTS]


def run(mutant: Mutant, sources: Sources, *, dry: bool) -> tuple[str, str]:
    """Run the mutant's tests on a copy of the sources that has its bug; return the outcome and a remark."""
    try:
        place, text = sources.plant(mutant)
    except DoesNotApplyError as error:
        return DOES_NOT_APPLY, str(error)
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
    if missing:
        return DOES_NOT_APPLY, f"{missing[0]} does not exist"
    file = place.path.relative_to(ROOT)
    if dry:
        return APPLIES, str(file)
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / name for name in FOLDERS]
        for name, target in zip(FOLDERS, copies, strict=True):
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / file).write_text(text)
        path = os.pathsep.join(map(str, copies))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if "kernels" in file.parts and file.suffix != ".py":
            build = [sys.executable, "-m", "clearhead.kernels.build"]
            subprocess.run(build, cwd=folder, env=environment, check=True, capture_output=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
            )
        except subprocess.TimeoutExpired:
            return KILLED, "no end within 15 minutes"
    if done.returncode not in (0, 1, 2):
        return DOES_NOT_APPLY, f"pytest ended with {done.returncode}: {done.stdout.strip().splitlines()[-1]}"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (KILLED if done.returncode else SURVIVED), failed[0].split(" - ")[0] if failed else str(file)


def changed_since(revision: str, mutants: Sequence[Mutant], sources: Sources) -> list[Mutant]:
    """Return the mutants of functions that differ from those of a git revision."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return changed(mutants, Sources(*(Path(folder) / name for name in FOLDERS)), sources)


def changed(mutants: Sequence[Mutant], before: Sources, after: Sources) -> list[Mutant]:
    """Return the mutants of functions that differ, or that only one of both has."""
    return [mutant for mutant in mutants if _text(mutant, before) != _text(mutant, after)]


def _text(mutant: Mutant, sources: Sources) -> str | None:
    """Return the function that a mutant is planted in, or None if it does not apply."""
    try:
        return sources.plant(mutant)[0].text
    except DoesNotApplyError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="mutants whose name or place contains one of these")
    parser.add_argument("--sample", type=int, metavar="N", help="a random sample of N mutants")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the sample")
    parser.add_argument("--changed", metavar="REVISION", help="mutants of functions that differ from a git revision")
    parser.add_argument("--log", type=Path, metavar="FILE", help="add the table to FILE, skip the mutants it has")
    parser.add_argument("--dry-run", action="store_true", help="report what applies, run no tests")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sources = Sources(*(ROOT / name for name in FOLDERS))
    chosen = all_mutants()
    if options.only:
        chosen = [mutant for mutant in chosen if any(text in f"{mutant.name} {mutant.where}" for text in options.only)]
    if options.changed:
        chosen = changed_since(options.changed, chosen, sources)
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    counts: Counter[str] = Counter()
    if options.log and options.log.exists():
        outcome_of = {line.split("\t")[1]: line.split("\t")[0] for line in options.log.read_text().splitlines()}
        counts.update(outcome_of[mutant.name] for mutant in chosen if mutant.name in outcome_of)
        chosen = [mutant for mutant in chosen if mutant.name not in outcome_of]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda mutant: run(mutant, sources, dry=options.dry_run), chosen)
        for mutant, (outcome, remark) in zip(chosen, outcomes, strict=True):
            counts[outcome] += 1
            print(f"{outcome:15s} {mutant.name:60s} {remark}", flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(f"{outcome}\t{mutant.name}\t{remark}\n")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no mutant was selected")
    sys.exit(1 if counts[SURVIVED] else 0)


if __name__ == "__main__":
    main()
