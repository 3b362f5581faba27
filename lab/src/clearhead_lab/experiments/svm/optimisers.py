"""Which optimiser leads to which margin: cosines of the trained W to SVMs of three norms."""

from collections.abc import Mapping, Sequence
from typing import Any

from clearhead.report.tables import Field, Table, decimals, mean_of, over_runs, percentage
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.estimates import mean_field
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.rules import (
    Adam,
    Factored,
    GradientDescent,
    NormalisedDescent,
    SignDescent,
)
from clearhead_lab.experiments.svm.descent.solutions import (
    Method,
    cosines,
    draw_cosines,
    solve_all,
    svm_experiment,
    train_by,
)
from clearhead_lab.theorems.max_margin.convergence import saturated

N, T, D, STEPS = 6, 8, 10, 3000
RECORDED = (30, 100, 300, 1000, 3000)
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR, Norm.MAX_ENTRY)
SHORT = {Norm.FROBENIUS: "Frob.", Norm.NUCLEAR: "nucl.", Norm.MAX_ENTRY: "max"}


METHODS = {
    "W, normalised": Method(rule=NormalisedDescent(0.1)),
    "W, plain, rate 5": Method(rule=GradientDescent(5.0)),
    "W, sign": Method(rule=SignDescent(0.01)),
    "W, sign, autograd": Method(rule=SignDescent(0.01), autograd=True),
    "W, Adam": Method(rule=Adam(0.01)),
    "W, AdamW": Method(rule=Adam(0.01, decay=0.1)),
    "K Q, Adam": Method(rule=Adam(0.01), parameters=Factored(0.0)),
    "K Q, normalised": Method(rule=NormalisedDescent(0.1), parameters=Factored()),
}
REFERENCE = {
    "W, normalised": (0.996, 0.864, 0.778), "W, plain, rate 5": (0.930, 0.839, 0.739),
    "W, sign, autograd": (0.781, 0.639, 0.898), "W, Adam": (0.857, 0.719, 0.818), "W, AdamW": (0.854, 0.715, 0.840),
    "K Q, Adam": (0.783, 0.818, 0.654),
}  # fmt: skip
"""Cosines of an independent implementation to the SVMs of `NORMS`, where it has them."""

Results = Mapping[str, Mapping[str, Any]]


def measure(*, method: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train by one method from every seed; compare with the SVMs of the tokens selected at the end."""
    task, run = train_by(METHODS[method], seeds, n=N, t=T, d=D, steps=STEPS, record=RECORDED)
    solutions = {norm: solve_all(task.tokens, task.queries, run.selected[-1], norm) for norm in NORMS}
    return {
        "cosines": {norm: [cosines(W, solved) for W in run.W] for norm, solved in solutions.items()},
        "saturated": saturated(run.attention[-1]).tolist(),
        "largest": run.largest[-1].mean(dim=-1).tolist(),
    }


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines at the end, by optimiser and norm."""
    seeds = request.seed_list(40)

    def last(method: str, norm: Norm) -> str:
        return mean_of(over_runs(results[method]["cosines"][norm][-1]))

    return Report(
        headline=f"W normalised {last('W, normalised', Norm.FROBENIUS)} to Frobenius, "
        f"K Q {last('K Q, normalised', Norm.NUCLEAR)} to nuclear, sign {last('W, sign', Norm.MAX_ENTRY)} to max-entry",
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}; {STEPS:,} "
            "steps. Rates: 0.1 for normalised descent, 5 for plain, 0.01 for the others; AdamW decays by 0.1; the "
            "rates of the reference are not known. Gradients are exact however saturated attention is, except in the "
            "row that names autograd. Cosines to the SVMs of the tokens selected at the end: means with 95 % Student "
            "intervals."
        ),
        sections=[("Cosine to the SVM of least norm, by the norm", _table(results))],
        remarks=(
            "Mean cosine to the SVM of least Frobenius, nuclear and max-entry norm, ± half of the 95 % Student "
            "interval; autograd: gradients that are only rounding after saturation; ref.: an independent "
            "implementation.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "runs": dict(results)},
    )


def _table(results: Results) -> Table:
    fields = [Field(title="trained", cells=list(results), text=True)]
    for norm in NORMS:
        rows = [result["cosines"][norm][-1] for result in results.values()]
        fields.append(mean_field(str(norm), rows, short=SHORT[norm]))
    saturation = [percentage(result["saturated"]) for result in results.values()]
    reference = [" / ".join(decimals(value) for value in REFERENCE.get(name, ())) or "-" for name in results]
    return [
        *fields,
        Field(title="saturated, per cent", short="saturated", cells=saturation, rank=2),
        Field(title="reference", short="ref.", cells=reference, rank=1),
    ]


def draw(results: Results) -> Figure:
    """Plot the cosines by step, for four optimisers."""
    names = ("W, normalised", "K Q, normalised", "W, sign", "W, Adam")
    curves = {name: results[name]["cosines"] for name in names}
    return draw_cosines(curves, RECORDED, title="Cosines of trained attention to attention SVMs of three norms")


OPTIMISERS = svm_experiment(
    "optimisers",
    measure,
    lambda request: {name: {"method": name, "seeds": request.seed_list(40)} for name in METHODS},
    report,
    title="Which optimiser leads to which margin",
    reproduces="the optimiser decides which SVM training leads to: Frobenius, nuclear or max-entry norm",
    cost="30 s",
)
