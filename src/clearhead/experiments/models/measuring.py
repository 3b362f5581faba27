"""Audit the subjects one by one, and keep what was measured: a measurement with the same inputs is not made again."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.audit.run import AuditError, audit
from clearhead.experiments.experiment import Request, installed_version, write_json
from clearhead.experiments.fingerprint import of_code, of_tensors
from clearhead.experiments.models.subjects import Ready, Subject
from clearhead.models.objects import LoadError
from clearhead.report.json_file import audit_as_json
from clearhead.sockets import AttentionNotSeenError

__all__ = ["Measured", "measure_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A subject and the audit of it, as `audit_as_json` writes it; or None and the reason."""

    subject: Subject
    source: str = ""
    record: dict[str, Any] | None = None
    reason: str = ""


def measure_all(subjects: Iterable[Subject], request: Request, folder: Path, *, theory: str) -> list[Measured]:
    """Measure a theory on each subject. What cannot be had or measured says why, and the others go on."""
    listed = list(subjects)
    measured = []
    for i, subject in enumerate(listed):
        request.tell(f"{subject.name}: loading", i, len(listed))
        try:
            path = folder / "measured" / f"{subject.name}.json"
            tell = functools.partial(_tell, request, subject.name, i, len(listed))
            measured.append(_measure(subject, request, path, theory, tell))
        except (LoadError, AuditError, AttentionNotSeenError) as error:
            measured.append(Measured(subject=subject, reason=str(error)))
    return measured


def _tell(request: Request, name: str, place: int, total: int, phase: str, done: int) -> None:
    request.tell(f"{name}: {phase} {done}", place, total)


def _measure(subject: Subject, request: Request, path: Path, theory: str, tell: Callable[[str, int], None]) -> Measured:
    ready = subject.load()
    key = {
        "version": __version__,
        "theory": theory,
        "code": of_code(),
        "seed": request.seed,
        "contents": _contents(ready),
        "torch": torch.__version__,
        "transformers": installed_version("transformers"),
    }
    kept = _kept(path, key)
    if kept is None:
        record = audit(
            ready.model,
            ready.batches,
            theories=[theory],
            seed=request.seed,
            untrained=None if ready.untrained is None else ready.untrained(request.seed),
            name=subject.name,
            data=ready.source,
            progress=tell,
        )
        kept = audit_as_json(record)
        kept["tokens"] = ready.tokens or record.tokens
        write_json(path, {"key": key, "record": kept})
    return Measured(subject=subject, source=ready.source, record=kept)


def _kept(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored["record"] if isinstance(stored, dict) and stored.get("key") == key else None


def _contents(ready: Ready) -> str:
    """A fingerprint of the weights and the inputs."""
    shown = [tensor for batch in ready.batches for tensor in _tensors(batch)]
    return of_tensors([*ready.model.state_dict().values(), *shown], source=ready.source)


def _tensors(batch: Any) -> list[Tensor]:
    return [batch[name] for name in sorted(batch)] if isinstance(batch, Mapping) else [batch]
