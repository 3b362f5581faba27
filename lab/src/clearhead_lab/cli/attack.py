"""The command `clearhead attack` and its options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.failure import CommandError

DEFAULT_OUT = "clearhead-attack"


class SuiteChoice(StrEnum):
    """The attacks that are run."""

    FAST = "fast"
    STANDARD = "standard"
    FULL = "full"


class ProtocolChoice(StrEnum):
    """The inputs that are attacked."""

    PIXELS = "pixels"
    PAPER = "paper"


def attack(
    model: Annotated[
        str,
        typer.Argument(
            help="An image classifier: a folder of Clearhead or Hugging Face, or package.module:function that returns "
            "one. A function runs its code; a folder runs none.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Test images with labels, in a layout that docs/data.md describes, or the word digits."),
    ] = None,
    eps: Annotated[
        list[str] | None,
        typer.Option(help="The largest change of a pixel, such as 8/255; can be repeated.  [default: 8/255]"),
    ] = None,
    suite: Annotated[
        SuiteChoice,
        typer.Option(
            help="fast: FGSM, PGD, SPSA. standard: also APGD, Square and corruptions. full: also AutoAttack, CW, "
            "HopSkipJump and ImageNet-C's corruptions."
        ),
    ] = SuiteChoice.FAST,
    only: Annotated[
        list[str] | None, typer.Option("--attack", help="Run this attack of the suite only; can be repeated.")
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="Attack the first N test images.")] = 500,
    twin: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A softmax model of the same classes, for a transfer attack.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The --out folder of another model on the same images: print paired differences, and the mean "
            "corruption error if the suites have corruptions.",
        ),
    ] = None,
    ood: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Images of other classes, as --data: measure how well low confidence detects the first of them, as "
            "many as --inputs.",
        ),
    ] = None,
    protocol: Annotated[
        ProtocolChoice,
        typer.Option(help="pixels: budgets in pixels from 0 to 1. paper: in normalised inputs, as in the RPC paper."),
    ] = ProtocolChoice.PIXELS,
    mean: Annotated[
        str | None, typer.Option(help="Mean of the model's normalisation by channel, such as .485,.456,.406.")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation of the model's normalisation by channel.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images attacked at once; bounds the memory.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for index.html, attack.json and finished parts.")
    ] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")] = False,
) -> None:
    """Attack an image classifier and check the evaluation itself.

    Robust accuracy is the worst over all attacks. Every evaluation has sanity lines, each PASS or FLAG, which tell
    whether its numbers overstate the robustness. An interrupted evaluation continues when the same command runs again.

    Example: clearhead attack clearhead-training/model --data cifar-10 --eps 8/255 --suite standard
    """
    if not out:
        raise CommandError("--out is empty; name a folder for the results, or . for the current folder")
    from clearhead.cli.console import progress_bar

    with progress_bar("loading libraries") as bar:
        from clearhead_lab.cli.attack_command import AttackRequest, print_record, run_attack

        request = AttackRequest(
            model=model, data=data, eps=tuple(eps or ("8/255",)), suite=suite.value, attacks=tuple(only or ()),
            inputs=inputs, twin=twin, against=against, ood=ood, protocol=protocol.value, mean=mean, std=std,
            batch_size=batch_size, seed=seed, out=Path(out),
        )  # fmt: skip
        record, differences = run_attack(request, bar)
    print_record(record, differences, request, as_json=json)
