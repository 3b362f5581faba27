"""Attacks of other libraries, as functions of (scores, images, labels, *, eps, generator).

AutoAttack (Croce and Hein 2020, arXiv 2003.01690) is that of `pyautoattack`, by its authors. Carlini and Wagner (2017,
arXiv 1608.04644) and HopSkipJump (Chen et al. 2020, arXiv 1904.02144) are those of `foolbox`. Both packages are in the
extra `attacks`. They draw from torch's global generator, which is given back as it was.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Float, Int
from clearhead_lab.robustness.attacks import PIXELS, Scores, project

__all__ = ["auto_attack", "carlini_wagner", "hop_skip_jump"]


def auto_attack(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    attacks: Sequence[str] = ("apgd-ce", "apgd-t", "fab-t", "square"),
    queries: int = 5000,
    steps: int = 100,
    generator: torch.Generator,
) -> Float[Tensor, "b c y x"]:
    """Return images after AutoAttack: each of its attacks runs on the images that the ones before it did not fool.

    attacks: the standard version by default; queries: of Square; steps: of the other attacks

    Images that no attack fools, and those that are misclassified without one, are unchanged.
    """
    library = _library("pyautoattack")
    classes = int(scores(images[:1]).shape[-1])
    with _isolated(generator) as seed, _quiet():
        attack = library.AutoAttack(_Module(scores), version="custom", attacks=list(attacks), eps=eps, seed=seed)
        attack.apgd.n_restarts, attack.fab.n_restarts = 1, 1
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
        attack.apgd.n_iter = attack.apgd_targeted.n_iter = attack.fab.n_iter = steps
        attack.square.n_queries = queries
        attacked, _ = attack.run_standard_evaluation(images, labels, batch_size=len(images))
    return project(attacked.detach(), images, eps)


def carlini_wagner(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    steps: int = 200,
    searches: int = 5,
    generator: torch.Generator,
) -> Float[Tensor, "b c y x"]:
    """Return the images of smallest Euclidean change that fool the model, cut to changes of at most eps.

    The attack minimises another norm than the budget's, so that many of its images fool the model only before the cut.
    """
    library = _library("foolbox")
    attack = library.attacks.L2CarliniWagnerAttack(steps=steps, binary_search_steps=searches)
    return _foolbox(library, attack, scores, images, labels, eps=eps, generator=generator)


def hop_skip_jump(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    steps: int = 20,
    generator: torch.Generator,
) -> Float[Tensor, "b c y x"]:
    """Return images near the boundary of the class, found from decisions alone, cut to changes of at most eps.

    It starts from another image of the batch that has another class, or from noise.
    """
    library = _library("foolbox")
    attack = library.attacks.HopSkipJumpAttack(steps=steps, constraint="linf", max_gradient_eval_steps=200)
    with torch.no_grad():
        classes = scores(images).argmax(dim=-1)
        other = classes[None] != labels[:, None]
        starts = images[other.int().argmax(dim=1)]
        noise = torch.rand(images.shape, generator=generator, dtype=images.dtype).to(images.device)
        starts = torch.where(other.any(dim=1)[:, None, None, None], starts, noise)
        usable = scores(starts).argmax(dim=-1) != labels
    result = images.clone()
    if bool(usable.any()):
        found = _foolbox(
            library, attack, scores, images[usable], labels[usable], eps=eps, generator=generator,
            starting_points=starts[usable],
        )  # fmt: skip
        result[usable] = found
    return result


def _foolbox(
    library: Any,
    attack: Any,
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    generator: torch.Generator,
    **options: Any,
) -> Tensor:
    model = library.PyTorchModel(_Module(scores), bounds=PIXELS, device=images.device)
    with _isolated(generator), _quiet():
        raw, _, _ = attack(model, images, library.criteria.Misclassification(labels), epsilons=None, **options)
    return project(raw.detach(), images, eps)


class _Module(nn.Module):
    """Scores as a module in evaluation mode, which the libraries expect."""

    def __init__(self, scores: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._scores = scores
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        return self._scores(pixels)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(f"this attack needs {name}; install it with: pip install 'clearhead-lab[attacks]'") from None


@contextmanager
def _isolated(generator: torch.Generator) -> Iterator[int]:
    """Seed torch's and NumPy's global generators from `generator`, yield the seed, and restore them."""
    seed = int(torch.randint(2**31, (), generator=generator))
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield seed
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' own log out of the terminal; what it warns of is part of the sanity lines."""
    loggers = [logging.getLogger(name) for name in ("auto-attack", "foolbox")]
    states = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, states, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
