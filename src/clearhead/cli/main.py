"""`clearhead`: the commands and their options. Nothing heavy is imported until a command runs."""

import io
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead import __version__
from clearhead.cli.failure import CommandError, exit_code_of

__all__ = ["Baseline", "app", "run"]

app = typer.Typer(
    name="clearhead",
    help="Test theories of attention on your own models, with controls.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: no box characters, which some terminals cannot print, and no import of rich
)

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_OUT = "clearhead-report"
DEFAULT_RUNS = "clearhead-runs"


class Baseline(StrEnum):
    """The theories that are also measured on the model with fresh random weights."""

    AUTO = "auto"
    ALL = "all"
    NONE = "none"


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
def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="A local model folder, the installed demo model all-MiniLM-L6-v2, or package.module:function that "
            "returns a model or a (model, tokenizer) pair. A function runs its code; a folder runs none."
        ),
    ] = DEFAULT_MODEL,
    text: Annotated[
        Path | None,
        typer.Option(
            help="UTF-8 text file. Passages are separated by blank lines; without blank lines each line is a passage. "
            "Default: the passages in the package."
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(help="Inputs instead of text: package.module:function that returns batches. Runs its code."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers to measure, in forward-pass order: 0,2,5 or 0-3. Default: all.")
    ] = None,
    theory: Annotated[list[str] | None, typer.Option(help="A theory to test; can be repeated. Default: all.")] = None,
    inputs: Annotated[
        int | None, typer.Option(min=1, help="Use the first N passages, or batches with --batches. Default: all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Truncate each passage to this many tokens.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Passages per forward pass.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the controls' random draws.")] = 0,
    describe: Annotated[
        Path | None,
        typer.Option(help="TOML file that describes attention layers which no interface finds (docs/models.md)."),
    ] = None,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Continue if modules that look like attention are not captured.")
    ] = False,
    baseline: Annotated[
        Baseline,
        typer.Option(
            help="Also measure the model with fresh random weights: for the theories that need it (auto), "
            "for all theories, or for none."
        ),
    ] = Baseline.AUTO,
    loss: Annotated[
        str | None,
        typer.Option(
            help="package.module:function of (output, batch) that returns a loss, for theories that need gradients. "
            "Runs its code."
        ),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for the report (index.html, findings.json).")
    ] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON instead of tables.")] = False,
) -> None:
    """Test theories on a model and write a report.

    Every head of every attention layer is measured and compared with controls.
    """
    # An empty path would be the current folder.
    if not out:
        raise CommandError("--out is empty; name a folder for the report, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.audit_command import AuditRequest, print_result, run_audit

        request = AuditRequest(
            model=model,
            text=text,
            batches=batches,
            layers=layers,
            theories=tuple(theory or ()),
            inputs=inputs,
            max_tokens=max_tokens,
            batch_size=batch_size,
            seed=seed,
            describe=describe,
            allow_unseen=allow_unseen,
            baseline=baseline,
            loss=loss,
            out=Path(out),
        )
        result = run_audit(request, bar)
    print_result(result, as_json=json)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list shows all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their last results.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="The images: a folder in a standard layout, or an .npz file.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of training epochs. Default: the recipe's.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of prepared models. Default: models in the --out folder.")
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Download missing models with pip.")] = False,
    inputs: Annotated[
        int | None, typer.Option(min=2, help="Use the first N inputs of each model. Default: all.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Number of seeds, starting at --seed, for experiments that repeat runs.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for the results.")] = DEFAULT_RUNS,
) -> None:
    """Reproduce a published experiment.

    An interrupted run continues where it stopped.
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    options = {"data": data, "epochs": epochs, "models": models, "fetch": fetch, "inputs": inputs, "seeds": seeds}
    with progress_bar("loading libraries") as bar:
        from clearhead.cli.reproduce_command import list_experiments, print_outcome, run_experiment

        if not list_:
            if name is None:
                raise CommandError("name an experiment; clearhead reproduce --list shows them")
            outcome = run_experiment(name, out=Path(out), seed=seed, options=options, bar=bar)
    if list_:
        list_experiments(Path(out))
    else:
        print_outcome(name or "", outcome)


@app.command()
def verify(
    json: Annotated[bool, typer.Option("--json", help="Print the theorem checks as JSON instead of a table.")] = False,
) -> None:
    """Check the theorems numerically.

    Each check has a control that must fail. The exit code is 1 if a theorem does not hold.
    """
    from clearhead.cli.console import progress_bar

    with progress_bar("checking theorems"):
        from clearhead.cli.verify_command import check_theorems, print_checks

        checks = check_theorems()
    if not print_checks(checks, as_json=json):
        raise typer.Exit(1)


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
