"""The captured variance that a linear value map can reach, per input and with one map for all inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from clearhead._capture.recording import capture
from clearhead.audit.examples import make_examples
from clearhead.data.text import default_passages, text_batches
from clearhead.errors import InputError
from clearhead.heads import Heads, LinearMap
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.loading.model import DEFAULT_MODEL, load_model
from clearhead.numerics.spectrum import orthonormal_basis
from clearhead.report.tables import Field, Table
from clearhead.shapes import Float
from clearhead.theories.example import Cache
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space, principal_axes
from clearhead.theories.kernel_pca.spans import span_variance
from clearhead.theories.theory import Windows
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.estimates import decimals
from clearhead_lab.experiments.experiment import Experiment, Report, Request

LAYERS = (0, 2, 4)
STEPS = 150
RATE = 0.2
"""Learning rate of Adam, relative to the size of the map's entries; captured variance does not depend on that size."""
COLUMNS = {
    "own": ("the model's own map, held out", "own"),
    "fitted": ("one fitted map, fitted inputs", "fitted"),
    "held_out": ("one fitted map, held out", "held out"),
    "most": ("the most of one map per input", "per input"),
}
"""Titles of the columns, and shorter ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInput:
    """One input at one layer: the keys of all heads in feature space, and the layer's input with a column of ones."""

    space: KeySpace
    principal: Principal
    x: Float[Tensor, "m c"]


def captured(given: HeadInput, weight: Float[Tensor, "h c e"], *, pivots: bool = True) -> Float[Tensor, "h"]:
    """Return the captured variance of the values X W, by head; without `pivots` it has a gradient."""
    axes = (given.space.axes @ (given.x @ weight)).contiguous()
    return span_variance(given.space, given.principal, orthonormal_basis(axes, given.space.log_size, pivots=pivots))


def largest_captured(given: HeadInput) -> Float[Tensor, "h"]:
    """Return the largest captured variance of any values X W of this input.

    The axes of X W lie in the span of those of X, and e of them can have the e largest eigenvalues of the keys'
    variance within this span. It is 1 if the rows of X are independent.
    """
    span = orthonormal_basis((given.space.axes @ given.x).contiguous(), given.space.log_size)
    within = given.space.rows @ span
    count = given.principal.energy.shape[-1]
    energy: Tensor = torch.linalg.eigvalsh(within @ within.mT).flip(-1)[..., :count].clamp_min(0)
    return energy.sum(dim=-1) / given.principal.energy.sum(dim=-1)


def fit(
    inputs: Sequence[HeadInput], start: Float[Tensor, "h c e"], *, steps: int, rate: float = RATE
) -> Float[Tensor, "h c e"]:
    """Return one map for each head, fitted to the mean captured variance of the inputs by Adam from `start`."""
    size = start.square().mean(dim=(-2, -1), keepdim=True).sqrt()
    weight = (start / size).clone().requires_grad_()
    # Where little variance is captured, gradients are far below the usual eps.
    optimiser = torch.optim.Adam([weight], lr=rate, eps=1e-30)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        for given in inputs:
            (-captured(given, weight, pivots=False).sum() / len(inputs)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return weight.detach()


def read_inputs(model: torch.nn.Module, batches: Sequence[Any], layer: int) -> tuple[list[HeadInput], Tensor]:
    """Return the inputs at a layer, and its value maps with their biases as a last row."""
    inputs: list[HeadInput] = []
    maps: list[LinearMap] = []

    def keep(heads: Heads) -> None:
        if heads.layer != layer:
            return
        if heads.values_from is None:
            raise InputError(f"the value map of layer {layer} was not found; choose another model")
        maps.append(heads.values_from)
        made = make_examples(heads, Windows.EACH, first=0, seed=0, controls=False, per_audit=Cache())
        for (example, _), *_ in made:
            tokens = example.visible[0]
            assert example.values_from is not None
            x = example.values_from.x[0][tokens].double()
            if len(x) > example.v.shape[-1]:
                space = key_space(example.k[:, tokens], scale=example.scale)
                principal = principal_axes(space, example.v.shape[-1])
                inputs.append(HeadInput(space=space, principal=principal, x=torch.cat([x, x.new_ones(len(x), 1)], -1)))

    with torch.no_grad(), capture(model, keep=keep):
        for batch in batches:
            model(**batch)
    if len(inputs) < 2:
        raise InputError(f"fewer than two inputs have more tokens than the values of layer {layer} have columns")
    weight = maps[0].weight.double()
    bias = torch.zeros_like(weight[:, :1]) if maps[0].bias is None else maps[0].bias.double().unsqueeze(-2)
    return inputs, torch.cat([weight, bias], dim=-2)


def measure(layer: int, inputs: int | None, steps: int) -> dict[str, list[float]]:
    """Return the mean captured variance by head: of the model's own map, of a fitted one, and the most per input."""
    ensure_torchvision()
    loaded = load_model(DEFAULT_MODEL, max_tokens=256)
    assert loaded.encode is not None
    passages = default_passages()[:inputs]
    given, own = read_inputs(loaded.model, list(text_batches(passages, loaded.encode, batch_size=8)), layer)
    fitted_on, held_out = given[::2], given[1::2]
    weight = fit(fitted_on, own, steps=steps)
    return {
        "own": _mean([captured(x, own) for x in held_out]),
        "fitted": _mean([captured(x, weight) for x in fitted_on]),
        "held_out": _mean([captured(x, weight) for x in held_out]),
        "most": _mean([largest_captured(x) for x in held_out]),
    }


def _mean(values: Sequence[Tensor]) -> list[float]:
    return [float(value) for value in torch.stack(list(values)).mean(dim=0)]


def report(results: Mapping[str, Mapping[str, Sequence[float]]], request: Request) -> Report:
    """Tabulate medians by layer, then every head."""
    held_out, own = (
        ", ".join(f"{median(result[key]):.0%}" for result in results.values()) for key in ("held_out", "own")
    )
    return Report(
        headline=(
            f"One fitted linear value map captures {held_out} of the keys' variance on held-out text in the median "
            f"head of {', '.join(results)}; the model's own maps capture {own}"
        ),
        setting=(
            f"{DEFAULT_MODEL} on the text in the package. One map for each head is fitted to the mean captured "
            f"variance of every other input, by {STEPS} steps of Adam from the model's own, and evaluated on the "
            "others. It is the best that these steps find, not proven to be the best. A map fitted to few inputs does "
            "better on these and worse on others. The most that one map per input captures is computed in closed form."
        ),
        sections=[
            ("Captured variance, median over heads [smallest, largest]", _by_layer(results)),
            ("Every head", _by_head(results)),
        ],
        facts={"results": {name: dict(result) for name, result in results.items()}},
    )


def _by_layer(results: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    def cell(values: Sequence[float]) -> str:
        return f"{decimals(median(values))} [{decimals(min(values))}, {decimals(max(values))}]"

    fields = [Field(title="layer", cells=[name.removeprefix("layer ") for name in results])]
    return fields + [
        Field(
            title=title,
            short=short,
            cells=[cell(result[key]) for result in results.values()],
            narrow=[decimals(median(result[key])) for result in results.values()],
        )
        for key, (title, short) in COLUMNS.items()
    ]


def _by_head(results: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    heads = [f"{name.removeprefix('layer ')}.{head}" for name, r in results.items() for head in range(len(r["own"]))]
    return [Field(title="head", cells=heads)] + [
        Field(title=title, cells=[decimals(value) for result in results.values() for value in result[key]])
        for key, (title, _) in COLUMNS.items()
    ]


LINEAR_MAP = Experiment(
    name="kernel-pca/linear-map",
    title="Kernel PCA: what a linear value map can capture",
    reproduces="the largest captured variance of values that are a linear map of the layer's input",
    cost="5 min",
    measure=measure_cells(
        measure,
        lambda request: {
            f"layer {layer}": {"layer": layer, "inputs": request.inputs, "steps": STEPS} for layer in LAYERS
        },
        packages=("theories/kernel_pca", "numerics"),
    ),
    report=report,
    options=frozenset({"inputs"}),
)
