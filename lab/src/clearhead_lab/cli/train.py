"""The command `clearhead train` and its options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.failure import CommandError

DEFAULT_OUT = "clearhead-training"


class CorruptChoice(StrEnum):
    """What happens at an image that cannot be decoded."""

    REFUSE = "refuse"
    SKIP = "skip"


class ShardingChoice(StrEnum):
    """How processes share a model."""

    DDP = "ddp"
    FSDP = "fsdp"


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe: a .toml file, or a name that --list shows.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the recipes that come with Clearhead.")] = False,
    data: Annotated[Path | None, typer.Option(help="The data, in a layout that docs/data.md describes.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all random draws. Default: the recipe's.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe, such as training.epochs=3."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print sizes, schedule, memory and GPU hours; train nothing.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images; 0 for none.")] = 1,
    on_corrupt: Annotated[
        CorruptChoice, typer.Option(help="At an image that cannot be decoded, refuse: stop; skip: name it and go on.")
    ] = CorruptChoice.REFUSE,
    sharding: Annotated[
        ShardingChoice,
        typer.Option(help="Under torchrun, ddp: every process holds the model; fsdp: every process holds a part."),
    ] = ShardingChoice.DDP,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard too.")] = False,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for checkpoints, log and model.")] = DEFAULT_OUT,
) -> None:
    """Train the model of a recipe.

    The first Ctrl-C saves a checkpoint and stops. The same command continues, with the same result to the last bit.

    Example: clearhead train vit-cifar-10 --data cifar-10 --set model.attention=symmetric
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead_lab.cli.train_command import (
            list_recipes,
            print_estimate,
            print_trained,
            train_recipe,
        )  # fmt: skip
        from clearhead_lab.training.recipe_file import read_recipe_file

        if not list_:
            if recipe is None:
                raise CommandError("name a recipe; clearhead train --list shows them")
            changes = [*(change or ()), *([] if seed is None else [f"training.seed={seed}"])]
            file = read_recipe_file(recipe, changes)
        if not list_ and not dry_run:
            trained = train_recipe(
                file, data=data, out=Path(out), sharding=sharding.value, tensorboard=tensorboard, workers=workers,
                on_corrupt=on_corrupt.value, bar=bar,
            )  # fmt: skip
    if list_:
        list_recipes()
    elif dry_run:
        print_estimate(file)
    elif trained is not None:
        print_trained(file, trained)
