"""The learning rate over a run: a linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017)."""

import math

from clearhead.errors import InputError

__all__ = ["warmed_cosine"]


def warmed_cosine(step: int, *, steps: int, warmup: int) -> float:
    r"""The factor of the learning rate at `step` of 0 to `steps` - 1.

    .. math:: \frac{t + 1}{w} \text{ for } t < w, \qquad \frac{1 + \cos(\pi (t - w) / (T - w))}{2} \text{ after}

    with t the step, w the warm-up and T the steps: it rises to 1 at t = w - 1 and falls towards 0 at T.
    """
    if not 0 <= step < steps or not 0 <= warmup < steps:
        raise InputError(f"expected 0 <= step < steps and 0 <= warmup < steps; got {step}, {warmup} and {steps}")
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
