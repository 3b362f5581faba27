"""The options of commands, made of the fields that describe an audit. Nothing heavy is imported here."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from clearhead.audit.options import AuditOptions
from clearhead.cli.request import AuditRequest

__all__ = ["Details", "FigureKind", "ShardOption", "audit_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


class FigureKind(StrEnum):
    """What a figure shows."""

    HEATMAP = "heatmap"
    NULL = "null"
    SPECTRUM = "spectrum"
    DEPTH = "depth"


ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Measure only the i-th of n parts of the inputs and write it to --out, for clearhead merge. With auto, i "
        "and n are those of the launcher: RANK and WORLD_SIZE, or a Slurm array. Under torchrun, without this option, "
        "each process measures one part and the first merges them.",
    ),
]
Details = Annotated[
    bool, typer.Option("--details", help="Also print every head, every control, the checks and the curves over depth.")
]


def audit_options(
    *, only: Collection[str] | None = None, but: Collection[str] = (), **defaults: Any
) -> Callable[[Command], Command]:
    """Give a command the inputs and options of an audit, which it gets as `**values`, as `AuditRequest.of` takes them.

    They come after its own arguments and before its own options.

    only, but: the names of those that the command has, or has not; defaults: other ones, by name
    """

    def give(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [entry for entry in signature.parameters.values() if entry.kind is not entry.VAR_KEYWORD]
        arguments = [entry for entry in own if _is_argument(entry)]
        given = [
            parameter
            for parameter in _parameters(defaults)
            if parameter.name not in but and (only is None or parameter.name in only)
        ]
        together = [*arguments, *given, *(entry for entry in own if entry not in arguments)]
        together = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in together]
        command.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
        command.__annotations__ = {entry.name: entry.annotation for entry in together}
        return command

    return give


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(
        isinstance(each, typer.models.ArgumentInfo) for each in getattr(parameter.annotation, "__metadata__", ())
    )


def _parameters(defaults: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameter of every input and option of an audit."""
    for entry in (*dataclasses.fields(AuditRequest), *dataclasses.fields(AuditOptions)):
        told = entry.metadata
        if not told:
            continue
        shown: Any
        if entry.name == "model":
            shown = typer.Argument(help=told["help"])
        else:
            flag = told["flag"] or f"--{entry.name.replace('_', '-')}"
            shown = typer.Option(flag, help=told["help"], metavar=told["metavar"], min=told["least"])
        yield inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(entry.name, told["in_commands"]),
            annotation=Annotated[told["typed"], shown],
        )
