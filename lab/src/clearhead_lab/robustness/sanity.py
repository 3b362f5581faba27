"""Checks of an evaluation itself, after Carlini et al. (2019, arXiv 1902.06705): does it overstate the robustness?

Two attacks are compared on the same images by the images that only one of them fools. The one that should be stronger
is flagged if the other fools more, with a one-sided sign test at 5%.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor, nn

from clearhead_lab.robustness.attacks import fgsm, pgd, score_gradient
from clearhead_lab.robustness.binarisation import binarisation_test
from clearhead_lab.robustness.classifier import PixelClassifier, one_step_surrogate
from clearhead_lab.robustness.results import AttackResult, SanityLine, budget_text
from clearhead_lab.robustness.suites import Attack

__all__ = ["CHECKS", "Evidence", "is_weaker"]

LEVEL = 0.05
MOST_ZERO = 0.05
"""The largest share of images whose gradient may be zero."""
STEPS = (5, 20, 80)
UNBOUNDED_STEPS = 60
BINARISED, SOLVED, FEWEST = 16, 0.95, 5
"""Images of the binarisation test, the share that an attack must solve, and the fewest problems that decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checks use: some correctly classified images, a budget, and the results of the attacks.

    images: (m, c, y, x), at least one, with their labels; results, all_labels: of all images
    twin: another model for the same classes, for a transfer attack
    """

    classifier: PixelClassifier
    images: Tensor
    labels: Tensor
    eps: float
    attacks: dict[str, Attack]
    results: tuple[AttackResult, ...]
    all_labels: Tensor
    batch_size: int
    seed: int
    twin: PixelClassifier | None = None

    def generator(self) -> torch.Generator:
        """Return a new generator; every check draws the same numbers."""
        return torch.Generator().manual_seed(self.seed)

    def right(self, attack: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return which of the images are still correctly classified after an attack (images, labels) -> images."""
        return torch.cat(
            [self.classifier.predict(attack(images, labels)) == labels for images, labels in self.batches()]
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the images and labels in batches."""
        sizes = torch.split(self.images, self.batch_size), torch.split(self.labels, self.batch_size)
        return zip(*sizes, strict=True)

    def right_by_pgd(self, steps: int, scores: PixelClassifier | None = None) -> Tensor:
        """Return the same for PGD, with gradients of the classifier or of `scores`."""
        generator = self.generator()
        attacked = scores or self.classifier
        return self.right(lambda x, y: pgd(attacked, x, y, eps=self.eps, steps=steps, generator=generator))

    def right_by_results(self, keep: Callable[[Attack], bool]) -> Tensor | None:
        """Return which images no kept attack fooled, of those that all kept attacks were run on."""
        kept = [r for r in self.results if r.eps == self.eps and keep(self.attacks[r.attack])]
        if not kept:
            return None
        count = min(len(result.predicted) for result in kept)
        predicted = torch.stack([torch.tensor(result.predicted[:count]) for result in kept])
        return (predicted == self.all_labels[:count].cpu()).all(dim=0)


def is_weaker(strong: Tensor, weak: Tensor) -> tuple[bool, int, int]:
    """Return whether the attack that should be stronger is weaker, and the images that each of the two alone fooled.

    strong, weak: which images each left correctly classified, (n,)
    """
    by_strong, by_weak = int((~strong & weak).sum()), int((strong & ~weak).sum())
    p_value = float(binom.sf(by_weak - 1, by_strong + by_weak, 0.5)) if by_weak else 1.0
    return p_value < LEVEL, by_strong, by_weak


def _line(name: str, passes: bool, text: str) -> SanityLine:
    return SanityLine(name=name, status="PASS" if passes else "FLAG", text=text)


def _not_run(name: str, why: str) -> SanityLine:
    return SanityLine(name=name, status="not run", text=why)


def budget_zero(evidence: Evidence) -> SanityLine:
    """Check that attacks with budget 0 leave every prediction as it is."""
    right = evidence.right(lambda x, y: fgsm(evidence.classifier, x, y, eps=0.0))
    right &= evidence.right(lambda x, y: pgd(evidence.classifier, x, y, eps=0.0, steps=2))
    changed = int((~right).sum())
    text = "every prediction is unchanged"
    if changed:
        text = f"{changed} of {len(right)} predictions change: the forward pass is random, against RobustBench's rules"
    return _line("budget 0 equals clean", not changed, text)


def unbounded(evidence: Evidence) -> SanityLine:
    """Check that an attack without a budget fools the model on every image."""
    generator = evidence.generator()
    right = evidence.right(
        lambda x, y: pgd(evidence.classifier, x, y, eps=1.0, steps=UNBOUNDED_STEPS, generator=generator)
    )
    share = float(right.double().mean())
    text = "accuracy 0%" if not share else f"{share:.1%} of the images stay correct: the attack does not work here"
    return _line("unbounded attack reaches 0", share == 0, text)


def iterative(evidence: Evidence) -> SanityLine:
    """Check that iterative attacks fool at least the images that the single step does."""
    name = "iterative not weaker than single step"
    strong = evidence.right_by_results(lambda attack: attack.iterative and attack.access == "white box")
    weak = evidence.right_by_results(lambda attack: not attack.iterative)
    if strong is None or weak is None:
        return _not_run(name, "it needs an iterative attack and FGSM")
    return _compared(evidence, name, strong, weak, "iterative attacks", "the single step")


def black_box(evidence: Evidence) -> SanityLine:
    """Check that attacks with gradients are not weaker than those without."""
    name = "white box not weaker than black box"
    weak = evidence.right_by_results(lambda attack: attack.access == "black box")
    strong = evidence.right_by_results(lambda attack: attack.access == "white box")
    if strong is None or weak is None:
        return _not_run(name, "it needs an attack of each kind")
    return _compared(evidence, name, strong[: len(weak)], weak, "attacks with gradients", "those without")


def _compared(
    evidence: Evidence, name: str, strong: Tensor, weak: Tensor, strong_name: str, weak_name: str
) -> SanityLine:
    flagged, by_strong, by_weak = is_weaker(strong, weak)
    text = f"at {budget_text(evidence.eps)} {strong_name} alone fool {by_strong} of {len(strong)} images, "
    text += f"{weak_name} alone {by_weak}"
    return _line(name, not flagged, text + (": gradients are masked; the worst case is reported" if flagged else ""))


def more_steps(evidence: Evidence) -> SanityLine:
    """Check that more steps of PGD never help the defender."""
    right = [evidence.right_by_pgd(steps) for steps in STEPS]
    flagged = any(is_weaker(more, fewer)[0] for fewer, more in itertools.pairwise(right))
    shares = ", ".join(f"{float(r.double().mean()):.1%} with {n}" for r, n in zip(right, STEPS, strict=True))
    return _line(
        "more steps never help the defender", not flagged, f"accuracy at {budget_text(evidence.eps)} {shares} steps"
    )


def gradients(evidence: Evidence) -> SanityLine:
    """Check that gradients are not zero and are finite."""
    found = torch.cat([score_gradient(evidence.classifier, x, y).flatten(1) for x, y in evidence.batches()])
    zero = float((found == 0).all(dim=1).double().mean())
    broken = float((~torch.isfinite(found)).any(dim=1).double().mean())
    text = f"{zero:.1%} of the images have a gradient of zero, {broken:.1%} one that is not finite"
    return _line("gradients are informative", zero <= MOST_ZERO and not broken, text)


def transfer(evidence: Evidence) -> SanityLine:
    """Check that images which fool a twin do not fool the model more often than its own gradients do."""
    name = "transfer not stronger than white box"
    if evidence.twin is None:
        return _not_run(name, "no twin was given; name a softmax model of the same classes with --twin")
    strong, weak = (evidence.right_by_pgd(STEPS[1], scores) for scores in (None, evidence.twin))
    return _compared(evidence, name, strong, weak, "the model's gradients", "the twin's")


def surrogate(evidence: Evidence) -> SanityLine:
    """Check that gradients through all iterations are not weaker than those of a one-step surrogate."""
    name = "gradients through iterations not weaker than a surrogate's"
    model: nn.Module | None = one_step_surrogate(evidence.classifier.model)
    if model is None:
        return _not_run(name, "the forward pass has no iterations that Clearhead can replace")
    strong, weak = (
        evidence.right_by_pgd(STEPS[1], scores) for scores in (None, evidence.classifier.with_model(model.eval()))
    )
    return _compared(evidence, name, strong, weak, "gradients through all iterations", "those of one step")


def binarisation(evidence: Evidence) -> SanityLine:
    """Check that PGD finds an adversarial example where one exists by construction."""
    name = "binarisation test"
    result = binarisation_test(
        evidence.classifier, evidence.images[:BINARISED], eps=evidence.eps, steps=STEPS[1],
        generator=evidence.generator(),
    )  # fmt: skip
    if result is None:
        return _not_run(name, "the model does not end in a linear map of the classes")
    if result.problems < FEWEST:
        return _not_run(name, f"only {result.problems} of {len(evidence.images[:BINARISED])} problems can be separated")
    solved = f"PGD solves {result.attack:.0%} of {result.problems} problems, random points {result.random:.0%}"
    text = f"at {budget_text(evidence.eps)} {solved}"
    return _line(name, result.attack >= SOLVED, text)


CHECKS = (budget_zero, unbounded, iterative, black_box, more_steps, gradients, transfer, surrogate, binarisation)
