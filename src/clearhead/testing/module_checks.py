"""The checks of modules, x -> y. A check takes a `ModuleSubject` and raises if it fails.

`key_mask` is True at tokens, as in this package; `key_padding_mask` is True at padding, as in
torch.nn.MultiheadAttention. With `causal` or `is_causal` a token sees itself and the tokens before it.
"""

import copy
import dataclasses
import io
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from clearhead.testing.modules import ModuleSubject
from clearhead.testing.subject import SHARED_CHECKS, require, require_close, require_finite

LARGE = 2.0**10
"""The entries of hidden tokens: scores of a million, beyond masks made of large numbers instead of -inf."""


def _zero_inputs(subject: ModuleSubject) -> None:
    zeros = {name: torch.zeros_like(value) for name, value in subject.draw().items()}
    require_finite(subject, zeros, "an input of zeros")


def _large_inputs(subject: ModuleSubject) -> None:
    narrow, _ = subject.rounded(torch.float32)
    inputs = {name: LARGE * value for name, value in subject.draw(dtype=torch.float32).items()}
    require_finite(narrow, inputs, f"an input of size {LARGE:.0f} in float32")


def _autocast(subject: ModuleSubject) -> None:
    narrow, _ = subject.rounded(torch.float32)
    inputs, options = subject.draw(dtype=torch.float32), subject.options()
    want = narrow.output(inputs, **options)
    with torch.autocast(subject.device.type, dtype=torch.bfloat16):
        got = narrow.output(inputs, **options)
    require_close(got, want, within=subject.tolerance(torch.bfloat16), what="under autocast to bfloat16")


def _plain_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield floating tensors that are attributes of a module, or in a list or dict, but not in its state dict."""
    for path, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            for item in items:
                if isinstance(item, Tensor) and item.is_floating_point():
                    yield f"{path}.{name}".lstrip("."), item


def _state_dict(subject: ModuleSubject) -> None:
    inputs, options, other = subject.draw(), subject.options(), copy.deepcopy(subject.module)
    want = subject.output(inputs, **options)
    outside = dict(_plain_tensors(other))
    with torch.no_grad():
        for value in (*other.parameters(), *other.state_dict().values(), *outside.values()):
            if value.is_floating_point():
                value.data.add_(torch.ones_like(value))
    file = io.BytesIO()
    torch.save(subject.module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    got = dataclasses.replace(subject, module=other).output(inputs, **options)
    names = f": {', '.join(outside)}" if outside else ""
    require(torch.equal(got, want), f"loading its state dict does not restore the output; state outside it{names}")


def _copy(subject: ModuleSubject) -> None:
    inputs, copied = subject.draw(), copy.deepcopy(subject.module)
    before = subject.output(inputs)
    same = dataclasses.replace(subject, module=copied).output(inputs)
    require(torch.equal(same, before), "a deepcopy gives another output")
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.data.add_(torch.ones_like(parameter))
    require(torch.equal(subject.output(inputs), before), "changing the parameters of a deepcopy changed the module")


def _zero_at_hidden(out: Tensor, hidden: Tensor) -> Tensor:
    """Return the output with zeros at hidden tokens, whose outputs mean nothing, if there is one for every token."""
    if out.ndim != 3 or out.shape[1] != hidden.shape[1]:
        return out
    return out.masked_fill(hidden.unsqueeze(-1), 0)


def _tokens(subject: ModuleSubject) -> Tensor:
    return subject.draw()[subject.content]


def _call(subject: ModuleSubject, x: Tensor, **options: Tensor | bool) -> Tensor:
    return subject.output({subject.content: x}, **options)


def _key_mask(subject: ModuleSubject) -> None:
    x, hidden, within = _tokens(subject), subject.hidden(), subject.tolerance(torch.float64)
    options = subject.hiding(hidden)
    want = _zero_at_hidden(_call(subject, x, **options), hidden)
    got = _zero_at_hidden(_call(subject, x.masked_fill(hidden.unsqueeze(-1), LARGE), **options), hidden)
    polarity = f"{subject.key_mask} is {bool(options[subject.key_mask][-1, 0])} at tokens"
    require_close(got, want, within=within, what=f"other hidden tokens ({polarity})")
    nothing_hidden = _call(subject, x, **subject.hiding(torch.zeros_like(hidden)))
    require_close(nothing_hidden, _call(subject, x), within=within, what=f"a {subject.key_mask} that hides nothing")
    unmasked = _zero_at_hidden(_call(subject, x), hidden)
    change = (unmasked - want).abs().max().item()
    require(change > within * want.abs().max().item(), f"{subject.key_mask} changes nothing")

    leaf = x.clone().requires_grad_()
    out = _zero_at_hidden(_call(subject, leaf, **options), hidden)
    (gradient,) = torch.autograd.grad(out.square().sum(), leaf)
    at_hidden = gradient.masked_fill(~hidden.unsqueeze(-1), 0)
    size = gradient.abs().max().item()
    require_close(at_hidden, torch.zeros_like(x), within=within, size=size, what="gradient for a hidden token")


def _fully_hidden(subject: ModuleSubject) -> None:
    hidden = subject.hidden()
    hidden[0] = True
    require_finite(subject, subject.draw(), "an input whose tokens are all hidden", **subject.hiding(hidden))


def _causal(subject: ModuleSubject) -> None:
    x, option = _tokens(subject), {subject.causal: True}
    want, n = _call(subject, x, **option), x.shape[1]
    require(want.ndim == 3 and want.shape[1] == n, f"expected an output for every token, got {tuple(want.shape)}")
    for start in (1, n // 2, n - 1):
        later = torch.arange(n, device=x.device)[:, None] >= start
        leak = (_call(subject, x.masked_fill(later, LARGE), **option) - want)[:, :start].abs().max().item()
        require(leak == 0, f"tokens from {start} on changed outputs before them by {leak:.1e}")
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(_call(subject, leaf, **option)[:, :start].square().sum(), leaf)
        require(not gradient[:, start:].any(), f"outputs before token {start} have a gradient for later tokens")
    first = torch.arange(n, device=x.device)[:, None] == 0
    changed = _call(subject, x.masked_fill(first, LARGE), **option)[:, -1]
    require(not torch.equal(changed, want[:, -1]), "the last token does not see the first")


def permutation_error(subject: ModuleSubject) -> float:
    """Return the relative error between outputs of permuted tokens and permuted outputs.

    Where there is not one output for every token, outputs are compared without permuting them.
    """
    x = _tokens(subject)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(subject.seed)).to(x.device)
    got, want = _call(subject, x[:, order]), _call(subject, x)
    if want.ndim == 3 and want.shape[1] == x.shape[1]:
        want = want[:, order]
    return (got - want).abs().max().item() / max(want.abs().max().item(), torch.finfo(want.dtype).tiny)


def _permutation(subject: ModuleSubject) -> None:
    error, within = permutation_error(subject), subject.tolerance(torch.float64)
    require(error <= within, f"permuted tokens: relative error {error:.1e}, at most {within:.1e} allowed")


def sees_later_tokens(subject: ModuleSubject) -> bool:
    """Return True if, without any mask, the last token changes outputs before it."""
    x = _tokens(subject)
    last = torch.arange(x.shape[1], device=x.device)[:, None] == x.shape[1] - 1
    changed = _call(subject, x.masked_fill(last, LARGE))
    return not torch.equal(changed[:, :-1], _call(subject, x)[:, :-1])


MODULE_MASK_CHECKS: dict[str, Callable[[ModuleSubject], None]] = {
    "key_mask": _key_mask,
    "fully_hidden": _fully_hidden,
    "causal": _causal,
}
"""Checks of modules that take masks."""

MODULE_CHECKS: dict[str, Callable[[ModuleSubject], None]] = {
    **SHARED_CHECKS,
    "zero_inputs": _zero_inputs,
    "large_inputs": _large_inputs,
    "autocast": _autocast,
    "state_dict": _state_dict,
    "copy": _copy,
    **MODULE_MASK_CHECKS,
    "permutation": _permutation,
}
"""All checks of a module by name."""
