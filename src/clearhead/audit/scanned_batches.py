"""The batches of an audit: counted, and compared with those of the audit that is continued."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.part import Part
from clearhead.audit.passes import count_inputs
from clearhead.errors import AuditError

__all__ = ["Scan", "require_data", "same_batches", "scan"]

OTHER_DATA = "the interrupted audit is of other inputs; delete its file to start again, or choose another folder"


@dataclass(frozen=True, slots=True)
class Scan:
    """The numbers of inputs of all batches, and the checksum of the batches up to each."""

    sizes: list[int] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)

    @property
    def checksum(self) -> str:
        """The checksum of all batches."""
        return self.checksums[-1] if self.checksums else ""


def scan(batches: Iterable[Any]) -> Scan:
    """Go over all batches without running the model."""
    if iter(batches) is batches:
        raise AuditError("the shards of an iterator cannot be counted: give the batches as a list")
    scanned, checksum = Scan(), BatchChecksum()
    for batch in checksum.of(batches):
        scanned.sizes.append(count_inputs(batch))
        scanned.checksums.append(checksum.hexdigest())
    return scanned


def same_batches(batches: Iterable[Any], checksum: BatchChecksum, count: int, expected: str) -> Iterator[Any]:
    """Yield the batches. Raise AuditError if the first `count` are not those of the interrupted audit.

    expected: the checksum of these; "" if no audit was interrupted
    """
    for number, batch in enumerate(batches, start=1):
        if expected and number == count and checksum.hexdigest() != expected:
            raise AuditError(OTHER_DATA)
        yield batch
        del batch  # or it would stay in memory while the next one is made


def require_data(part: Part, batches: Iterable[Any]) -> None:
    """Raise AuditError if the batches are not those of the interrupted audit, which has measured all of them."""
    if part.shard.count == 1 and scan(batches).checksum != part.manifest.data:
        raise AuditError(OTHER_DATA)
