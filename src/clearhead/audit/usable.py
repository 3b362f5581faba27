"""What the options of an audit name, found on this machine: theories, descriptions, the loss, and the device."""

import dataclasses
from pathlib import Path

import torch

from clearhead.audit.options import AuditOptions, Claims
from clearhead.audit.workers import usable_workers
from clearhead.errors import AuditError
from clearhead.interfaces import read_descriptions
from clearhead.loading.objects import load_function
from clearhead.theories.catalogue import LoadedTheories, load_theories

__all__ = ["usable_options"]


def usable_options(options: AuditOptions) -> tuple[AuditOptions, LoadedTheories]:
    """Return the options with what they name in place of names, and the theories. A named loss runs its code.

    Raise InputError for what is not there or cannot be used here.
    """
    if options.loss is not None and options.claims is not Claims.ALL:
        raise AuditError('no primary claim needs a loss; measure all claims (claims="all", --claims all), or no loss')
    device = _usable_device(options.device)
    loaded = load_theories(options.theories)
    usable = dataclasses.replace(
        options,
        theories=tuple(theory.key for theory in loaded.theories),
        describe=tuple(read_descriptions(options.describe)) if isinstance(options.describe, Path) else options.describe,
        loss=load_function(options.loss) if isinstance(options.loss, str) else options.loss,
        device=str(device),
        workers=usable_workers(options.workers, device),
    )
    return usable, loaded


def _usable_device(name: str) -> torch.device:
    """Return the device of the theories' arithmetic. Raise AuditError if this machine cannot compute on it."""
    try:
        usable = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=usable).cpu()  # theories compute in double precision
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        available = "cpu" if accelerator is None else f"cpu or {accelerator}"
        raise AuditError(
            f"theories cannot compute on the device {name!r} ({reason[:120]}); choose {available}"
        ) from None
    return usable
