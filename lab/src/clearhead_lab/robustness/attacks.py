r"""Attacks that change every pixel by at most eps and stay between 0 and 1: FGSM, PGD and SPSA.

`bounds` are the lowest and the highest pixel. None leaves pixels unbounded, for inputs that are already normalised.

They raise the loss of the given labels. FGSM (Goodfellow et al. 2015) takes one step along the sign of the gradient,
PGD (Madry et al. 2018) many small ones. SPSA (Uesato et al. 2018) needs no gradient: it estimates one from the loss at
random corners around the image, and so finds images also where gradients vanish or mislead.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clearhead.errors import InputError
from clearhead.shapes import Float, Int

__all__ = ["PIXELS", "Bounds", "Scores", "fgsm", "margin", "pgd", "project", "score_gradient", "spsa"]

Bounds = tuple[float, float] | None
PIXELS = (0.0, 1.0)
AT_ONCE = 128
"""Images that SPSA scores in one call, unless more are given."""

Scores = Callable[[Tensor], Tensor]
"""Scores of classes (b, k) for pixels (b, c, y, x) from 0 to 1, such as a `PixelClassifier`."""


def fgsm(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    bounds: Bounds = PIXELS,
) -> Float[Tensor, "b c y x"]:
    """Return images after one step of eps along the sign of the gradient."""
    _check(images, labels, eps, bounds)
    return project(images + eps * score_gradient(scores, images, labels).sign(), images, eps, bounds)


def pgd(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    random_start: bool = True,
    bounds: Bounds = PIXELS,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c y x"]:
    """Return images after projected steps along the sign of the gradient.

    step_size: 2.5 eps / steps by default, as Madry et al. (2018) advise
    restarts: number of random starts; of each image the first result that is misclassified is kept, else the last
    """
    _check(images, labels, eps, bounds)
    if steps < 1 or restarts < 1:
        raise InputError(f"expected steps and restarts of at least 1; got {steps} and {restarts}")
    if restarts > 1 and not random_start:
        raise InputError("restarts need random starts; pass random_start=True, or restarts=1")
    size = 2.5 * eps / steps if step_size is None else step_size
    result, left = images.clone(), torch.arange(len(images), device=images.device)
    for start in range(restarts):
        # Drawn for all images, so that the start of an image does not depend on which others were fooled.
        start_at = images + eps * _uniform(images, generator) if random_start else images
        near, of_near = images[left], labels[left]
        x = project(start_at[left], near, eps, bounds)
        for _ in range(steps):
            x = project(x + size * score_gradient(scores, x, of_near).sign(), near, eps, bounds)
        result[left] = x
        if start + 1 < restarts:
            left = left[margin(scores, x, of_near) >= 0]
            if not len(left):
                break
    return result


def spsa(
    scores: Scores,
    images: Float[Tensor, "b c y x"],
    labels: Int[Tensor, "b"],
    *,
    eps: float,
    steps: int = 40,
    samples: int = 128,
    delta: float = 0.01,
    learning_rate: float = 0.01,
    bounds: Bounds = PIXELS,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c y x"]:
    """Return images after steps of Adam along gradients that are estimated from scores alone.

    samples: corners at which the margin is measured for each estimate, in opposite pairs; delta: their distance
    """
    _check(images, labels, eps, bounds)
    if steps < 1 or samples < 2 or samples % 2:
        raise InputError(f"expected at least one step and an even number of samples; got {steps} and {samples}")
    x, first, second = images, torch.zeros_like(images), torch.zeros_like(images)
    at_once = max(AT_ONCE // max(2 * len(images), 1), 1)
    for step in range(1, steps + 1):
        estimate = torch.zeros_like(images)
        for pairs in torch.split(torch.arange(samples // 2), at_once):
            corners = torch.stack([_uniform(images, generator).sign() for _ in pairs])
            both = torch.cat([x + delta * corners, x - delta * corners])
            margins = margin(scores, both.flatten(0, 1), labels.repeat(len(both))).view(2, len(pairs), -1)
            estimate += ((margins[0] - margins[1])[..., None, None, None] * corners).sum(dim=0) / (delta * samples)
        first, second = 0.9 * first + 0.1 * estimate, 0.999 * second + 0.001 * estimate.square()
        scaled = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        x = project(x - learning_rate * scaled, images, eps, bounds)
    return x


def margin(scores: Scores, images: Float[Tensor, "b c y x"], labels: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the score of the label minus the highest other score: below zero, the image is misclassified."""
    with torch.no_grad():
        of_images = scores(images)
        own = of_images.gather(1, labels[:, None])
        others = of_images.scatter(1, labels[:, None], -torch.inf).amax(dim=1, keepdim=True)
        return (own - others).squeeze(1)


def project(x: Tensor, images: Tensor, eps: float, bounds: Bounds = PIXELS) -> Tensor:
    """Return the nearest pixels within the bounds that differ from the images by at most eps."""
    nearest = torch.minimum(torch.maximum(x, images - eps), images + eps)
    return nearest if bounds is None else nearest.clamp(*bounds)


def score_gradient(
    scores: Scores, images: Float[Tensor, "b c y x"], labels: Int[Tensor, "b"]
) -> Float[Tensor, "b c y x"]:
    """Return the gradient of each image's cross-entropy."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        # The sum, so that the gradient of an image does not depend on the size of its batch.
        loss = cross_entropy(scores(x), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    return gradient


def _uniform(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return numbers between -1 and 1, drawn on the CPU so that they do not depend on the device."""
    drawn = torch.rand(images.shape, generator=generator, dtype=images.dtype) * 2 - 1
    return drawn.to(images.device)


def _check(images: Tensor, labels: Tensor, eps: float, bounds: Bounds) -> None:
    if not eps >= 0:
        raise InputError(f"expected a budget eps of at least 0; got {eps}")
    if not images.is_floating_point() or images.ndim != 4:
        raise InputError(
            f"expected images (b, c, y, x) of floats from 0 to 1; got {tuple(images.shape)} of {images.dtype}"
        )
    if bounds is not None and images.numel() and not bool(((images >= bounds[0]) & (images <= bounds[1])).all()):
        raise InputError(
            f"expected pixels from {bounds[0]:g} to {bounds[1]:g}; got {float(images.min()):.3g} to "
            f"{float(images.max()):.3g}: pass images "
            "that are not normalised, and the normalisation to PixelClassifier"
        )
    if len(labels) != len(images):
        raise InputError(f"expected a label for each of {len(images)} images; got {len(labels)}")
