"""What torchrun says about this process. Nothing heavy is imported here."""

import os

__all__ = ["is_first", "under_torchrun"]


def under_torchrun() -> bool:
    """Return whether torchrun started this process together with others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_first() -> bool:
    """Return whether this process speaks for all: it is alone, or the first of those that torchrun started."""
    return not under_torchrun() or os.environ.get("RANK") == "0"
