"""What every attention module owes its callers, one check per promise; those about masks and order have a file beside.

A check takes a `ModuleSubject` and raises if the promise is broken.
"""

import copy
import dataclasses
import io
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from clearhead.modules.contract_subject import LOUD, ModuleSubject, first_tensor, gradients
from clearhead.numerics.precision import difference_step
from clearhead.operators.contract_subject import require, require_close

__all__ = ["PLAIN_MODULE_CHECKS"]


def _output(subject: ModuleSubject) -> None:
    out = subject.attend(subject.draw())
    require(out.shape[:1] == subject.shape[:1], f"expected {subject.shape[0]} outputs, got shape {tuple(out.shape)}")
    require(out.dtype == torch.float64, f"expected the input's dtype torch.float64, got {out.dtype}")
    require(out.isfinite().all(), "the output is not finite")


def _depends_on_inputs(subject: ModuleSubject) -> None:
    one, other = subject.attend(subject.draw()), subject.attend(subject.draw(seed=subject.seed + 1))
    require(not torch.equal(one, other), "another input gave the same output: the module is constant")


def _determinism(subject: ModuleSubject) -> None:
    x, options = subject.draw(dtype=torch.float64), subject.options()
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    first, second = subject.attend(x, **options), subject.attend(x, **options)
    require(torch.equal(first, second), "two runs in evaluation differ: dropout, or state that a call changes")
    for name, value in subject.module.state_dict().items():
        require(torch.equal(before[name], value), f"a call in evaluation changed {name}")
    once, again = gradients(subject, x, **options), gradients(subject, x, **options)
    for name, value in once.items():
        require(torch.equal(value, again[name]), f"gradients for {name} differ between two runs")


def _inputs_untouched(subject: ModuleSubject) -> None:
    x, options = subject.draw(), subject.options()
    copies = [value.clone() for value in (x, *options.values())]
    subject.module(x, **options)
    for name, value, kept in zip(("the input", *options), (x, *options.values()), copies, strict=True):
        require(torch.equal(value, kept), f"{name} was changed in place")


def _inputs_apart(subject: ModuleSubject) -> None:
    x, options = subject.draw(), subject.options()
    whole = subject.attend(x, **options)
    for i in range(len(x)):
        only = slice(i, i + 1)
        got = subject.attend(x[only], **{name: value[only] for name, value in options.items()})
        what = f"input {i} by itself and within a batch"
        require_close(got, whole[only], within=subject.tolerance(torch.float64), what=what)


def _gradients(subject: ModuleSubject) -> None:
    x, options, step = subject.draw(), subject.options(), difference_step(torch.float64)
    parameters = {name: p.detach().clone() for name, p in subject.module.named_parameters() if p.requires_grad}

    def attend(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(parameters, values, strict=True))
        return first_tensor(torch.func.functional_call(subject.module, given, (x.clone(),), options))

    leaves = tuple(value.requires_grad_() for value in (x, *parameters.values()))
    require(attend(*leaves).requires_grad, "the output is cut off from its input: it has no gradient")
    # Along a random direction for each leaf: entry by entry a layer of usual width would take hours.
    torch.autograd.gradcheck(attend, leaves, eps=step, atol=step, rtol=100 * step, fast_mode=True)


def _finite(subject: ModuleSubject, x: Tensor, what: str) -> None:
    require(subject.attend(x).isfinite().all(), f"{what} made the output not finite")
    for name, value in gradients(subject, x).items():
        require(value.isfinite().all(), f"{what} made the gradient for {name} not finite")


def _single_token(subject: ModuleSubject) -> None:
    x = subject.draw()[:, :1]
    _finite(subject, x, "one token")
    require(subject.attend(x).shape[0] == len(x), "one token: expected an output for every input")


def _empty_batch(subject: ModuleSubject) -> None:
    x = subject.draw()
    out, want = subject.attend(x[:0]), (0, *subject.attend(x).shape[1:])
    require(tuple(out.shape) == want, f"expected shape {want}, got {tuple(out.shape)}")
    for name, value in gradients(subject, x[:0]).items():
        require(value.isfinite().all(), f"an empty batch made the gradient for {name} not finite")


def _zero_inputs(subject: ModuleSubject) -> None:
    _finite(subject, torch.zeros_like(subject.draw()), "an input of zeros")


def _large_inputs(subject: ModuleSubject) -> None:
    narrow = dataclasses.replace(subject, module=copy.deepcopy(subject.module).float())
    _finite(narrow, LOUD * subject.draw(dtype=torch.float32), f"an input of size {LOUD:.0f} in float32")


def _non_contiguous(subject: ModuleSubject) -> None:
    x = subject.draw()
    want = subject.attend(x)
    layouts = {
        "transposed": x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "strided": torch.stack([x, x], dim=-1).flatten(-2)[..., ::2],
        "batch behind": x.transpose(0, 1).contiguous().transpose(0, 1),
    }
    for name, laid_out in layouts.items():
        got = first_tensor(subject.module(laid_out))
        require_close(got, want, within=subject.tolerance(torch.float64), what=f"{name} input")


def _dtype_ladder(subject: ModuleSubject) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rounded, wide = (dataclasses.replace(subject, module=copy.deepcopy(subject.module)) for _ in range(2))
        rounded.module.to(dtype)
        wide.module.load_state_dict(rounded.module.state_dict())  # so that both have the same parameters
        x, options = subject.draw(dtype=dtype), subject.options()
        got, want = rounded.attend(x, **options), wide.attend(x.double(), **options)
        require(got.dtype == dtype, f"expected the input's dtype {dtype}, got {got.dtype}")
        require_close(got, want, within=subject.tolerance(dtype), what=f"{dtype} against float64")


def _autocast(subject: ModuleSubject) -> None:
    narrow = dataclasses.replace(subject, module=copy.deepcopy(subject.module).float())
    x, options = subject.draw(dtype=torch.float32), subject.options()
    want = narrow.attend(x, **options)
    with torch.autocast(subject.device.type, dtype=torch.bfloat16):
        got = narrow.attend(x, **options)
    require_close(got, want, within=subject.tolerance(torch.bfloat16), what="under autocast to bfloat16")


def _compile(subject: ModuleSubject) -> None:
    x = subject.draw()
    torch.compiler.reset()  # else earlier compilations of the same function count toward the limit of recompilations
    compiled = torch.compile(subject.module, fullgraph=True, backend=subject.backend)
    for options in (dict[str, Tensor](), subject.options()):
        got, want = first_tensor(compiled(x.clone(), **options)), subject.attend(x, **options)
        require_close(got, want, within=subject.tolerance(torch.float64), what="compiled")


def _plain_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Floating tensors that are attributes of a module, or in a list or dict that is one, and no part of its state."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            for x in held:
                if isinstance(x, Tensor) and x.is_floating_point():
                    yield f"{path}.{name}".lstrip("."), x


def _state_dict(subject: ModuleSubject) -> None:
    x, options = subject.draw(), subject.options()
    want, other = subject.attend(x, **options), copy.deepcopy(subject.module)
    outside = dict(_plain_tensors(other))
    with torch.no_grad():
        for value in (*other.parameters(), *other.state_dict().values(), *outside.values()):
            if value.is_floating_point():
                value.data.add_(torch.ones_like(value))
    saved = io.BytesIO()
    torch.save(subject.module.state_dict(), saved)
    saved.seek(0)
    other.load_state_dict(torch.load(saved, weights_only=True))
    got = dataclasses.replace(subject, module=other).attend(x, **options)
    names = f": {', '.join(outside)}" if outside else ""
    require(torch.equal(got, want), f"loading its state dict does not bring the output back; state outside it{names}")


def _copy(subject: ModuleSubject) -> None:
    x, copied = subject.draw(), copy.deepcopy(subject.module)
    before = subject.attend(x)
    same = dataclasses.replace(subject, module=copied).attend(x)
    require(torch.equal(same, before), "a copy gives another output")
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.data.add_(torch.ones_like(parameter))
    require(torch.equal(subject.attend(x), before), "changing a copy's parameters changed the module")


PLAIN_MODULE_CHECKS: dict[str, Callable[[ModuleSubject], None]] = {
    "output": _output,
    "depends_on_inputs": _depends_on_inputs,
    "determinism": _determinism,
    "inputs_untouched": _inputs_untouched,
    "inputs_apart": _inputs_apart,
    "gradients": _gradients,
    "single_token": _single_token,
    "empty_batch": _empty_batch,
    "zero_inputs": _zero_inputs,
    "large_inputs": _large_inputs,
    "non_contiguous": _non_contiguous,
    "dtype_ladder": _dtype_ladder,
    "autocast": _autocast,
    "compile": _compile,
    "state_dict": _state_dict,
    "copy": _copy,
}
