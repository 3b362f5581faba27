"""A theory's claims on every published model that can be had, as one table."""

from pathlib import Path

from clearhead.errors import InputError
from clearhead.experiments.experiment import Experiment, Outcome, Request, write_json, write_text
from clearhead.experiments.models.measuring import measure_all
from clearhead.experiments.models.subjects import subjects
from clearhead.experiments.models.table import as_facts, as_markdown
from clearhead.sockets.torchvision_shim import ensure_torchvision

__all__ = ["KERNEL_PCA_TABLE", "MAX_MARGIN_TABLE"]


def _table_of(theory: str, *, name: str, title: str, reproduces: str, cost: str) -> Experiment:
    def run(request: Request, folder: Path) -> Outcome:
        ensure_torchvision()
        measured = measure_all(subjects(request), request, folder, theory=theory)
        shown = [row for row in measured if row.record is not None]
        if not shown:
            raise InputError(f"no model could be measured; {measured[0].subject.name}: {measured[0].reason}")
        # Where things lie on this machine does not change a number.
        chosen = {"--seed": request.seed or None, "--inputs": request.inputs}
        command = " ".join(
            [
                f"clearhead reproduce {name} --fetch",
                *(f"{option} {value}" for option, value in chosen.items() if value is not None),
            ]
        )
        text = as_markdown(measured, title=title, command=command, seed=request.seed)
        write_json(folder / "table.json", as_facts(measured, command=command, seed=request.seed))
        write_text(folder / "table.md", text)
        missing = tuple(f"not measured: {row.subject.name}: {row.reason}" for row in measured if row.record is None)
        return Outcome(
            headline=f"{len(shown)} of {len(measured)} models measured",
            lines=(text.rstrip("\n"), *missing),
            files=(folder / "table.md", folder / "table.json"),
        )

    return Experiment(
        name=name,
        reproduces=reproduces,
        cost=cost,
        run=run,
        options=frozenset({"data", "models", "fetch", "inputs"}),
    )


KERNEL_PCA_TABLE = _table_of(
    "kernel-pca",
    name="kernel-pca/models",
    title="Kernel PCA on trained transformers",
    reproduces="kernel PCA's claims (Teo and Nguyen 2024) on trained models, beside chance",
    cost="1 h, and 700 MB to fetch",
)
MAX_MARGIN_TABLE = _table_of(
    "max-margin",
    name="svm/models",
    title="Max margin on trained transformers",
    reproduces="the attention SVM's claims (Tarzanagh et al. 2023) on trained models, beside chance",
    cost="30 min, and 700 MB to fetch",
)
