"""The command `clearhead train` and its options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.failure import CommandError

__all__ = ["train"]

DEFAULT_OUT = "clearhead-training"


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
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs. Default: the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all random draws. Default: the recipe's.")] = None,
    sharding: Annotated[
        ShardingChoice,
        typer.Option(help="Under torchrun, ddp: every process holds the model; fsdp: every process holds a part."),
    ] = ShardingChoice.DDP,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard too.")] = False,
    out: Annotated[str, typer.Option(metavar="PATH", help="Folder for checkpoints, log and model.")] = DEFAULT_OUT,
) -> None:
    """Train the model of a recipe.

    The first Ctrl-C saves a checkpoint and stops. The same command continues, with the same result to the last bit.
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead.cli.train_command import list_recipes, print_trained, read_recipe, train_recipe

        if not list_:
            if recipe is None:
                raise CommandError("name a recipe; clearhead train --list shows them")
            file = read_recipe(recipe, epochs=epochs, seed=seed)
            trained = train_recipe(
                file, data=data, out=Path(out), sharding=sharding.value, tensorboard=tensorboard, bar=bar
            )
    if list_:
        list_recipes()
    elif trained is not None:
        print_trained(file, trained)
