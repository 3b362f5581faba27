"""`clearhead`: the commands and their options. Nothing heavy is imported until a command runs."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead import __version__
from clearhead.audit.options import AuditOptions
from clearhead.cli import options
from clearhead.cli.commands import Commands
from clearhead.cli.failure import CommandError, exit_code_of
from clearhead.cli.options import FigureKind
from clearhead.cli.repeat import compare, rerun
from clearhead.cli.request import AuditRequest
from clearhead.cli.torchrun import under_torchrun

__all__ = ["app", "run"]

app = typer.Typer(
    name="clearhead",
    cls=Commands,
    help="Test theories of attention on your own models, with controls.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: no box characters, which some terminals cannot print, and no import of rich
)

DEFAULT_OUT = "clearhead-report"
DEFAULT_CALIBRATION = "clearhead-calibration"
DEFAULT_FIGURE = "clearhead-figure.svg"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _clearhead(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@options.audit_options(but=("swap",))
def audit(
    out: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Folder for the report: index.html, findings.json, samples.safetensors, manifest.json.",
        ),
    ] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON instead of tables.")] = False,
    details: options.Details = False,
    shard: options.ShardOption = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Measure a few inputs, print the time and memory of the audit, and exit.")
    ] = False,
    **values: Any,
) -> None:
    """Test theories on a model and write a report.

    Every head of every attention layer is measured and compared with controls. An audit that was interrupted or killed
    goes on when the same command runs again.
    """
    # An empty path would be the current folder.
    if not out:
        raise CommandError("--out is empty; name a folder for the report, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.audit_command import print_estimate, print_result, run_audit, run_estimate
        from clearhead.cli.shard_command import parse_shard, print_shard, run_ranks, run_shard

        part, result, estimated = None, None, None
        request = AuditRequest.of(values, Path(out))
        if estimate:
            estimated = run_estimate(request, bar)
        elif shard is not None:
            part = run_shard(request, parse_shard(shard), bar)
        else:
            result = run_ranks(request, bar) if under_torchrun() else run_audit(request, bar)
    if estimated is not None:
        print_estimate(estimated)
    if part is not None:
        print_shard(part, request.out)
    if result is not None:
        print_result(result, as_json=json, details=details)


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(help="The --out folder of all shards.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder for the report. Default: the folder of the shards.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON instead of tables.")] = False,
    details: options.Details = False,
) -> None:
    """Merge the shards of an audit and write its report.

    The report is that of an audit without shards. A missing or unfinished shard, and one of another model, input,
    option or version, is an error that names it. The model is not needed.

    Example: clearhead audit MODEL --shard 1/2; clearhead audit MODEL --shard 2/2; clearhead merge clearhead-report
    """
    from clearhead.cli.console import progress_bar

    with progress_bar("merging"):
        from clearhead.cli.audit_command import print_result
        from clearhead.cli.shard_command import merge_folder

        result = merge_folder(folder, folder if out is None else out)
    print_result(result, as_json=json, details=details)


app.command()(rerun)
app.command()(compare)


@app.command()
@options.audit_options(only=("theories", "seed", "device", "workers"), workers=1)
def calibrate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model as for audit: planted heads get its sizes, and random models its architecture. "
            "Default: small sizes and four families.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Planted heads of each theory and strength.")] = 12,
    models: Annotated[int, typer.Option(min=0, help="Random models to audit.")] = 20,
    out: Annotated[
        str,
        typer.Option(metavar="PATH", help="Folder for the results: calibration.json, calibration.md, calibration.svg."),
    ] = DEFAULT_CALIBRATION,
    **values: Any,
) -> None:
    """Measure how often the audit detects planted heads and flags heads of random models.

    Heads that follow a theory to a strength from 0 to 1 are planted in small models and audited: the power of the
    audit. Models with random weights are audited too: its false positives. An interrupted run continues where it
    stopped; another --theory, more --repeats or more --models add to a finished one.

    Example: clearhead calibrate --theory kernel-pca --repeats 8
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.calibrate_command import print_calibration, run_calibration

        files = run_calibration(model, AuditOptions.of(values), repeats=repeats, models=models, out=Path(out), bar=bar)
    print_calibration(files)


@app.command()
def figure(
    findings: Annotated[Path, typer.Argument(help="findings.json, or the folder of a report.", show_default=False)],
    kind: Annotated[
        FigureKind,
        typer.Option(
            help="heatmap: values by layer and head. null: values and their controls. spectrum: the variance of the "
            "keys, and what the values capture. depth: curves over layers."
        ),
    ] = FigureKind.HEATMAP,
    theory: Annotated[str | None, typer.Option(help="Draw this theory only. Default: all.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="The layer of spectra. Default: all.")] = None,
    head: Annotated[
        int | None, typer.Option(min=0, help="The head of spectra. Default: head 0, or all heads of --layer.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The figure; its ending selects SVG, PNG or PDF.")] = Path(
        DEFAULT_FIGURE
    ),
) -> None:
    """Draw the findings of a report as a figure for a paper.

    Heads are coloured where the verdict is about the theory, and grey where there is no evidence.

    Example: clearhead figure clearhead-report --kind null --theory kernel-pca --out figure.pdf
    """
    from clearhead.cli.figure_command import draw_figure

    drawn = draw_figure(findings, kind, out, theory=theory, layer=layer, head=head)
    typer.echo(f"{out}: {', '.join(drawn)}")


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the same facts as JSON.")] = False,
) -> None:
    """Show what is installed and what is missing.

    This includes whether the compiled kernel is in use, and the commands that install what is missing.
    """
    from clearhead.cli.doctor_command import doctor_command

    doctor_command(json=json)


def run() -> None:
    """Run the command line. `clearhead.__main__` calls it after it has cleaned the import path."""
    # Threads that wait by spinning make small products many times slower next to any other busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Nothing is downloaded, whatever a file asks for. Users whose own code downloads a model set HF_HUB_OFFLINE=0.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if os.environ.get("COLUMNS") == "0":  # some terminals report it; nothing would be printed
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal gets ? for other characters
    sys.exit(exit_code_of(lambda: app(prog_name="clearhead", standalone_mode=False)))
