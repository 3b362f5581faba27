"""The attacks by name, and the suites of `clearhead attack`. Attacks of other packages run when they are named."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import Tensor

from clearhead.errors import InputError
from clearhead.registry import Registry
from clearhead_lab.robustness.attacks import fgsm, pgd, spsa
from clearhead_lab.robustness.library_attacks import auto_attack, carlini_wagner, hop_skip_jump

__all__ = ["ATTACKS", "SUITES", "Attack", "Protocol", "Suite", "SuiteName", "select_attacks"]

SuiteName = Literal["fast", "standard", "full"]
Protocol = Literal["pixels", "paper"]
PAPER_ATTACKS = ("fgsm", "pgd", "spsa")
PAPER_STEPS, PAPER_STEP = 20, 0.15
"""Steps of the paper's PGD, and their size relative to the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack with its settings.

    title: for people, and for the finished parts of an evaluation, which another title does not use again
    run: (scores, images, labels, *, eps, generator) -> images
    settings: further arguments of `run`
    access: what it uses of the model: gradients ("white box"), or scores or decisions alone ("black box")
    iterative: False if it takes one step
    most: attack the first images only, this many; None for all
    """

    title: str
    run: Callable[..., Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    access: Literal["white box", "black box"] = "white box"
    iterative: bool = True
    most: int | None = None

    def __call__(self, scores: Any, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
        """Return the attacked images."""
        return self.run(scores, images, labels, **self.settings, **options)


def _fgsm(*arguments: Any, generator: Any, **options: Any) -> Tensor:
    """Run FGSM, which draws nothing."""
    return fgsm(*arguments, **options)


def _spsa(*, steps: int, samples: int, most: int) -> Attack:
    return Attack(
        title=f"SPSA-{steps}", run=spsa, settings={"steps": steps, "samples": samples}, access="black box", most=most
    )


def _pgd(*, steps: int, restarts: int) -> Attack:
    title = f"PGD-{steps}" if restarts == 1 else f"PGD-{steps}x{restarts}"
    return Attack(title=title, run=pgd, settings={"steps": steps, "restarts": restarts})


def _auto(
    title: str, *attacks: str, access: Literal["white box", "black box"] = "white box", **settings: Any
) -> Attack:
    return Attack(title=title, run=partial(auto_attack, attacks=attacks), settings=settings, access=access)


FGSM = Attack(title="FGSM", run=_fgsm, iterative=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The attacks of a suite by name, and its corruptions: none, Clearhead's eight, or ImageNet-C's fifteen."""

    attacks: Mapping[str, Attack]
    corruptions: Literal["none", "small", "imagenet-c"] = "none"


SUITES: Mapping[str, Suite] = {
    "fast": Suite(
        attacks={
            "fgsm": FGSM, "pgd": _pgd(steps=20, restarts=1), "spsa": _spsa(steps=20, samples=64, most=64),
        }
    ),
    "standard": Suite(
        attacks={
            "fgsm": FGSM, "pgd": _pgd(steps=40, restarts=5), "apgd-ce": _auto("APGD", "apgd-ce"),
            "apgd-t": _auto("APGD-T", "apgd-t"),
            "square": _auto("Square-1000", "square", access="black box", queries=1000),
            "spsa": _spsa(steps=40, samples=64, most=64),
        },
        corruptions="small",
    ),
    "full": Suite(
        attacks={
            "fgsm": FGSM, "pgd": _pgd(steps=100, restarts=10),
            "autoattack": _auto("AutoAttack", "apgd-ce", "apgd-t", "fab-t", "square"),
            "square": _auto("Square-5000", "square", access="black box"),
            "cw": Attack(title="CW", run=carlini_wagner),
            "hopskipjump": Attack(title="HopSkipJump", run=hop_skip_jump, access="black box", most=128),
            "spsa": _spsa(steps=40, samples=128, most=256),
        },
        corruptions="imagenet-c",
    ),
}  # fmt: skip
"""fast needs no extra; the others need `attacks`, and the corruptions of full `corruptions`."""


def _expected(name: str, unit: Any) -> str:
    own = any(name in suite.attacks for suite in SUITES.values())
    return "" if isinstance(unit, Attack) and not own else "an Attack with a name that no suite has"


ATTACKS = Registry[Attack]("clearhead_lab.attacks", "attack", _expected, package="clearhead-lab")
"""The attacks of other packages."""


def select_attacks(suite: str, chosen: Sequence[str | Attack] = (), *, protocol: str = "pixels") -> dict[str, Attack]:
    """Return the attacks of a suite, or the chosen ones, by name.

    chosen: names, with the settings of the suite, or of the next larger suite that has the attack; names of other
        packages' attacks; and attacks, whose name is their title

    The protocol "paper" has the attacks that work without bounds of pixels, and its own PGD.
    """
    if suite not in SUITES:
        raise InputError(f"there is no suite {suite!r}; choose among {', '.join(SUITES)}")
    if protocol not in ("pixels", "paper"):
        raise InputError(f"there is no protocol {protocol!r}; choose pixels or paper")
    order = list(SUITES)
    known: dict[str, Attack] = {}
    for other in [*order[order.index(suite) :], *order]:
        for name, attack in SUITES[other].attacks.items():
            known.setdefault(name, attack)
    chosen = chosen or (PAPER_ATTACKS if protocol == "paper" else tuple(SUITES[suite].attacks))
    attacks: dict[str, Attack] = {}
    for one in chosen:
        name = one if isinstance(one, str) else one.title
        if not re.fullmatch(r"[\w. +-]+", name):
            raise InputError(f"an attack's name or title names files; expected letters and numbers; got {name!r}")
        if isinstance(one, str) and one not in known and one not in ATTACKS:
            raise InputError(
                f"there is no attack {one!r}; choose among {', '.join([*sorted(known), *ATTACKS.names()])}"
            )
        if protocol == "paper" and name not in PAPER_ATTACKS:
            raise InputError(f"the paper's protocol has no {name}; it has {', '.join(PAPER_ATTACKS)}")
        attacks[name] = one if isinstance(one, Attack) else known[one] if one in known else ATTACKS.get(one)
    if protocol == "paper" and "pgd" in attacks:
        attacks["pgd"] = Attack(title=f"PGD-{PAPER_STEPS}", run=_paper_pgd)
    return attacks


def _paper_pgd(*arguments: Any, eps: float, **options: Any) -> Tensor:
    return pgd(*arguments, eps=eps, steps=PAPER_STEPS, step_size=PAPER_STEP * eps, **options)
