"""All theories on the 16 variants of SCEPTR: does a claim separate training data?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from clearhead.audit.baseline import BASELINE_DRAWS
from clearhead.audit.findings import Verdict
from clearhead.errors import InputError
from clearhead.report.tables import Field, Table
from clearhead.report.wording import short
from clearhead.theories.theory import Role
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.models.measuring import Measured, Ready, Subject, measure_all
from clearhead_lab.experiments.models.receptors import Receptor, as_batches, draw_receptors
from clearhead_lab.experiments.models.sceptr import (
    GERMLINE,
    PACKAGES,
    SEGMENTS,
    ReceptorEncoder,
    Variant,
    fetch_variants,
    fresh,
    load_variant,
    variants,
)
from clearhead_lab.experiments.models.separation import Separation, head_values, heads_differ, separate

INPUTS = 18
DEFAULT, RANDOM = "SCEPTR", "random weights"
OTHER_DATA = {"train_randomly_paired.csv": "chains paired at random", "olga_size_matched.csv": "synthetic receptors"}
"""What training files hold that are not of real receptors."""
RATE = 0.05
COUNTED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED, Verdict.CONTRADICTED, Verdict.NO_EVIDENCE)
SETTING = (
    "Inputs are receptors drawn by seed from human gene segments (`experiments/models/receptors.py` has the recipe), "
    "the same for all variants. The baseline is the same architecture with fresh random weights, drawn five times. "
    "Cells of a theory are heads supported / partly supported / contradicted / without evidence, and the median of its "
    "primary statistic. *Masked residues* is the share that a model predicts when one in seven tokens is masked, which "
    "checks that weights and tokens are right."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow:
    """One variant: what it was trained on, its masked accuracy, its audit, and whether it has the default's shape."""

    variant: Variant
    accuracy: float
    measured: Measured
    like_default: bool

    @property
    def data(self) -> str:
        """The kind of training data."""
        return "none" if self.variant.name == RANDOM else OTHER_DATA.get(self.variant.data, "real receptors")


@dataclass(frozen=True, slots=True, kw_only=True)
class SceptrRun:
    """The rows of the table: every variant, and the default with random weights."""

    rows: Sequence[VariantRow]


def measure(request: Request, folder: Path) -> SceptrRun:
    """Audit every variant, and one model with random weights, on the same receptors."""
    models = (request.models or request.out / "models") / "sceptr"
    if not models.exists():
        if not request.fetch:
            raise InputError(f"{models} does not exist; download the models with --fetch")
        request.progress("sceptr: fetching", 0, None)
        fetch_variants(models)
    receptors = draw_receptors(
        models / Path(GERMLINE).name, models / Path(SEGMENTS).name, count=request.inputs or INPUTS, seed=request.seed
    )
    trained = [(variant, load_variant(models, variant)) for variant in variants(models)]
    default = next((model for variant, model in trained if variant.name == DEFAULT), None)
    if default is None:
        raise InputError(f"{models} has no variant {DEFAULT}; remove the folder and download it again with --fetch")
    untrained = Variant(name=RANDOM, loops="all", data="")
    # The seeds before it are those of the baseline.
    audited = [*trained, (untrained, fresh(default, request.seed + BASELINE_DRAWS))]
    subjects = [
        Subject(
            name=variant.name,
            architecture="encoder of T-cell receptors",
            licence="MIT",
            command=" ".join(["pip download --no-deps", *PACKAGES]),
            load=partial(_ready, model, as_batches(receptors, variant.loops)),
        )
        for variant, model in audited
    ]
    measured = measure_all(subjects, request, folder, theory=None)
    return SceptrRun(
        rows=[
            VariantRow(
                variant=variant,
                accuracy=_accuracy(model, receptors, variant.loops),
                measured=row,
                like_default=variant.loops == "all" and _shape(model) == _shape(default),
            )
            for (variant, model), row in zip(audited, measured, strict=True)
        ]
    )


def _ready(model: ReceptorEncoder, batches: list[Any]) -> Ready:
    return Ready(model=model, batches=batches, source="receptors drawn by seed", untrained=partial(fresh, model))


def _accuracy(model: ReceptorEncoder, receptors: Sequence[Receptor], loops: str) -> float:
    batches = [batch["tokens"] for batch in as_batches(receptors, loops)]
    weights = torch.tensor([float((tokens[..., 0] > 0).sum() - len(tokens)) for tokens in batches])
    shares = torch.tensor([model.masked_accuracy(tokens) for tokens in batches])
    return float((weights * shares).sum() / weights.sum())


def _shape(model: ReceptorEncoder) -> tuple[int, int]:
    return model.residues.in_features, len(model.encoder.layers)


def report(run: SceptrRun, request: Request) -> Report:
    """Tabulate verdicts by variant and theory, then test which claims separate the training data."""
    missing = [f"{row.variant.name}: {row.measured.reason}" for row in run.rows if row.measured.record is None]
    if missing:
        raise InputError(f"a variant could not be measured; {missing[0]}")
    alike = [row for row in run.rows if row.like_default]
    real = [row for row in alike if row.data == "real receptors"]
    compared = {row.data: row for row in alike if row not in real}
    if len(real) < 3 or not compared:
        raise InputError("too few variants of the default's shape to compare; remove the folder and use --fetch again")
    values = {row.variant.name: head_values(_record(row)) for row in alike}
    separations = {
        data: separate([values[other.variant.name] for other in real], values[row.variant.name])
        for data, row in compared.items()
    }
    separating = {
        data: [claim for claim in claims if claim.adjusted_p_value <= RATE] for data, claims in separations.items()
    }
    names = ", ".join(row.variant.name for row in real)
    sentences = [_sentence(data, separating[data], len(separations[data])) for data in separations]
    return Report(
        headline=" ".join(sentences),
        setting=f"Seed {request.seed}. {SETTING}",
        sections=[
            ("Verdicts", _verdict_table(run.rows)),
            (
                "Does a claim separate training data?",
                f"{' '.join(sentences)}\n\nCompared are models of one shape (3 layers of 8 heads, width 64) that read "
                f"all loops: {len(real)} trained on real receptors ({names}; the finetuned one continues SCEPTR, so "
                f"they are not all independent), and one each of {', '.join(map(_kind, compared))}. A claim separates "
                "if the model's median over heads lies outside the range that is predicted for one more model trained "
                "on real receptors (Student's prediction interval), at a false discovery rate of 5 % over the claims. "
                "With one model per kind of data, only large effects show. Random weights are the positive control.",
            ),
            ("Medians over heads, and adjusted p-values", _separation_table(separations)),
            ("Claims in which heads differ from those of SCEPTR", _head_table(alike, values, request.seed)),
        ],
        facts={
            "separating": {
                data: [f"{claim.theory}: {claim.statistic}" for claim in claims] for data, claims in separating.items()
            }
        },
        print_page=True,
    )


def _record(row: VariantRow) -> Mapping[str, Any]:
    assert row.measured.record is not None, "rows without a record raise before"
    return row.measured.record


def _kind(data: str) -> str:
    return RANDOM if data == "none" else f"training on {data}"


def _sentence(data: str, separating: Sequence[Separation], tested: int) -> str:
    what = _kind(data)
    if not separating:
        return f"No claim of {tested} separates {what} from training on real receptors."
    listed = ", ".join(f"{claim.statistic} ({claim.theory})" for claim in separating[:6])
    more = f" and {len(separating) - 6} more" if len(separating) > 6 else ""
    verb = "separates" if len(separating) == 1 else "separate"
    return f"{len(separating)} of {tested} claims {verb} {what} from training on real receptors: {listed}{more}."


def _verdict_table(rows: Sequence[VariantRow]) -> Table:
    primary = [claim for claim in _record(rows[0])["claims"] if claim["role"] == str(Role.PRIMARY)]
    fields = [
        Field(title="variant", cells=[row.variant.name for row in rows], text=True),
        Field(title="trained on", cells=[row.data for row in rows], text=True),
        Field(title="masked residues", cells=[f"{row.accuracy:.0%}" for row in rows]),
    ]
    for claim in primary:
        cells = [_cell(row, claim["theory"], claim["statistic"]) for row in rows]
        fields.append(Field(title=f"{claim['theory']}: {claim['statistic']}", cells=cells, text=True))
    return fields


def _cell(row: VariantRow, theory: str, statistic: str) -> str:
    summaries: Sequence[Mapping[str, Any]] = _record(row)["summaries"]
    summary = next((s for s in summaries if (s["theory"], s["statistic"]) == (theory, statistic)), None)
    if summary is None or summary["median"] is None:
        return str(Verdict.NOT_APPLICABLE)
    counts = [summary["verdicts"].get(str(verdict), 0) for verdict in COUNTED]
    judged = " / ".join(str(count) for count in counts) if any(counts) else str(summary["verdict"])
    return f"{judged}; {short(summary['median'])}"


def _separation_table(separations: Mapping[str, Sequence[Separation]]) -> Table:
    found = {data: {(s.theory, s.statistic): s for s in claims} for data, claims in separations.items()}
    keys = list(dict.fromkeys(key for claims in found.values() for key in claims))
    others = [next(claims[key] for claims in found.values() if key in claims).others for key in keys]
    columns = [
        Field(title="theory", cells=[theory for theory, _ in keys], text=True),
        Field(title="statistic", cells=[statistic for _, statistic in keys], text=True),
        Field(
            title="real receptors, median [range]",
            cells=[f"{short(median(o))} [{short(min(o))}, {short(max(o))}]" for o in others],
        ),
    ]
    for data, claims in found.items():
        cells = [
            f"{short(claims[key].value)} (p {_p(claims[key].adjusted_p_value)})" if key in claims else "-"
            for key in keys
        ]
        columns.append(Field(title=RANDOM if data == "none" else data, cells=cells))
    return columns


def _p(value: float) -> str:
    return f"{value:.0e}" if value < 1e-3 else f"{value:.2g}"


def _head_table(alike: Sequence[VariantRow], values: Mapping[str, Any], seed: int) -> Table:
    others = [row for row in alike if row.variant.name != DEFAULT]
    tests = [heads_differ(values[DEFAULT], values[row.variant.name], seed=seed) for row in others]
    return [
        Field(title="variant", cells=[row.variant.name for row in others], text=True),
        Field(title="trained on", cells=[row.data for row in others], text=True),
        Field(
            title="claims in which heads differ, of those measured in all heads",
            cells=[f"{sum(p <= RATE for p in test.values())} of {len(test)}" for test in tests],
        ),
    ]


SCEPTR_TABLE = Experiment(
    name="calibration/sceptr",
    title="16 variants of one model: does a claim separate training data?",
    reproduces="all claims on 16 variants of SCEPTR (Nagano et al. 2025), trained on real, shuffled and synthetic data",
    cost="30 min, and 12 MB of downloads",
    measure=measure,
    report=report,
    options=frozenset({"models", "fetch", "inputs"}),
)
