"""The commands `clearhead rerun` and `clearhead compare`. Nothing heavy is imported until one runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.audit.options import Baseline
from clearhead.cli import options
from clearhead.cli.failure import CommandError
from clearhead.cli.import_path import never_import_from
from clearhead.cli.request import AuditRequest

__all__ = ["compare", "rerun"]

DEFAULT_COMPARISON = "clearhead-comparison"
DEFAULT_RERUN = "clearhead-rerun"

TrustPaths = Annotated[
    bool,
    typer.Option("--trust-paths", help="Open the files and folders that the manifest names. Functions never run."),
]


@options.audit_options(only=("batches", "loss", "describe", "device", "workers"), device=None)
def rerun(
    manifest: Annotated[
        Path, typer.Argument(help="The manifest.json of an audit, or the folder of its report.", show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(help="The model: its folder now, or again the function that the manifest names.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="The text, images or sound, where they are now."),
    ] = None,
    swap: Annotated[
        str | None, typer.Option(metavar="OPERATOR", help="The folder of the swap, where it is now.")
    ] = None,
    trust_paths: TrustPaths = False,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for the new report.")] = DEFAULT_RERUN,
    **values: Any,
) -> None:
    """Repeat an audit and compare all findings to the last bit.

    Functions and paths that the manifest names are used only if they are typed again; --trust-paths confirms paths.
    The device and the number of workers are those of the manifest, if they are not typed.
    Says what differs: weights, config, tokenizer, data, versions, processor, threads, seeds, theories. The exit code is
    0 if all findings are identical, 1 if some differ, and 2 if the audit cannot be repeated.

    Example: clearhead rerun clearhead-report/manifest.json
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the report, or . for the current folder")
    never_import_from(str(manifest))
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.confirmed import Typed
        from clearhead.cli.rerun_command import print_rerun, run_again

        machine = {name: value for name in ("device", "workers") if (value := values.pop(name)) is not None}
        typed = Typed(
            command=[
                "clearhead", "rerun", str(manifest), *(["--out", out] if out != DEFAULT_RERUN else []),
                *(word for name, value in machine.items() for word in (f"--{name}", str(value))),
            ],
            values={"model": model, "text": text, "swap": swap, **values},
            trust_paths=trust_paths,
        )  # fmt: skip
        result = run_again(manifest, out=Path(out), typed=typed, machine=machine, bar=bar)
    if not print_rerun(result):
        raise typer.Exit(1)


@options.audit_options(but=("model", "swap"), baseline=Baseline.NONE)
def compare(
    a: Annotated[str, typer.Argument(help="The folder of a report, or a model.", show_default=False)],
    b: Annotated[
        str | None,
        typer.Argument(help="Another report or model. Not needed with --swap.", show_default=False),
    ] = None,
    swap: Annotated[
        str | None,
        typer.Option(
            metavar="OPERATOR",
            help="Compare with B, or A, after a swap: an operator and its layers, such as symmetric:3 or rpc:0-2, or a "
            "folder that save_swaps wrote.",
        ),
    ] = None,
    trust_paths: TrustPaths = False,
    out: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for the comparison: index.html, comparison.json.")
    ] = DEFAULT_COMPARISON,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON instead of tables.")] = False,
    **values: Any,
) -> None:
    """Compare two audits on the same inputs, head by head.

    Values are paired by input; differences come with 95% intervals and a false discovery rate of 5%. Reports are read.
    Models are audited on the same inputs first, with the options below; a model that is compared with a report is
    audited with the options of that report. Functions and paths that the report names are typed again, or its paths
    confirmed with --trust-paths.

    Examples: clearhead compare report-before report-after; clearhead compare ./checkpoint-1 ./checkpoint-2 --text
    reviews.txt; clearhead compare all-MiniLM-L6-v2 --swap symmetric:3
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the comparison, or . for the current folder")
    for name in (a, b or a):
        never_import_from(name)
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.compare_command import print_compared, run_comparison
        from clearhead.cli.confirmed import NAMED, Typed

        request = AuditRequest.of({**values, "model": a, "swap": swap}, Path(out))
        typed = Typed(
            command=[
                "clearhead", "compare", a, *([b] if b else []), *(["--swap", swap] if swap else []),
                *(["--out", out] if out != DEFAULT_COMPARISON else []), *(["--json"] if json else []),
            ],
            values={name: values[name] for name in NAMED if name in values},
            trust_paths=trust_paths,
        )  # fmt: skip
        result = run_comparison(a, b, request, typed, bar)
    print_compared(result, as_json=json)
