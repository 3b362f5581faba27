r"""Attacks that change every pixel by at most eps and stay between 0 and 1: FGSM, PGD and SPSA.

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

__all__ = ["Scores", "fgsm", "margin", "pgd", "spsa"]

Scores = Callable[[Tensor], Tensor]
"""Scores of classes (b, k) for pixels (b, c, y, x) from 0 to 1, such as a `PixelClassifier`."""


def fgsm(
    scores: Scores, images: Float[Tensor, "b c y x"], labels: Int[Tensor, "b"], *, eps: float
) -> Float[Tensor, "b c y x"]:
    """Return images after one step of eps along the sign of the gradient."""
    _check(images, labels, eps)
    return (images + eps * _gradient(scores, images, labels).sign()).clamp(0, 1)


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
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c y x"]:
    """Return images after projected steps along the sign of the gradient.

    step_size: 2.5 eps / steps by default, as Madry et al. (2018) advise
    restarts: number of random starts; of each image the first result that is misclassified is kept, else the last
    """
    _check(images, labels, eps)
    if steps < 1 or restarts < 1:
        raise InputError(f"expected steps and restarts of at least 1; got {steps} and {restarts}")
    if restarts > 1 and not random_start:
        raise InputError("restarts need random starts; pass random_start=True, or restarts=1")
    size = 2.5 * eps / steps if step_size is None else step_size
    result, fooled = images, torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for start in range(restarts):
        x = project(images + eps * _uniform(images, generator), images, eps) if random_start else images
        for _ in range(steps):
            x = project(x + size * _gradient(scores, x, labels).sign(), images, eps)
        result = torch.where(fooled[:, None, None, None], result, x)
        if start + 1 < restarts:
            fooled = fooled | (margin(scores, x, labels) < 0)
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
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c y x"]:
    """Return images after steps of Adam along gradients that are estimated from scores alone.

    samples: corners at which the margin is measured for each estimate, in opposite pairs; delta: their distance
    """
    _check(images, labels, eps)
    if steps < 1 or samples < 2 or samples % 2:
        raise InputError(f"expected at least one step and an even number of samples; got {steps} and {samples}")
    x, first, second = images, torch.zeros_like(images), torch.zeros_like(images)
    for step in range(1, steps + 1):
        estimate = torch.zeros_like(images)
        for _ in range(samples // 2):
            corner = _uniform(images, generator).sign()
            difference = margin(scores, x + delta * corner, labels) - margin(scores, x - delta * corner, labels)
            estimate += difference[:, None, None, None] * corner / (delta * samples)
        first, second = 0.9 * first + 0.1 * estimate, 0.999 * second + 0.001 * estimate.square()
        scaled = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        x = project(x - learning_rate * scaled, images, eps)
    return x


def margin(scores: Scores, images: Float[Tensor, "b c y x"], labels: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the score of the label minus the highest other score: below zero, the image is misclassified."""
    with torch.no_grad():
        of_images = scores(images)
        own = of_images.gather(1, labels[:, None])
        others = of_images.scatter(1, labels[:, None], -torch.inf).amax(dim=1, keepdim=True)
        return (own - others).squeeze(1)


def project(x: Tensor, images: Tensor, eps: float) -> Tensor:
    """Return the nearest pixels from 0 to 1 that differ from the images by at most eps."""
    return torch.minimum(torch.maximum(x, images - eps), images + eps).clamp(0, 1)


def _gradient(scores: Scores, images: Tensor, labels: Tensor) -> Tensor:
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


def _check(images: Tensor, labels: Tensor, eps: float) -> None:
    if not eps >= 0:
        raise InputError(f"expected a budget eps of at least 0; got {eps}")
    if not images.is_floating_point() or images.ndim != 4:
        raise InputError(
            f"expected images (b, c, y, x) of floats from 0 to 1; got {tuple(images.shape)} of {images.dtype}"
        )
    if images.numel() and not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError(
            f"expected pixels from 0 to 1; got {float(images.min()):.3g} to {float(images.max()):.3g}: pass images "
            "that are not normalised, and the normalisation to PixelClassifier"
        )
    if len(labels) != len(images):
        raise InputError(f"expected a label for each of {len(images)} images; got {len(labels)}")
