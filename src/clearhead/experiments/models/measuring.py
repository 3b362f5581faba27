"""Audits of the models of a table, each cached: an audit with the same model, inputs and code is not repeated."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.audit.run import AuditError, audit
from clearhead.experiments.cache import code_fingerprint, load_cached, store, tensor_fingerprint
from clearhead.experiments.experiment import Request, installed_version
from clearhead.experiments.models.subjects import Ready, Subject
from clearhead.models.objects import LoadError
from clearhead.report.json_file import audit_as_json

__all__ = ["Measured", "measure_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A subject and its audit, as `audit_as_json` returns it; or None and the reason."""

    subject: Subject
    source: str = ""
    record: dict[str, Any] | None = None
    reason: str = ""


def measure_all(subjects: Iterable[Subject], request: Request, folder: Path, *, theory: str) -> list[Measured]:
    """Measure a theory on each subject. A subject that cannot be loaded or measured gives its reason."""
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
            stored = load_cached(path, key, notice=request.notice)
            if stored is None:
                record = audit(
                    ready.model,
                    ready.batches,
                    theories=[theory],
                    seed=request.seed,
                    untrained=None if ready.untrained is None else ready.untrained(request.seed),
                    name=subject.name,
                    data=ready.source,
                    progress=progress,
                )
                result = store(path, key, {**audit_as_json(record), "tokens": ready.tokens or record.tokens})
            else:
                result = stored["result"]
            measured.append(Measured(subject=subject, source=ready.source, record=result))
        except (LoadError, AuditError, AttentionNotSeenError) as error:
            measured.append(Measured(subject=subject, reason=str(error)))
    return measured


def _fingerprint(ready: Ready) -> str:
    """Return a fingerprint of the weights and the inputs."""
    inputs = [tensor for batch in ready.batches for tensor in _tensors(batch)]
    return tensor_fingerprint([*ready.model.state_dict().values(), *inputs], source=ready.source)


def _tensors(batch: Any) -> list[Tensor]:
    return [batch[name] for name in sorted(batch)] if isinstance(batch, Mapping) else [batch]
