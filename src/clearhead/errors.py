"""The exceptions Clearhead raises on purpose. Anything else that escapes is a defect."""


class ClearheadError(Exception):
    """Base class of every error that Clearhead raises on purpose. The message names the cause and the remedy."""


class InputError(ClearheadError, ValueError):
    """An argument, file, model or input that cannot be used as given."""


class AuditError(InputError):
    """An audit that cannot give numbers. The message names the cause and the remedy."""


class MissingPackageError(InputError):
    """A package of an optional extra that is not installed."""


class NotEnoughMemoryError(ClearheadError, MemoryError, RuntimeError):
    """A computation that does not fit into memory. The message names the bytes and what to change.

    It is a RuntimeError, says "out of memory." and repeats what the allocator called it, because callers who try again
    with smaller batches look for these.
    """
