"""From measured parts to the record of an audit: merging, findings, baselines, verdicts."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clearhead import __version__
from clearhead.audit.baseline import baseline_of, with_baseline
from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.audit.part import Part
from clearhead.audit.record import AuditRecord, Timing
from clearhead.audit.results import curves_of, findings_of, notes_of, samples_of
from clearhead.errors import AuditError
from clearhead.theories.catalogue import load_theories
from clearhead.theories.reason import ReasonKind
from clearhead.theories.theory import Need, Role, Theory

__all__ = ["finish_audit"]

BASELINE_LINE = "the same model before training"


def finish_audit(parts: Sequence[Part]) -> AuditRecord:
    """Merge the parts, in the order of their inputs, and return the record of the audit. The parts change."""
    started = time.perf_counter()
    part = _merged(parts)
    loaded = load_theories(part.options["theories"])
    chosen, manifest = loaded.theories, part.manifest
    audited = part.audited
    seconds, judging = dict(part.seconds), 0.0
    findings = []
    for theory in audited.theories:
        start = time.perf_counter()
        findings += findings_of(audited, theory)
        taken = time.perf_counter() - start
        seconds[theory.title] += taken
        judging += taken
    curves = [curve for theory in audited.theories for curve in curves_of(audited, theory)]
    before = baseline_of([each for each in part.passes if each.baseline is not None], findings, audited)
    judged_by_it = [theory for theory in chosen if Need.BASELINE in theory.needs]
    decisive = [theory.title for theory in judged_by_it]
    seed = manifest.seeds["controls"]
    samples = tuple(sample for theory in audited.theories for sample in samples_of(audited, theory))
    findings = with_baseline(
        findings, before.findings, before.with_norms, seed=seed, decisive=decisive, samples=samples
    )
    curves = [curve.with_line(before.curves_like(curve), name=BASELINE_LINE) for curve in curves]
    if before.with_norms and "baseline" in manifest.seeds:
        seeds = {**manifest.seeds, "baseline with the trained norms": manifest.seeds["baseline"]}
        manifest = dataclasses.replace(manifest, seeds=seeds)
    findings = judge(findings)
    _require_length(findings)
    total = part.elapsed + time.perf_counter() - started
    compared = part.options["baseline_for"]
    return AuditRecord(
        model=part.name,
        data=part.data,
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        measured_claims=part.options["claims"],
        inputs=max(audited.inputs, *(finding.inputs + finding.skipped for finding in findings)),
        tokens=audited.tokens,
        fidelity=part.fidelity,
        findings=tuple(findings),
        timing=Timing(
            check=part.check,
            forward=total - part.check - part.measuring - judging,
            theory=seconds,
            total=total,
            peak_memory=part.peak_memory,
        ),
        whole_model=part.whole_model,
        disputes=tuple(theory.dispute for theory in chosen if theory.dispute is not None),
        curves=tuple(curves),
        notes=(
            *part.notes,
            *_baseline_notes(chosen, compared, before.models),
            *(note for theory in audited.theories for note in notes_of(audited, theory)),
        ),
        theories=loaded.sources,
        samples=samples,
        manifest=manifest,
        baselines=before.counts,
        words={theory.title: theory.words for theory in chosen if theory.words is not None},
        positions={theory.title: theory.positions for theory in chosen if theory.positions},
        shown=part.shown,
        texts=tuple(audited.texts) if any(audited.texts) else (),
    )


def _merged(parts: Sequence[Part]) -> Part:
    """Return the first part with the sums of all. Times are those of all parts together, memory that of the largest."""
    whole, *others = parts
    for part in others:
        for pass_ in part.passes:
            [mine] = [mine for mine in whole.passes if (mine.baseline, mine.norms) == (pass_.baseline, pass_.norms)]
            mine.merge(pass_)
        whole.seconds = {title: seconds + part.seconds[title] for title, seconds in whole.seconds.items()}
        whole.check += part.check
        whole.measuring += part.measuring
        whole.elapsed += part.elapsed
        whole.peak_memory = max(whole.peak_memory or 0, part.peak_memory or 0) or None
        whole.shown = whole.shown or part.shown
        whole.notes = tuple(dict.fromkeys((*whole.notes, *part.notes)))
        machine = _all_values(whole.manifest.machine, part.manifest.machine)
        whole.manifest = dataclasses.replace(whole.manifest, machine=machine)
    return whole


def _all_values(machine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of two machines, with both values where they differ."""
    values = {key: dict.fromkeys((*str(value).split("; "), str(other.get(key)))) for key, value in machine.items()}
    return {key: machine[key] if len(both) == 1 else "; ".join(both) for key, both in values.items()}


def _baseline_notes(chosen: Sequence[Theory], compared: Sequence[str], baselines: int) -> Iterator[str]:
    for theory in chosen:
        if Need.BASELINE in theory.needs and (theory.key not in compared or not baselines):
            yield f"{theory.title}: undecided without a baseline; an untrained model may do as well"
        elif Need.BASELINE in theory.needs and baselines == 1:
            yield f"{theory.title}: one baseline model is shown and does not decide; give several"


def _require_length(findings: Sequence[Finding]) -> None:
    """Raise AuditError if inputs are too short for every primary claim."""
    deciding = [f for f in findings if f.claim.role is Role.PRIMARY and f.verdict is not Verdict.TRUE_BY_CONSTRUCTION]
    short = [reason for f in deciding for reason in f.reasons if reason.kind is ReasonKind.TOO_SHORT]
    if short and all(finding.inputs == 0 for finding in deciding):
        raise AuditError(f"every input is too short to be measured: {short[0].text}; give longer inputs")
