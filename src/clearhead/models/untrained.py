"""The untrained twin of a loaded model, and how transformers is kept from the network and from talking."""

import contextlib
import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from clearhead.models.objects import LoadError, first_line

__all__ = ["Draw", "offline", "quiet", "untrained_twin"]

Draw = Callable[[int], nn.Module]
"""From a seed to a model."""


def untrained_twin(transformers: Any, model: nn.Module, name: str) -> Draw:
    """How to draw the model's weights anew, by its family's own initialisation.

    Each twin has the architecture, the attention implementation and the dtype of the model and is in evaluation mode.
    Equal seeds give equal weights; the process's random state stays as it was, and so does the model's configuration.
    """
    config = copy.deepcopy(model.config)
    attention = config._attn_implementation  # type: ignore[union-attr]

    def draw(seed: int) -> nn.Module:
        with offline(), quiet(transformers), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                twin: nn.Module = transformers.AutoModel.from_config(
                    copy.deepcopy(config), attn_implementation=attention, trust_remote_code=False
                )
            except Exception as error:
                raise LoadError(f"cannot draw the weights of {name} anew: {first_line(error)}") from error
        return twin.eval()

    return draw


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """The hub cannot be reached, whatever the environment says: local_files_only does not reach a model's backbone."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No progress bars, remarks or warnings while transformers loads."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
