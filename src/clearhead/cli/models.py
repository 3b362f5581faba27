"""The model that a command names, loaded with imports from the current folder for a function, and none for a folder."""

from typing import Any

from clearhead.cli.import_path import allow_current_folder, never_import_from
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.loading.model import LoadedModel, load_model
from clearhead.loading.objects import is_object_path

__all__ = ["load_named_model"]


def load_named_model(name: str, **options: Any) -> LoadedModel:
    """Load the model. options: those of `load_model`."""
    ensure_torchvision()
    if is_object_path(name):
        allow_current_folder([name])
    else:
        never_import_from(name)
    return load_model(name, **options)
