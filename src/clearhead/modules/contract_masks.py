"""What an attention module owes where it takes masks, and what the order of tokens does to it.

`key_mask` is True where there is a token, as in this package; `key_padding_mask` is True where there is none, as in
torch.nn.MultiheadAttention. With `causal` or `is_causal` a token may see itself and those before it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.modules.contract_subject import LOUD, ModuleSubject, gradients
from clearhead.operators.contract_subject import require, require_close

__all__ = ["MODULE_MASK_CHECKS", "looks_ahead", "permutation", "permuted_apart"]


def _shown(subject: ModuleSubject, out: Tensor, hidden: Tensor) -> Tensor:
    """The output with zeros at hidden tokens, if there is one for every token: what they get means nothing."""
    if out.ndim != 3 or out.shape[1] != hidden.shape[1]:
        return out
    return out.masked_fill(hidden.unsqueeze(-1), 0)


def _key_mask(subject: ModuleSubject) -> None:
    x, hidden, within = subject.draw(), subject.hidden(), subject.tolerance(torch.float64)
    options = subject.hiding(hidden)
    want = _shown(subject, subject.attend(x, **options), hidden)
    loud = x.masked_fill(hidden.unsqueeze(-1), LOUD)
    got = _shown(subject, subject.attend(loud, **options), hidden)
    polarity = f"{subject.key_mask} is {bool(options[subject.key_mask][-1, 0])} where there is a token"
    require_close(got, want, within=within, what=f"other hidden tokens ({polarity})")
    nothing = subject.attend(x, **subject.hiding(torch.zeros_like(hidden)))
    require_close(nothing, subject.attend(x), within=within, what=f"a {subject.key_mask} that hides nothing")
    unmasked = _shown(subject, subject.attend(x), hidden)
    change = (unmasked - want).abs().max().item()
    require(change > within * want.abs().max().item(), f"{subject.key_mask} changes nothing")

    leaf = x.clone().requires_grad_()
    out = _shown(subject, subject.attend(leaf, **options), hidden)
    (found,) = torch.autograd.grad(out.square().sum(), leaf)
    unseen = found.masked_fill(~hidden.unsqueeze(-1), 0)
    size = found.abs().max().item()
    require_close(unseen, torch.zeros_like(unseen), within=within, size=size, what="gradient for a hidden token")


def _fully_hidden(subject: ModuleSubject) -> None:
    x, hidden = subject.draw(), subject.hidden()
    hidden[0] = True
    options = subject.hiding(hidden)
    require(subject.attend(x, **options).isfinite().all(), "an input without a token made the output not finite")
    for name, value in gradients(subject, x, **options).items():
        require(value.isfinite().all(), f"an input without a token made the gradient for {name} not finite")


def _causal(subject: ModuleSubject) -> None:
    x, option = subject.draw(), {subject.causal: True}
    want, n = subject.attend(x, **option), x.shape[1]
    require(want.ndim == 3 and want.shape[1] == n, f"expected an output for every token, got {tuple(want.shape)}")
    for at in (1, n // 2, n - 1):
        later = torch.arange(n, device=x.device)[:, None] >= at
        leak = (subject.attend(x.masked_fill(later, LOUD), **option) - want)[:, :at].abs().max().item()
        require(leak == 0, f"tokens from {at} on changed outputs before them by {leak:.1e}")
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(subject.attend(leaf, **option)[:, :at].square().sum(), leaf)
        require(not found[:, at:].any(), f"outputs before token {at} have a gradient for it or those after it")
    first = torch.arange(n, device=x.device)[:, None] == 0
    changed = subject.attend(x.masked_fill(first, LOUD), **option)[:, -1]
    require(not torch.equal(changed, want[:, -1]), "the last token does not see the first")


def permuted_apart(subject: ModuleSubject) -> float:
    """How far outputs of permuted tokens are from the permuted outputs, beside the largest of them.

    Where there is not one output for every token, they are compared as they are.
    """
    x = subject.draw()
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(subject.seed)).to(x.device)
    got, want = subject.attend(x[:, order]), subject.attend(x)
    if want.ndim == 3 and want.shape[1] == x.shape[1]:
        want = want[:, order]
    return (got - want).abs().max().item() / max(want.abs().max().item(), torch.finfo(want.dtype).tiny)


def permutation(subject: ModuleSubject) -> None:
    """Raise unless permuted tokens give permuted outputs. Position codes break this, and rightly so."""
    error, within = permuted_apart(subject), subject.tolerance(torch.float64)
    require(error <= within, f"permuted tokens: relative error {error:.1e}, at most {within:.1e} allowed")


def looks_ahead(subject: ModuleSubject) -> bool:
    """Whether the last token shows in the outputs before it, when nothing is said about masks."""
    x = subject.draw()
    last = torch.arange(x.shape[1], device=x.device)[:, None] == x.shape[1] - 1
    other = subject.attend(x.masked_fill(last, LOUD))
    return not torch.equal(other[:, :-1], subject.attend(x)[:, :-1])


MODULE_MASK_CHECKS: dict[str, Callable[[ModuleSubject], None]] = {
    "key_mask": _key_mask,
    "fully_hidden": _fully_hidden,
    "causal": _causal,
}
