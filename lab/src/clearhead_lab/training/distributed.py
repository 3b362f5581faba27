"""The processes of a training run: one, or those that torchrun started.

There is no launcher here. Under torchrun every process computes the gradient of its rows of a batch. With "ddp" each
holds the whole model (DistributedDataParallel); with "fsdp" each holds a part of every weight (fully_shard).
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from clearhead.errors import InputError

Sharding = Literal["ddp", "fsdp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process and how many there are.

    rank: the number of this process, from 0
    count: the number of processes
    sharding: how they share the model; None for a process that is alone and has no group
    """

    rank: int = 0
    count: int = 1
    sharding: Sharding | None = None

    @property
    def first(self) -> bool:
        """Return True for the process that writes files and prints."""
        return self.rank == 0

    def rows(self, batch_size: int) -> slice:
        """Return the rows of a batch that this process takes."""
        if batch_size % self.count:
            raise InputError(f"expected a batch_size that {self.count} processes divide; got {batch_size}")
        share = batch_size // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def wrap(self, module: nn.Module, model: nn.Module) -> nn.Module:
        """Return the module so that a backward pass averages gradients over the processes.

        model: the part of the module that has all parameters; "fsdp" divides it, so that it can also be called alone
        """
        if self.sharding is None:
            return module
        if self.sharding == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(module)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.count,))
        # Only blocks: every process must call what is divided by itself, and a cluster of an adaptive softmax is called
        # where a batch has its words.
        for name, child in list(model.named_modules()):
            if isinstance(child, nn.ModuleList) and name.endswith("blocks"):
                for block in child:
                    fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if hasattr(model, "loss"):  # of language models, called in place of forward
            register_fsdp_forward_method(model, "loss")
        return module

    def without_reduction(self, module: nn.Module, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Return a context in which backward passes do not average gradients yet, unless it is the last part.

        module, model: as in `wrap`, of which `module` is the result
        """
        if self.sharding == "ddp" and not last:
            context: AbstractContextManager[None] = module.no_sync()  # type: ignore[operator]
            return context
        if self.sharding == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a value over the processes."""
        if self.sharding is None:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value / self.count

    def any(self, flag: bool, *, device: torch.device) -> bool:
        """Return True in all processes if the flag is True in one."""
        return bool(self.mean(torch.tensor(float(flag), device=device)) > 0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.sharding is not None:
            dist.barrier()


ALONE = Processes()


@contextmanager
def join_processes(sharding: Sharding = "ddp") -> Iterator[Processes]:
    """Join the processes that torchrun started; without torchrun this process is alone."""
    if sharding not in get_args(Sharding):
        raise InputError(f"expected sharding among {', '.join(get_args(Sharding))}; got {sharding!r}")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Processes(rank=dist.get_rank(), count=dist.get_world_size(), sharding=sharding)
    finally:
        dist.destroy_process_group()


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU; one that is shared between processes is collected, by all of them together."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


@torch.no_grad()
def copy_into(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be shared between processes."""
    if isinstance(target, DTensor):
        whole = distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)
    target.copy_(whole)
