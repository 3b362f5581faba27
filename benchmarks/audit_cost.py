"""Processor time and memory of an audit, and how they grow with tokens, heads and inputs.

    python benchmarks/audit_cost.py [--only default|tokens|heads|inputs|models] [--claims primary|all] [--threads 1]
        [--workers 1]

Every size is audited in a process of its own, after a small audit that loads everything, so that its peak memory is its
own. Times are seconds of the processor, which other processes on the machine change less than seconds on the clock. The
exponents are slopes of log time against log size over the larger half of the sizes. Times are of the process and its
workers. Added memory is how much more of the machine's memory is in use at most than at most during forward passes
alone, sampled (Linux), so other processes must not change theirs; `peak` is what the audit reports.

`default` audits the demo model on the passages in the package, with the baseline, and compares it with the forward
passes alone. The other sizes are of a GPT-2 with random weights, of heads 64 wide, without a baseline; `models` are of
12 layers of 12 heads, the second with all words of GPT-2.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from clearhead.audit.passes import forward
from clearhead.audit.run import audit
from clearhead.interfaces.torchvision_shim import ensure_torchvision

TOKENS = (64, 128, 256, 512, 1024, 2048)
HEADS = (4, 8, 12, 16)
INPUTS = (4, 8, 16, 32)
BATCH_TOKENS = 12 * 128
"""Tokens of a batch: twelve inputs, the default of the command, up to 128 tokens; fewer if they are longer."""
MODELS = ({"tokens": 128, "inputs": 64}, {"tokens": 1024, "inputs": 6, "vocabulary": 50257})
FIXED = {"tokens": 128, "heads": 12, "inputs": 6, "layers": 2}
SIZES = {"tokens": TOKENS, "heads": HEADS, "inputs": INPUTS}
PARTS = ("default", *SIZES, "models")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--claims", choices=("primary", "all"), default="primary")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.size is not None:
        print(json.dumps(_measure(json.loads(options.size), options.claims, options.workers)))
        return
    for part in PARTS if options.only is None else (options.only,):
        _print_part(part, options)


def _print_part(part: str, options: argparse.Namespace) -> None:
    print(f"\n{part}: {options.claims} claims, {options.threads} thread(s), {options.workers} worker(s)")
    if part == "default":
        sizes = [{}]
    elif part == "models":
        sizes = [{"layers": 12, "heads": 12, **model} for model in MODELS]
    else:
        sizes = [FIXED | {part: size} for size in SIZES[part]]
    rows = []
    for size in sizes:
        command = [
            sys.executable, __file__, "--claims", options.claims, "--threads", str(options.threads),
            "--workers", str(options.workers), "--size", json.dumps(size),
        ]  # fmt: skip
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        label = f"{size[part]:6d}  " if part in SIZES else f"{size}  " if size else ""
        parts = "  ".join(f"{name} {seconds:.2f}" for name, seconds in rows[-1]["theories"].items())
        row = rows[-1]
        print(
            f"{label}{row['seconds']:8.2f} s of processor ({row['clock']:.2f} on the clock), forward passes "
            f"{row['forward']:.2f}, added memory {row['memory'] / 2**20:.0f} MB, peak {row['peak'] / 2**20:.0f} MB; "
            f"on the clock: {parts}",
            flush=True,
        )
    if part in SIZES:
        half = len(rows) // 2
        growth = [
            math.log(rows[-1][name] / rows[half - 1][name]) / math.log(sizes[-1][part] / sizes[half - 1][part])
            for name in ("seconds", "forward")
        ]
        print(f"exponent from {sizes[half - 1][part]}: audit {growth[0]:.2f}, forward passes {growth[1]:.2f}")


def _measure(size: dict[str, int], claims: str, workers: int) -> dict[str, object]:
    ensure_torchvision()
    model, batches = _demo() if not size else _gpt2(**size)
    small, few = _gpt2(tokens=80, heads=2, inputs=6, layers=1)
    audit(small, few, claims=claims, baseline=None)
    with torch.no_grad(), _UsedMemory(every=0.01) as before:  # the logits of a pass exist for a moment
        model.eval()
        started = time.process_time()
        for batch in batches:
            forward(model, batch)
        alone = time.process_time() - started
    started, clock = _processor_time(), time.perf_counter()
    with _UsedMemory(every=0.2) as used:
        record = audit(model, batches, claims=claims, baseline=None if size else "auto", workers=workers)
    assert record.timing.peak_memory is not None
    return {
        "seconds": _processor_time() - started,
        "clock": time.perf_counter() - clock,
        "forward": alone,
        "memory": used.most - before.most,
        "peak": record.timing.peak_memory,
        "theories": record.timing.theory,
    }


class _UsedMemory:
    """Samples in a thread how much memory all processes use, without files: `most` bytes in the context."""

    def __init__(self, *, every: float) -> None:
        self.most, self._every = 0, every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "_UsedMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
            self.most = max(self.most, 1024 * sum(int(lines[name].split()[0]) for name in ("AnonPages", "Shmem")))
            if self._end.wait(self._every):
                return


def _processor_time() -> float:
    """Return the seconds of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _demo() -> tuple[torch.nn.Module, list[object]]:
    from clearhead.data.text import default_passages, text_batches
    from clearhead.loading.model import DEFAULT_MODEL, load_model

    loaded = load_model(DEFAULT_MODEL, max_tokens=256)
    assert loaded.encode is not None
    return loaded.model, list(text_batches(default_passages(), loaded.encode, batch_size=12))


def _gpt2(
    *, tokens: int, heads: int, inputs: int, layers: int, vocabulary: int = 512
) -> tuple[torch.nn.Module, list[object]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_head=heads, n_embd=64 * heads, n_positions=max(tokens, 8), vocab_size=vocabulary
    )
    ids = torch.randint(512, (inputs, tokens))
    return GPT2LMHeadModel(config), [{"input_ids": rows} for rows in ids.split(max(1, BATCH_TOKENS // tokens))]


if __name__ == "__main__":
    main()
