"""Every public function on NaN, infinity, huge and tiny numbers, no tokens, one token, hidden tokens and wrong tensors.

`python tests/faults/degenerate_numbers.py` tries all and prints counts. Where the definition is a number, a function
must return that number, or something that is not finite (an overflow shows); where it is NaN or infinite, a number is a
fault. It may also refuse with a ClearheadError of one line. Any other exception is a fault.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.numerics.precision import tolerance
from tests.faults.degenerate_subjects import SUBJECTS, Operands, Subject, public_names

__all__ = ["GOOD", "KINDS", "cases", "outcome"]

LENGTHS = (5, 19, 67)
"""Numbers of tokens: torch's fused kernel takes other paths, and lost NaN, for few keys."""
FACTOR = 64
"""Units of `tolerance` that rounding may cost: operators iterate, and the scores of random keys spread by tens."""


GOOD = ("right", "not finite", "refused", "not compared")


def _with_entry(value: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[x.numel() // 3] = value
        return x

    return change


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "one NaN": _with_entry(torch.nan),
    "one infinity": _with_entry(torch.inf),
    "one -infinity": _with_entry(-torch.inf),
    "one 1e38": _with_entry(1e38),
    "all NaN": lambda x: torch.full_like(x, torch.nan),
    "all times 1e38": lambda x: x * 1e38,
    "all times 1e-38": lambda x: x * 1e-38,
    "all zero": torch.zeros_like,
    "all equal": torch.ones_like,
}
"""Changes of one operand's numbers."""
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "integers": lambda x: x.long(),
    "booleans": lambda x: x > 0,
    "complex numbers": lambda x: x.to(torch.complex64),
    "one feature more": lambda x: torch.cat([x, x[..., :1]], dim=-1),
    "one axis only": lambda x: x.flatten()[:3],
    "no axis": lambda x: x.flatten()[0],
}
"""Changes of one operand that no function may accept, unless its definition does."""
TOKENS = {"no tokens": 0, "one token": 1, "two tokens": 2}
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "all hidden": lambda mask: mask & False,
    "one token left": lambda mask: mask & (torch.arange(mask.shape[-1]) == 1),
    "one query without keys": lambda mask: mask & (torch.arange(mask.shape[-1])[..., None] != 1),
}
INPUTS = frozenset({*"qkvwzx", "memberships"})
"""Operands whose first axis is that of the inputs; the others are parameters."""
HUGE = frozenset({"one infinity", "one -infinity", "one 1e38", "all times 1e38"})
KINDS = (*NUMBERS, *WRONG, *TOKENS, *MASKS, "no inputs")


def cases(name: str, kind: str, seed: int) -> Iterator[tuple[str, Operands]]:
    """Yield each changed operand's name and all operands, with the mask if the kind has one."""
    subject, length = SUBJECTS[name], LENGTHS[seed % len(LENGTHS)]
    operands = subject.draw(TOKENS.get(kind, length), torch.Generator().manual_seed(seed))
    if kind in TOKENS:
        yield "all", operands
    elif kind in MASKS:
        if subject.mask is not None and not (kind == "one query without keys" and subject.mask == "keys"):
            yield "mask", operands | {"mask": MASKS[kind](_mask(subject, operands, length))}
    elif kind == "no inputs":
        inputs = {key: x[:0] for key, x in operands.items() if key in INPUTS}
        if inputs:
            yield "all", operands | inputs
    else:
        for key, x in operands.items():
            yield key, operands | {key: {**NUMBERS, **WRONG}[kind](x)}


def _mask(subject: Subject, operands: Operands, n: int) -> Tensor:
    if subject.mask == "pairs":
        return torch.ones(n, n, dtype=torch.bool)
    first = next(iter(operands.values()))
    return torch.ones(*first.shape[:-1], dtype=torch.bool)


def outcome(name: str, kind: str, operands: Operands) -> str:
    """Return one of `GOOD`, or a description of the fault."""
    subject = SUBJECTS[name]
    try:
        actual = subject.compute(**operands)
    except ClearheadError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if actual.numel() == 0:
        return "right"
    if kind in subject.ill:
        return "not compared"
    define = subject.compute if subject.narrow and kind in HUGE else subject.definition or subject.compute
    try:
        expected = define(**{key: _double(x) for key, x in operands.items()})
    except Exception as error:
        if isinstance(error, ClearheadError) and kind in NUMBERS:  # other numbers overflow in double precision
            return "not compared"
        return f"accepted what its definition refuses ({type(error).__name__})"
    return _compare(actual.double(), expected.double(), operands)


def _double(x: Tensor) -> Tensor:
    return x.real.double() if x.is_floating_point() or x.is_complex() else x


def _compare(actual: Tensor, expected: Tensor, operands: Operands) -> str:
    if actual.shape != expected.shape:
        return f"the shape is {tuple(actual.shape)}, not {tuple(expected.shape)}"
    if bool((actual.isfinite() & ~expected.isfinite()).any()):
        return "a number where the definition is not finite"
    both = actual.isfinite() & expected.isfinite()
    size = max([1e-30, *(float(x.abs().max()) for x in (expected[both],) if x.numel())])
    error = float((actual - expected)[both].abs().max()) / size if bool(both.any()) else 0.0
    if error > FACTOR * tolerance(torch.float32):
        return f"wrong by {error:.1e} of the largest number"
    return "right" if bool(both.all()) else "not finite"


def main() -> int:
    """Try everything; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(3))
    parser.add_argument("--function", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    options: Any = parser.parse_args()
    warnings.simplefilter("ignore")
    results = Counter[str]()
    missing = public_names() - set(SUBJECTS)
    if missing:
        print(f"fault: not tried: {', '.join(sorted(missing))}")
    for name in options.function:
        for kind in options.kind:
            for seed in options.seeds:
                for operand, operands in cases(name, kind, seed):
                    result = outcome(name, kind, operands)
                    if result not in GOOD:
                        print(f'fault: --function "{name}" --kind "{kind}" --seeds {seed}: {operand}: {result[:200]}')
                        result = "faults"
                    results[result] += 1
    print(
        f"{len(options.function)} functions and modules, {len(options.kind)} kinds, {results.total()} calls, "
        f"seeds {' '.join(map(str, options.seeds))}: "
        + ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
    )
    return int(results["faults"] > 0 or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
