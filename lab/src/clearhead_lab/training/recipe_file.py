"""Recipe files (TOML): a task, its data, a model and the settings of the training.

The sections are [data], [model] and [training]. Recipes that come with Clearhead are found by name.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.operators.named import operator_from_dict
from clearhead.records import read_record
from clearhead.storage import parse_toml, read_bytes
from clearhead_lab.data.augmentation import Augmentation
from clearhead_lab.training.recipe import Recipe

TASKS = ("classification", "language", "segmentation")
MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The section [data].

    get: how to get the data, for the message when it is missing
    take: use only this number of training images in memory, or of training tokens, from the first
    shift, flip: of images in memory: random shifts by up to this number of pixels, horizontal flips
    image_size, augmentation: of images that are decoded as they are needed: their size, and random changes. Without
        image_size the images are read into memory
    repeats: how often an image occurs in its batch, with different augmentations; an epoch then has fewer images
    target: the column of labels or masks; by default masks where there are some
    border_class: make the border of Oxford Pets a class; otherwise it is ignored
    rows: the number of training images, or of pieces of text, for a dry run without the data
    """

    get: str = ""
    rows: int = 0
    take: int = 0
    shift: int = 0
    flip: bool = False
    image_size: int = 0
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)
    repeats: int = 1
    target: str = "auto"
    border_class: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A recipe as it was read.

    title: one line for lists
    model: `kind` or `name`, and settings that replace the defaults
    cost: what a run takes, for lists
    """

    name: str
    title: str
    task: str
    model: Mapping[str, Any]
    data: DataSettings
    recipe: Recipe
    cost: str = ""


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with Clearhead."""
    folder = resources.files("clearhead_lab") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_recipe_file(name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe, given the path of a TOML file or the name of one that comes with Clearhead.

    changes: settings that replace those of the file, such as `training.epochs=3`

    Raise InputError for a file that is missing, is no TOML, or has an unknown or missing key.
    """
    path = Path(name)
    if name in shipped_recipes():
        content = (resources.files("clearhead_lab") / "recipes" / f"{name}.toml").read_bytes()
    elif path.suffix == ".toml" and path.is_file():
        content = read_bytes(path, max_bytes=MAX_BYTES)
    else:
        raise InputError(f"there is no recipe {name}; give a .toml file, or one of {', '.join(shipped_recipes())}")
    stored = parse_toml(content, path)
    for change in changes:
        _apply(stored, change)
    sections = ("title", "task", "cost", "data", "model", "training")
    _check_keys(name, "", stored, sections)
    for key in ("task", "model", "training"):
        if key not in stored:
            raise InputError(f"{name} has no {key}; a recipe has {', '.join(sections)}")
    if stored["task"] not in TASKS:
        raise InputError(f"{name} has the task {stored['task']!r}; expected one of {', '.join(TASKS)}")
    return RecipeFile(
        name=path.stem,
        title=str(stored.get("title", path.stem)),
        task=stored["task"],
        cost=str(stored.get("cost", "")),
        model=_section(name, stored, "model"),
        data=_build(name, "data", DataSettings, stored.get("data", {})),
        recipe=_build(name, "training", Recipe, stored["training"]),
    )


def layer_operators(stored: Any, *, layers: int) -> tuple[Any, ...]:
    """Return the operator of every layer from the value of `attention` in a recipe.

    stored: the name of an operator; a table with `operator`, its settings, and in `layers` such tables for single
        layers; or a list with one of them for each layer
    """
    if isinstance(stored, list):
        if len(stored) != layers:
            raise InputError(f"expected one operator for each of {layers} layers; got {len(stored)}")
        return tuple(operator for entry in stored for operator in layer_operators(entry, layers=1))
    plain: dict[str, Any] = {"operator": stored} if isinstance(stored, str) else dict(stored)
    single: Mapping[str, Any] = plain.pop("layers", {})
    operators = [operator_from_dict(plain)] * layers
    for number, entry in single.items():
        if not str(number).isdecimal() or int(number) >= layers:
            raise InputError(f"expected layers from 0 to {layers - 1} in attention; got {number}")
        operators[int(number)] = layer_operators(entry, layers=1)[0]
    return tuple(operators)


def _apply(stored: dict[str, Any], change: str) -> None:
    """Replace one setting. The value is TOML; a word that is no TOML is text."""
    path, equals, value = change.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise InputError(f"expected a change like training.epochs=3; got {change!r}")
    for section in sections:
        stored = stored.setdefault(section, {})
        if not isinstance(stored, dict):
            raise InputError(f"cannot change {path}: {section} is not a section")
    try:
        stored[key] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        stored[key] = value.strip()


def _section(file: str, stored: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(stored[name], dict):
        raise InputError(f"{file} has {name} = {stored[name]!r}; expected a section [{name}]")
    section: Mapping[str, Any] = stored[name]
    return section


def _build(file: str, name: str, kind: type[Any], stored: Any) -> Any:
    """Return the dataclass of a section."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    section = _section(file, {name: stored}, name)
    _check_keys(file, f" in [{name}]", section, fields)
    if isinstance(section.get("augmentation"), dict):
        _check_keys(file, f" in [{name}.augmentation]", section["augmentation"], Augmentation.__dataclass_fields__)
    return read_record(kind, section, f"[{name}] of {file}", remedy="correct it", defaults=True)


def _check_keys(file: str, where: str, stored: Mapping[str, Any], known: Collection[str]) -> None:
    for key in stored:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise InputError(f"{file} has the unknown key {key}{where}; did you mean {nearest[0]}?")
