"""The commands `clearhead reproduce`, `verify` and `demo`, and their options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.failure import CommandError

DEFAULT_RUNS = "clearhead-runs"


class Scale(StrEnum):
    """The size of an experiment."""

    SMALL = "small"
    PAPER = "paper"


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
    scale: Annotated[
        Scale, typer.Option(help="small: for two cores. paper: the published settings, for experiments that have them.")
    ] = Scale.SMALL,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check shapes, parameters, schedule, memory and GPU hours; train nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for the results.")] = DEFAULT_RUNS,
) -> None:
    """Reproduce a published experiment.

    An interrupted run continues where it stopped.
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    options: dict[str, object] = {
        "data": data,
        "epochs": epochs,
        "models": models,
        "fetch": fetch,
        "inputs": inputs,
        "seeds": seeds,
    }
    options |= {"scale": scale.value if scale is not Scale.SMALL else None, "dry_run": dry_run}
    with progress_bar("loading libraries") as bar:
        from clearhead_lab.cli.reproduce_command import list_experiments, print_outcome, run_experiment

        if not list_:
            if name is None:
                raise CommandError("name an experiment; clearhead reproduce --list shows them")
            outcome = run_experiment(name, out=Path(out), seed=seed, options=options, bar=bar)
    if list_:
        list_experiments(Path(out))
    else:
        print_outcome(name or "", outcome)


def verify(
    json: Annotated[bool, typer.Option("--json", help="Print the theorem checks as JSON instead of a table.")] = False,
) -> None:
    """Check the theorems numerically.

    Each check has a control that must fail. The exit code is 1 if a theorem does not hold.
    """
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead_lab.cli.verify_command import check_theorems, print_checks

        checks = check_theorems(bar)
    if not print_checks(checks, as_json=json):
        raise typer.Exit(1)


def demo(
    name: Annotated[
        str | None, typer.Argument(help="The demonstration. Default: list them.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page. Default: clearhead-NAME.html.", show_default=False)
    ] = None,
) -> None:
    """Write a page that demonstrates a theory: drag points and see what it says.

    Each page is one file that opens without the network. Without NAME, the demonstrations are listed.

    Example: clearhead demo kernel-pca
    """
    from clearhead_lab.demos.page import list_demos, write_demo

    typer.echo(list_demos() if name is None else write_demo(name, out))
