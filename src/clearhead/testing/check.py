"""`check_attention`: run the contract on any attention operator or module. The result has checks that passed or failed,
and checks not run, with the reason."""

import inspect
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.testing.module_checks import MODULE_CHECKS, MODULE_MASK_CHECKS, permutation_error, sees_later_tokens
from clearhead.testing.modules import TOKENS, ModuleSubject, float64_copy
from clearhead.testing.operator_checks import MASK_CHECKS, OPERATOR_CHECKS, REFERENCE_CHECKS
from clearhead.testing.operators import OperatorSubject, one_input_at_a_time
from clearhead.testing.subject import BATCH, first_tensor

_DETAIL_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the contract: its name, its outcome and, if it failed, what went wrong."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """One check of the contract that was not run, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """All checks of the contract, each either in `checks` or in `not_checked`."""

    subject: str
    """Name of the attention that was checked."""
    checks: tuple[Check, ...]
    not_checked: tuple[NotChecked, ...] = ()
    observed: tuple[str, ...] = ()
    """Facts about the attention that are neither right nor wrong."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def passed(self) -> bool:
        """True if at least one check ran and none failed. Checks that did not run do not count."""
        return bool(self.checks) and not self.failed

    def __str__(self) -> str:
        failed = self.failed
        lines = [f"{self.subject}: {len(failed)} of {len(self.checks)} checks fail"]
        width = max((len(check.name) for check in failed), default=0)
        lines += [f"  {check.name:{width}s}  {_first_line(check.detail)}" for check in failed]
        passed = [check.name for check in self.checks if check.passed]
        lines.append(f"passed: {', '.join(passed) or 'none'}")
        reasons = dict.fromkeys(skipped.reason for skipped in self.not_checked)
        for reason in reasons:
            names = ", ".join(skipped.name for skipped in self.not_checked if skipped.reason == reason)
            lines.append(f"not checked: {names} ({reason})")
        lines += [f"observed: {fact}" for fact in self.observed]
        return "\n".join(lines)

    def in_columns(self, columns: int) -> str:
        """Return the text wrapped at `columns` characters, with continuation lines indented."""
        wrap = partial(textwrap.wrap, width=max(columns, 20), subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(wrapped for line in str(self).splitlines() for wrapped in wrap(line))


def _first_line(detail: str) -> str:
    """Return the first line of a detail, cut at 100 characters. `Check.detail` holds all of it."""
    first = detail.strip().partition("\n")[0]
    return first if len(first) <= _DETAIL_WIDTH else first[: _DETAIL_WIDTH - 3] + "..."


def run_check(name: str, check: Callable[[], None]) -> Check:
    """Run one check. Any exception it raises is a failed check."""
    try:
        check()
    except AssertionError as error:
        return Check(name, passed=False, detail=str(error))
    except Exception as error:
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")
    return Check(name, passed=True)


def check_attention(
    attention: Callable[..., Tensor] | nn.Module,
    *,
    reference: Callable[..., Tensor] | None = None,
    masks: bool | None = None,
    square: bool = False,
    leading: tuple[int, ...] = (0, 1, 2),
    strict_errors: bool = False,
    shape: tuple[int, ...] | None = None,
    equivariant: bool = False,
    compile: bool = True,
    skip: Collection[str] = (),
    show: bool = True,
) -> ContractResult:
    """Run the contract on an attention operator or module, print what fails and return the result.

    attention: an operator, called with q (..., n, d), k (..., m, d), v (..., m, e) and perhaps `mask`, that returns
        o (..., n, e); or a module, called with x (b, n, c), whose output, or its first element, has the batch first
    compile: True to compile it with torch.compile, without a graph break; clears torch's compilation cache
    skip: names of checks not to run
    show: True to print the result

    For an operator only:
    reference: another way of computing the same, to compare with; without it, checks that need it are not run
    masks: True if it takes `mask`, True where a query may attend; None to read it from the signature
    square, leading: True if n = m always; the numbers of axes it takes before (n, d)
    strict_errors: True if bad operands must raise `clearhead.ShapeError` or ValueError; False to accept any error

    For a module only:
    shape: of an input, (b, n, c) or any other with the batch first; None to find it from the parameters. Pass it for
        a module that takes one number of tokens only, and skip "single_token"
    equivariant: True if permuted tokens must give permuted outputs; if False, the result says whether they do

    A module's `key_mask` is True at tokens, its `key_padding_mask` False there (as in torch), and with its `causal` or
    `is_causal` no later token may change an earlier output by a single bit. Checks run on copies in evaluation mode and
    double precision, with all-zero parameters replaced by random ones; the module and torch's random state do not
    change. Errors of the attention are failed checks. Raises ValueError if it is neither an operator nor a module.
    """
    is_operator = _is_operator(attention)
    for_operators = {
        "reference": reference is not None, "masks": masks is not None, "square": square, "strict_errors": strict_errors
    }  # fmt: skip
    for_modules = {"shape": shape is not None, "equivariant": equivariant}
    wrong = [name for name, given in (for_modules if is_operator else for_operators).items() if given]
    if wrong:
        kind = "an operator" if is_operator else "a module"
        raise InputError(f"{', '.join(wrong)}: not an option for {kind}; remove it")
    checks: Mapping[str, Callable[[Any], None]] = OPERATOR_CHECKS if is_operator else MODULE_CHECKS
    unknown = set(skip) - set(checks)
    if unknown:
        raise InputError(f"expected names of checks in `skip`, among {', '.join(checks)}; got {sorted(unknown)}")
    reasons = {} if compile else {"compile": "compile=False"}
    reasons |= dict.fromkeys(skip, "skipped by the caller")
    with _no_side_effects():
        copied: Any = attention
        try:
            copied = float64_copy(attention) if isinstance(attention, nn.Module) else attention
        except Exception as error:
            return _show(_stopped(attention, "copy", error, checks), show)
        subject: OperatorSubject | ModuleSubject
        if is_operator:
            masks = _takes_mask(attention) if masks is None else masks
            subject = OperatorSubject(
                operator=copied,
                reference=one_input_at_a_time(copied) if reference is None else reference,
                masks=masks,
                square=square,
                leading=leading,
                strict_errors=strict_errors,
            )
            reasons = _not_applicable_to_operator(reference is not None, masks) | reasons
        else:
            try:
                shape = _input_shape(copied) if shape is None else shape
            except AssertionError as error:
                return _show(_stopped(attention, "output", error, checks), show)
            subject = ModuleSubject(module=copied, shape=shape)
            reasons = not_applicable(subject, equivariant=equivariant) | reasons
        result = ContractResult(
            subject=_name(attention),
            checks=tuple(
                run_check(name, lambda check=check: check(subject))  # type: ignore[misc]
                for name, check in checks.items()
                if name not in reasons
            ),
            not_checked=tuple(NotChecked(name, reasons[name]) for name in checks if name in reasons),
            observed=() if isinstance(subject, OperatorSubject) else tuple(_observe(subject)),
        )
    return _show(result, show)


def _show(result: ContractResult, show: bool) -> ContractResult:
    if show:
        print(result.in_columns(shutil.get_terminal_size().columns) if sys.stdout.isatty() else result)
    return result


def _stopped(attention: object, name: str, error: Exception, checks: Collection[str]) -> ContractResult:
    """Return the result where one check failed and nothing is left to run the others on."""
    prefix = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    others = tuple(NotChecked(other, f"{name} failed") for other in checks if other != name)
    failed = Check(name, passed=False, detail=f"{prefix}{error}")
    return ContractResult(subject=_name(attention), checks=(failed,), not_checked=others)


def _not_applicable_to_operator(has_reference: bool, masks: bool) -> dict[str, str]:
    reasons = {} if has_reference else dict.fromkeys(REFERENCE_CHECKS, "pass reference=, a second implementation")
    return reasons | ({} if masks else dict.fromkeys(MASK_CHECKS, "it has no argument called mask"))


def not_applicable(subject: ModuleSubject, *, equivariant: bool = False) -> dict[str, str]:
    """Return the checks that do not apply to a module, each with the reason."""
    reasons = {} if equivariant else {"permutation": "pass equivariant=True to require it"}
    if not subject.takes_tokens:
        unknown = "the axis of tokens in its inputs is not known"
        reasons |= dict.fromkeys(("single_token", "permutation", *MODULE_MASK_CHECKS), unknown)
    if not subject.key_mask:
        reasons |= dict.fromkeys(("key_mask", "fully_hidden"), "its forward has no key_mask or key_padding_mask")
    if not subject.causal:
        reasons["causal"] = "its forward has no causal or is_causal"
    return reasons


def _observe(subject: ModuleSubject) -> Iterator[str]:
    """Yield facts about a module that are neither right nor wrong; nothing if it does not run."""
    if not subject.takes_tokens:
        return
    try:
        error, later = permutation_error(subject), sees_later_tokens(subject)
    except Exception:  # reported by the checks
        return
    verb = "give" if error <= subject.tolerance(torch.float64) else "do not give"
    yield f"permuted tokens {verb} permuted outputs (relative error {error:.1e})"
    yield f"without a mask, tokens {'see' if later else 'do not see'} later tokens"


def _is_operator(attention: object) -> bool:
    """Return True if it is called with q, k and v, False if with x. Raise ValueError if with neither."""
    expected = "expected an operator, called with (q, k, v), or a module, called with (x)"
    if isinstance(attention, type):
        raise InputError(f"{expected}; got the class {attention.__name__}: pass an instance")
    if not callable(attention):
        raise InputError(f"{expected}; got {attention!r}")
    is_module = isinstance(attention, nn.Module)
    try:
        signature = _signature(attention)
    except ValueError:  # built-in functions have none
        return not is_module
    required = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if is_module and len(required) <= 1:
        return False
    try:
        signature.bind(None, None, None)
    except TypeError:
        pass
    else:
        if not is_module or required[:3] == ["q", "k", "v"]:
            return True
    names = ", ".join(required) or "nothing"
    raise InputError(f"{expected}; {_name(attention)} is called with ({names}): wrap it in a function or module")


def _takes_mask(attention: object) -> bool:
    try:
        signature = _signature(attention)
    except ValueError:
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return "mask" in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _signature(attention: Any) -> inspect.Signature:
    return inspect.signature(attention.forward if isinstance(attention, nn.Module) else attention)


def _name(attention: object) -> str:
    """Return the name of a function, of the function inside a partial, or of an object's class."""
    attention = getattr(attention, "func", attention)
    return str(getattr(attention, "__name__", type(attention).__name__))


def _input_shape(module: nn.Module) -> tuple[int, ...]:
    """Return (b, n, c) for the first c, among the sizes of its parameters, that the module accepts."""
    linear = [submodule.in_features for submodule in module.modules() if isinstance(submodule, nn.Linear)]
    sizes = [size for parameter in module.parameters() for size in reversed(parameter.shape)]
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    widths, first_error = list(dict.fromkeys([*linear, *sizes])) or [TOKENS + BATCH], ""
    for width in widths:
        x = torch.zeros(BATCH, TOKENS, width, dtype=torch.float64, device=device)
        try:
            with torch.no_grad():
                first_tensor(module(x))
        except Exception as error:  # another width may work
            first_error = first_error or f"{type(error).__name__}: {error}"
        else:
            return (BATCH, TOKENS, width)
    tried = f"({BATCH}, {TOKENS}, c) with c among {widths}"
    raise AssertionError(f"it accepts no input {tried}; pass shape= if it takes another. First error: {first_error}")


@contextmanager
def _no_side_effects() -> Iterator[None]:
    """Turn gradients on and warnings off within the block, and restore torch's random state after it."""
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        yield
