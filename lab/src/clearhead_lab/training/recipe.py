"""The settings of a training run, and the learning rate that they give at a step."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from clearhead.errors import InputError

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["cosine", "poly", "constant"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a training run.

    batch_size: rows of one step, of all processes and accumulated parts together
    accumulate: the parts of a step whose gradients are added
    learning_rate, final_rate: after the warmup, and at the end
    warmup, warmup_rate: epochs of linear increase (they may be a fraction), and the rate before its first step
    schedule: the decrease after the warmup; power: of "poly"
    betas: of Adam; the first is the momentum of SGD
    weight_decay: on matrices only, not on biases, norms, tokens and positions
    clip: the maximum norm of the gradient; 0 for no limit
    label_smoothing, mixup, cutmix: of classification; the last two are alpha of their Beta distribution, 0 for none
    ema: decay of the exponential moving average of the weights, which is evaluated and saved; 0 for none
    precision: "bfloat16" computes matrix products in bfloat16 (autocast)
    compile: compile model and loss with torch.compile
    """

    epochs: int
    batch_size: int = 128
    accumulate: int = 1
    optimizer: Optimizer = "adamw"
    learning_rate: float = 1e-3
    final_rate: float = 0.0
    warmup: float = 0.5
    warmup_rate: float = 0.0
    schedule: Schedule = "cosine"
    power: float = 0.9
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.05
    clip: float = 1.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    ema: float = 0.0
    precision: Precision = "float32"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))  # a file has a list
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError(f"expected epochs and batch_size of at least 1; got {self.epochs} and {self.batch_size}")
        if not 0 <= self.warmup < self.epochs:
            raise InputError(f"expected a warmup of at least 0 and less than {self.epochs} epochs; got {self.warmup}")
        if self.accumulate < 1 or self.batch_size % self.accumulate:
            raise InputError(
                f"expected accumulate to divide batch_size; got {self.accumulate} and {self.batch_size} rows"
            )
        choices = {"optimizer": Optimizer, "schedule": Schedule, "precision": Precision}
        for name, values in choices.items():
            if getattr(self, name) not in get_args(values):
                raise InputError(f"expected {name} among {', '.join(get_args(values))}; got {getattr(self, name)!r}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in (*self.betas, self.ema, self.label_smoothing)):
            raise InputError(
                "expected two betas, ema and label_smoothing of at least 0 and below 1; "
                f"got {self.betas}, {self.ema} and {self.label_smoothing}"
            )
        names = ("learning_rate", "final_rate", "warmup_rate", "power", "weight_decay", "clip", "mixup", "cutmix")
        for name in names:
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"expected {name} of at least 0; got {getattr(self, name)}")


def learning_rate(recipe: Recipe, step: int, *, steps: int, warmup: int) -> float:
    r"""Return the learning rate at `step` of `steps`: a linear warmup, then a decrease.

    .. math::
        r_0 + (r - r_0) \frac{t + 1}{w} \text{ for } t < w, \qquad r_T + (r - r_T)\, f\Big(\frac{t - w}{T - w}\Big)
        \text{ after}

    with t = `step` in 0 to T - 1, w = `warmup`, and r_0, r and r_T the recipe's warmup_rate, learning_rate and
    final_rate. f(u) is (1 + cos(pi u)) / 2 (Loshchilov and Hutter 2017), (1 - u)^power, or 1.
    """
    if not 0 <= step < steps or not 0 <= warmup < steps:
        raise InputError(f"expected 0 <= step < steps and 0 <= warmup < steps; got {step}, {warmup} and {steps}")
    if step < warmup:
        return recipe.warmup_rate + (recipe.learning_rate - recipe.warmup_rate) * (step + 1) / warmup
    u = (step - warmup) / (steps - warmup)
    factors: dict[str, float] = {
        "cosine": (1 + math.cos(math.pi * u)) / 2,
        "poly": math.pow(1 - u, recipe.power),
        "constant": 1.0,
    }
    return recipe.final_rate + (recipe.learning_rate - recipe.final_rate) * factors[recipe.schedule]
