r"""The binarisation test (Zimmermann et al. 2022, arXiv 2206.13991): an attack must find an example that exists.

For every image a new two-class problem is built on the features before the model's last layer: points well within the
budget are one class, and one random corner of the budget is the other. The corner is an adversarial example of that
problem by construction. An attack that does not find one where one exists is too weak, and the accuracy under it says
little. The classes are separated by Fisher's linear discriminant, w = (C + r I)^{-1} (f_corner - mean), with C the
covariance of the inner points, and the threshold near the corner. The paper fits logistic regression instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from clearhead.shapes import Float
from clearhead_lab.robustness.attacks import pgd, project
from clearhead_lab.robustness.classifier import PixelClassifier

__all__ = ["BinarisationResult", "binarisation_test"]

INNER, INNER_POINTS = 0.75, 128
"""The share of the budget within which inner points lie, and their number."""
RIDGE, THRESHOLD = 0.1, 0.9
"""The ridge relative to the mean variance, and the place of the threshold between the inner points and the corner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinarisationResult:
    """Shares of the problems in which the attack, and random points of the budget, find an adversarial example.

    problems: images whose corner the discriminant separates from the inner points
    """

    attack: float
    random: float
    problems: int


def binarisation_test(
    classifier: PixelClassifier,
    images: Float[Tensor, "b c y x"],
    *,
    eps: float,
    steps: int,
    generator: torch.Generator,
) -> BinarisationResult | None:
    """Return how often PGD solves the problems. None if the model does not end in a linear map of the classes."""
    last = _last_layer(classifier, images[:1])
    if last is None:
        return None
    weights, thresholds, kept, lucky = [], [], [], []
    for index, image in enumerate(images):
        inner = _around(image, INNER_POINTS, INNER * eps, generator)
        corner = project(image + eps * _signs(image[None], generator), image, eps)
        fresh = _around(image, INNER_POINTS, eps, generator)
        with torch.no_grad():
            features = _features(classifier, last, torch.cat([inner, corner, fresh])).double()
        near, far, drawn = torch.split(features, [INNER_POINTS, 1, INNER_POINTS])
        centred = near - near.mean(dim=0)
        covariance = centred.mT @ centred / INNER_POINTS
        ridge = RIDGE * covariance.diagonal().mean() + torch.finfo(torch.float64).tiny
        eye = torch.eye(len(covariance), dtype=torch.float64, device=covariance.device)
        weight = torch.linalg.solve(covariance + ridge * eye, (far - near.mean(dim=0))[0])
        highest, reached = (near @ weight).max(), (far @ weight)[0]
        if not bool(reached > highest):
            continue
        threshold = highest + THRESHOLD * (reached - highest)
        unit = (centred @ weight).std() + torch.finfo(torch.float64).tiny
        weights.append(weight / unit)
        thresholds.append(threshold / unit)
        kept.append(index)
        lucky.append(bool(((drawn @ weight) > threshold).any()))
    if not kept:
        return BinarisationResult(attack=0.0, random=0.0, problems=0)
    weight, threshold = torch.stack(weights), torch.stack(thresholds)

    def scores(weight: Tensor, threshold: Tensor, pixels: Tensor) -> Tensor:
        # Row i of a batch is a point of problem i.
        value = (_features(classifier, last, pixels).double() * weight).sum(dim=-1) - threshold
        return torch.stack([-value, value], dim=-1) / 2

    solved: list[bool] = []
    for problems in torch.split(torch.tensor(kept), classifier.batch_size or len(kept)):
        part = slice(len(solved), len(solved) + len(problems))
        of_part = partial(scores, weight[part], threshold[part])
        labels = torch.zeros(len(problems), dtype=torch.long, device=images.device)
        attacked = pgd(of_part, images[problems], labels, eps=eps, steps=steps, generator=generator)
        with torch.no_grad():
            solved += (of_part(attacked)[:, 1] > 0).tolist()
    return BinarisationResult(attack=sum(solved) / len(kept), random=sum(lucky) / len(kept), problems=len(kept))


def _last_layer(classifier: PixelClassifier, image: Tensor) -> nn.Linear | None:
    with torch.no_grad():
        classes = classifier(image).shape[-1]
    layers = [m for m in classifier.model.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    return layers[-1] if layers else None


def _features(classifier: PixelClassifier, last: nn.Linear, pixels: Tensor) -> Tensor:
    """Return the inputs of the last layer, (b, d)."""
    features = []
    for part in classifier.split(pixels):
        with _recording(last) as recorded:
            classifier(part)
        features.append(recorded[-1] if recorded[-1].ndim == 2 else recorded[-1][:, 0])
    return torch.cat(features)


@contextmanager
def _recording(layer: nn.Module) -> Iterator[list[Tensor]]:
    recorded: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: recorded.append(arguments[0]))
    try:
        yield recorded
    finally:
        handle.remove()


def _around(image: Tensor, count: int, radius: float, generator: torch.Generator) -> Tensor:
    """Draw points whose pixels differ from the image's by at most the radius, (count, c, y, x)."""
    drawn = torch.rand((count, *image.shape), generator=generator, dtype=image.dtype).to(image.device)
    return project(image + radius * (2 * drawn - 1), image, radius)


def _signs(images: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(2, images.shape, generator=generator).to(images)
    return 2 * drawn - 1
