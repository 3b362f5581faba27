"""What a run of a recipe will take, from the recipe alone: sizes, schedule, memory and time. Nothing is trained."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clearhead.errors import InputError
from clearhead.private_names import storage_address
from clearhead_lab.models.catalogue import one_input
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.training.recipe import learning_rate
from clearhead_lab.training.recipe_file import RecipeFile
from clearhead_lab.training.run import build_model

SUSTAINED_FLOPS = 0.3 * 312e12
"""Floating-point operations per second that GPU hours assume: 30% of an A100's peak in bfloat16."""
ADAM_STATES = {"adamw": 2, "adam": 2, "sgd": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The sizes of a run.

    inputs: the shape of one step's batch
    multiply_adds: of a forward pass of one row
    steps: of all epochs; rates: the learning rate at some steps
    weight_bytes: weights, gradients, optimizer states and average; activation_bytes: saved for the backward pass of
        one accumulated part in one process, attention weights included, which fused kernels do not store
    gpu_hours: at `SUSTAINED_FLOPS`; small models do not reach it and take longer
    """

    inputs: tuple[int, ...]
    parameters: int
    multiply_adds: int
    steps: int
    rates: dict[int, float]
    weight_bytes: int
    activation_bytes: int
    gpu_hours: float


def estimate_run(file: RecipeFile, *, rows: int | None = None, processes: int = 1) -> Estimate:
    """Return the estimate for `rows` training rows, by default the recipe's. The model is built on the meta device."""
    recipe, rows = file.recipe, rows or file.data.rows
    if not rows:
        raise InputError(f"{file.name} does not say the number of training rows; add rows to its section [data]")
    with torch.device("meta"):
        model = build_model(file).train()
        row = one_input(model.config)
    if recipe.batch_size % (processes * recipe.accumulate):
        raise InputError(
            f"{recipe.batch_size} rows cannot be divided between {processes} processes with {recipe.accumulate} parts"
        )
    number_bytes = 2 if recipe.precision == "bfloat16" else 4
    with FlopCounterMode(display=False) as counter:
        saved = _saved_numbers(model, model.encode if isinstance(model, LanguageModel) else model, row)
    multiply_adds = counter.get_total_flops() // 2
    if isinstance(model, LanguageModel):  # the adaptive softmax needs real targets
        output, logits = _output_of(model.config)
        multiply_adds += model.config.context * output
        saved += 2 * model.config.context * logits  # and their softmax
    part = recipe.batch_size // processes // recipe.accumulate
    parameters = sum(parameter.numel() for parameter in model.parameters())
    steps = recipe.epochs * (rows // recipe.batch_size)
    if not steps:
        raise InputError(f"a batch of {recipe.batch_size} rows is larger than the {rows} rows of the data")
    warmup = int(recipe.warmup * (rows // recipe.batch_size))
    copies = 2 + ADAM_STATES[recipe.optimizer] + bool(recipe.ema)
    flops = 3 * 2 * multiply_adds * recipe.batch_size * steps  # the backward pass costs two forward passes
    return Estimate(
        inputs=(recipe.batch_size, *row.shape[1:]),
        parameters=parameters,
        multiply_adds=multiply_adds,
        steps=steps,
        rates={
            step: learning_rate(recipe, step, steps=steps, warmup=warmup)
            for step in sorted({0, warmup, steps // 4, steps // 2, 3 * steps // 4, steps - 1})
        },
        weight_bytes=4 * parameters * copies,
        activation_bytes=part * saved * number_bytes,
        gpu_hours=flops / SUSTAINED_FLOPS / 3600,
    )


def _output_of(config: LanguageModelConfig) -> tuple[int, int]:
    """Return multiply-adds and logits of the output for one token whose rank r has probability 1 / r (Zipf's law)."""
    if config.output == "tied":
        return config.width * config.vocabulary, config.vocabulary
    bounds = (*config.cutoffs, config.vocabulary)
    head = config.cutoffs[0] + len(config.cutoffs)
    multiply_adds, logits, total = float(config.width * head), float(head), _harmonic(config.vocabulary)
    for number, (low, high) in enumerate(pairwise(bounds), start=1):
        share, narrow = (_harmonic(high) - _harmonic(low)) / total, config.width / config.tail_divisor**number
        multiply_adds += share * narrow * (config.width + high - low)
        logits += share * (high - low)
    return round(multiply_adds), round(logits)


def _harmonic(count: int) -> float:
    """Return 1 + 1/2 + ... + 1/count, to four digits and more."""
    return math.log(count) + 0.5772156649 + 1 / (2 * count)


def _saved_numbers(model: nn.Module, forward: Callable[[Tensor], Tensor], row: Tensor) -> int:
    """Return how many numbers a forward pass saves for the backward pass, without the weights."""
    weights = {storage_address(parameter) for parameter in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if storage_address(tensor) not in weights:
            seen[storage_address(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(row)
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in seen.values())
