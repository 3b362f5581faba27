"""Where and how a model runs: on devices, offloaded by accelerate, divided among processes, compiled in parts.

Nothing is imported from accelerate or torch.distributed: a model that needs them has imported them.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.interfaces.call import AttentionNotSeenError


def input_device(model: nn.Module) -> torch.device:
    """Return the device for the model's inputs: that of its first weight that is in memory.

    Weights that accelerate has offloaded have none (meta); its hooks then move the inputs from the CPU.
    """
    return next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))


def full_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the model's state dict, with offloaded and divided tensors complete, one at a time."""
    offloaded = dict(_offloaded(model))
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and value.is_meta and name in offloaded:
            hook, key = offloaded[name]
            yield name, hook.weights_map[key]
        else:
            yield name, value.full_tensor() if _is_divided(value) else value


def _offloaded(model: nn.Module) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the names of the tensors that accelerate has offloaded, and where its hooks have them."""
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for each in getattr(hook, "hooks", (hook,)):
            if getattr(each, "weights_map", None) is None:
                continue
            recurse = bool(getattr(each, "place_submodules", False))
            named = chain(module.named_parameters(recurse=recurse), module.named_buffers(recurse=recurse))
            for key, _ in named:
                yield f"{path}.{key}" if path else key, (each, key)


def _is_divided(value: Any) -> bool:
    """Return whether the value is a DTensor, of which each process has a part."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor") and hasattr(value, "device_mesh")


def frees_weights(model: nn.Module) -> bool:
    """Return whether the model's weights are in memory only while their module runs, as with FSDP2."""
    return any(hasattr(module, "unshard") and hasattr(module, "reshard") for module in model.modules())


@contextmanager
def without_compiling() -> Iterator[None]:
    """Run compiled parts of a model as they were written.

    Otherwise torch would compile the code that looks at their attention, which takes minutes and fails. If nothing has
    imported the compiler, there is nothing to do, and it is not imported.
    """
    with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
        yield


def refuse_divided_heads(module: nn.Module, name: str, *tensors: Tensor) -> None:
    """Raise AttentionNotSeenError if the heads of an attention call are divided among processes.

    Under FSDP2 the weights of a module are complete while it runs; under tensor parallelism a process has some heads.
    """
    values: Iterable[Any] = (*tensors, *module.parameters())
    for value in values:
        if _is_divided(value) and value.device_mesh.size() > 1:
            raise AttentionNotSeenError(
                f"the heads of {name} are divided among {value.device_mesh.size()} processes (DTensor), and each would "
                "measure its own; audit the model without tensor parallelism, or with FSDP"
            )
