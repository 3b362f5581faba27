"""Options that several commands share. Nothing heavy is imported here."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AllowUnseen", "Audio", "Baseline", "BaselineOption", "BatchSize", "Batches", "Claims", "ClaimsOption", "Column",
    "Describe", "Device", "FigureKind", "Images", "Inputs", "Layers", "Loss", "MaxTokens", "Model", "Seed",
    "ShardOption", "Text", "Theories", "Workers",
]  # fmt: skip


class Baseline(StrEnum):
    """The theories that are also measured on the model with fresh random weights."""

    AUTO = "auto"
    ALL = "all"
    NONE = "none"


class Claims(StrEnum):
    """The claims of each theory that are measured."""

    PRIMARY = "primary"
    ALL = "all"


class FigureKind(StrEnum):
    """What a figure shows."""

    HEATMAP = "heatmap"
    NULL = "null"
    SPECTRUM = "spectrum"
    DEPTH = "depth"


Model = Annotated[
    str,
    typer.Argument(
        help="A local model folder, the installed demo model all-MiniLM-L6-v2, or package.module:function that "
        "returns a model or a (model, tokenizer) pair. A function runs its code; a folder runs none."
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        help="UTF-8 text file, a table (.csv, .tsv, .jsonl, .parquet) or a Hugging Face dataset folder, with --column. "
        "Passages of a text file are separated by blank lines; without blank lines each line is a passage. "
        "Default: the passages in the package."
    ),
]
Column = Annotated[str | None, typer.Option(metavar="NAME", help="The column of --text, if it is a table.")]
Images = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Images instead of text, prepared by the model's own image processor."),
]
Audio = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Sound instead of text (.wav), prepared by the model's own processor."),
]
Batches = Annotated[
    str | None,
    typer.Option(help="Inputs instead of text: package.module:function that returns batches. Runs its code."),
]
Layers = Annotated[
    str | None, typer.Option(help="Layers to measure, in forward-pass order: 0,2,5 or 0-3. Default: all.")
]
Theories = Annotated[list[str] | None, typer.Option(help="A theory to test; can be repeated. Default: all.")]
ClaimsOption = Annotated[
    Claims,
    typer.Option(
        help="The claims to measure: the primary ones, which decide whether a theory holds, or all, with further "
        "consequences and statistics as published. All take several times as long."
    ),
]
Inputs = Annotated[
    int | None, typer.Option(min=1, help="Use the first N passages or files, or batches with --batches. Default: all.")
]
MaxTokens = Annotated[int, typer.Option(min=2, help="Truncate each passage to this many tokens.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Passages or files per forward pass.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the controls' random draws.")]
Describe = Annotated[
    Path | None,
    typer.Option(
        help="TOML file that describes attention layers which no interface finds (docs/describing-a-model.md)."
    ),
]
AllowUnseen = Annotated[
    bool, typer.Option("--allow-unseen", help="Continue if modules that look like attention are not captured.")
]
BaselineOption = Annotated[
    Baseline,
    typer.Option(
        help="Also measure the model with fresh random weights: for the theories that need it (auto), "
        "for all theories, or for none."
    ),
]
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
Loss = Annotated[
    str | None,
    typer.Option(
        help="package.module:function of (output, batch) that returns a loss, for theories that need gradients. "
        "Runs its code."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="Where theories compute, such as cuda; the model runs where it was loaded. Max margin and the coding rate "
        "always use the CPU.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that measure theories while the model runs; 1 for none. By default one for each core, at most "
        "8, on Linux. The numbers do not depend on it, up to rounding.",
    ),
]
Details = Annotated[
    bool, typer.Option("--details", help="Also print every head, every control, the checks and the curves over depth.")
]
