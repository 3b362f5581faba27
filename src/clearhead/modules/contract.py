"""The contract of attention modules, x -> y, and `check_attention`, which runs the contract on anybody's attention."""

import inspect
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.contract_checks import PLAIN_MODULE_CHECKS
from clearhead.modules.contract_masks import MODULE_MASK_CHECKS, looks_ahead, permutation, permuted_apart
from clearhead.modules.contract_subject import TOKENS, ModuleSubject, first_tensor, wide_copy
from clearhead.operators.contract import CHECKS, called, check_operator, left_out
from clearhead.operators.contract_result import Check, ContractResult, NotChecked, attempt
from clearhead.operators.contract_subject import BATCH

__all__ = ["MODULE_CHECKS", "check_attention", "check_module", "not_asked"]

MODULE_CHECKS: dict[str, Callable[[ModuleSubject], None]] = (
    PLAIN_MODULE_CHECKS | MODULE_MASK_CHECKS | {"permutation": permutation}
)
"""Every promise of a module by name. A check raises if the subject breaks the promise."""


def check_attention(
    attention: Callable[..., Tensor] | nn.Module,
    *,
    twin: Callable[..., Tensor] | None = None,
    masks: bool | None = None,
    square: bool = False,
    leading: tuple[int, ...] = (0, 1, 2),
    words: bool = False,
    shape: tuple[int, ...] | None = None,
    equivariant: bool = False,
    compile: bool = True,
    without: Collection[str] = (),
    show: bool = True,
) -> ContractResult:
    """Run the whole contract on an attention of anybody's, print what fails, and return all that was found.

    attention: an operator, a function of q (..., n, d), k (..., m, d), v (..., m, e) and perhaps `mask` that returns
        o (..., n, e); or a module of x (b, n, c), whose output, or the first part of it, has the batch first as well
    compile: whether to compile it, without a graph break; clears what torch.compile has compiled so far
    without: names of checks to leave out
    show: whether to print the result

    For an operator, as in `clearhead.operators.contract.check_operator`:
    twin: another way of computing the same, to compare with; without one, what needs it is listed as not checked
    masks: whether it takes `mask`, True where a query may look; by its signature if None
    square, leading: whether n = m always, and how many axes it takes before (n, d)
    words: whether it must refuse wrong operands by `clearhead.ShapeError` and ValueError; any error will do if not

    For a module:
    shape: of an input, (b, n, c), or any other with the batch first; by its parameters if None. Pass it for a module
        that takes one number of tokens only, and leave out "single_token"
    equivariant: whether permuted tokens must give permuted outputs; else it is said whether they do

    A module's `key_mask` is taken as True where there is a token, its `key_padding_mask` as False there (torch's way),
    and with its `causal` or `is_causal` nothing of a later token may reach an earlier one, not a bit. The module itself
    is not touched, nor are torch's random numbers: checks run on copies in evaluation, in double precision, with
    parameters that were zero throughout drawn. An attention that breaks every promise is a result, not an error.
    ValueError is raised for what is neither operator nor module.
    """
    operator = _is_operator(attention)
    for_operators = {"twin": twin is not None, "masks": masks is not None, "square": square, "words": words}
    for_modules = {"shape": shape is not None, "equivariant": equivariant}
    wrong = [name for name, given in (for_modules if operator else for_operators).items() if given]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: not for {'an operator' if operator else 'a module'}; leave it out")
    with _leaving_no_trace():
        if not operator:
            assert isinstance(attention, nn.Module)
            result = check_module(attention, shape=shape, equivariant=equivariant, compile=compile, without=without)
        else:
            result = _check_operator(
                attention,
                twin=twin,
                masks=_takes_mask(attention) if masks is None else masks,
                square=square,
                compile=compile,
                without=without,
                leading=leading,
                words=words,
            )
    if show:
        print(result.in_columns(shutil.get_terminal_size().columns) if sys.stdout.isatty() else result)
    return result


def _check_operator(attention: Callable[..., Tensor], **options: Any) -> ContractResult:
    """`check_operator`, on a copy if the operator is a module."""
    try:
        operator = wide_copy(attention) if isinstance(attention, nn.Module) else attention
    except Exception as error:
        return _stopped(attention, "copy", error, CHECKS)
    return check_operator(operator, **options)


def check_module(
    module: nn.Module,
    *,
    shape: tuple[int, ...] | None = None,
    equivariant: bool = False,
    compile: bool = True,
    without: Collection[str] = (),
) -> ContractResult:
    """Run every check on copies of a module; see `check_attention`."""
    left_out(MODULE_CHECKS, {}, without=without, compiled=())
    try:
        copied = wide_copy(module)
    except Exception as error:
        return _stopped(module, "copy", error, MODULE_CHECKS)
    try:
        shape = _found_shape(copied) if shape is None else shape
    except AssertionError as error:
        return _stopped(module, "output", error, MODULE_CHECKS)
    subject = ModuleSubject(module=copied, shape=shape)
    reasons = not_asked(subject, equivariant=equivariant)
    reasons = left_out(MODULE_CHECKS, reasons, without=without, compiled=() if compile else ("compile",))
    asked = {name: check for name, check in MODULE_CHECKS.items() if name not in reasons}
    return ContractResult(
        subject=called(module),
        checks=tuple(attempt(name, lambda check=check: check(subject)) for name, check in asked.items()),  # type: ignore[misc]
        not_checked=tuple(NotChecked(name, reasons[name]) for name in MODULE_CHECKS if name in reasons),
        observed=tuple(_observed(subject)),
    )


def _stopped(attention: object, name: str, error: Exception, checks: Collection[str]) -> ContractResult:
    """The result where one check failed so that there is nothing to run the others on."""
    prefix = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    rest = tuple(NotChecked(other, f"{name} failed") for other in checks if other != name)
    failed = Check(name, passed=False, detail=f"{prefix}{error}")
    return ContractResult(subject=called(attention), checks=(failed,), not_checked=rest)


def not_asked(subject: ModuleSubject, *, equivariant: bool = False) -> dict[str, str]:
    """Why a check does not apply to this module, by the check's name."""
    reasons = {} if equivariant else {"permutation": "not asked for: pass equivariant=True"}
    if not subject.tokens:
        unknown = "which axis of its inputs holds tokens is not known"
        reasons |= dict.fromkeys(("single_token", "permutation", *MODULE_MASK_CHECKS), unknown)
    if not subject.key_mask:
        reasons |= dict.fromkeys(("key_mask", "fully_hidden"), "its forward takes no key_mask or key_padding_mask")
    if not subject.causal:
        reasons["causal"] = "its forward takes no causal or is_causal"
    return reasons


def _observed(subject: ModuleSubject) -> Iterator[str]:
    """What can be said of a module that is neither right nor wrong; nothing if it does not run."""
    if not subject.tokens:
        return
    try:
        error, ahead = permuted_apart(subject), looks_ahead(subject)
    except Exception:  # the checks have said so
        return
    within = subject.tolerance(torch.float64)
    gives = "give" if error <= within else "do not give"
    yield f"permuted tokens {gives} permuted outputs (relative error {error:.1e})"
    yield f"without a mask, tokens {'see' if ahead else 'do not see'} those after them"


def _is_operator(attention: object) -> bool:
    """Whether it is called with q, k and v rather than with x. ValueError if it is called with neither."""
    expected = "expected an operator, called with (q, k, v), or a module, called with (x)"
    if isinstance(attention, type):
        raise InputError(f"{expected}; got the class {attention.__name__}: make one of it first")
    if not callable(attention):
        raise InputError(f"{expected}; got {attention!r}")
    module = isinstance(attention, nn.Module)
    try:
        signature = inspect.signature(attention.forward if isinstance(attention, nn.Module) else attention)
    except ValueError:  # built-in functions do not tell
        return not module
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if module and len(needed) <= 1:
        return False
    try:
        signature.bind(None, None, None)
    except TypeError:
        pass
    else:
        if not module or needed[:3] == ["q", "k", "v"]:
            return True
    names = ", ".join(needed) or "nothing"
    raise InputError(f"{expected}; {called(attention)} is called with ({names}): wrap it in one that is")


def _takes_mask(attention: object) -> bool:
    try:
        signature = inspect.signature(attention.forward if isinstance(attention, nn.Module) else attention)  # type: ignore[arg-type]
    except ValueError:
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return "mask" in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _found_shape(module: nn.Module) -> tuple[int, ...]:
    """(b, n, c) for the first c, among the sizes of its parameters, that the module takes."""
    linear = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = [size for parameter in module.parameters() for size in reversed(parameter.shape)]
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    widths, last = list(dict.fromkeys([*linear, *sizes])) or [TOKENS + BATCH], ""
    for width in widths:
        x = torch.zeros(BATCH, TOKENS, width, dtype=torch.float64, device=device)
        try:
            with torch.no_grad():
                first_tensor(module(x))
        except Exception as error:  # another width may do
            last = last or f"{type(error).__name__}: {error}"
        else:
            return (BATCH, TOKENS, width)
    tried = f"({BATCH}, {TOKENS}, c) for c among {widths}"
    raise AssertionError(f"no input {tried} was taken; pass shape= if it takes another. The first said {last}")


@contextmanager
def _leaving_no_trace() -> Iterator[None]:
    """Within it gradients are on and warnings off; torch's random numbers go on afterwards as if nothing had been."""
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        yield
