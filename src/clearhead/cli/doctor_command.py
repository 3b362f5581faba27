"""`clearhead doctor`: say what is installed, whether the compiled kernel is in use, and how to get what is missing."""

import json as json_format
from collections.abc import Iterator
from dataclasses import asdict, replace

from rich.text import Text

from clearhead.cli.console import printing
from clearhead.cli.installation import Extra, Installation, KernelFacts, Package, look
from clearhead.report.columns import print_paragraph

__all__ = ["doctor_command"]

_INDENT = 14


def doctor_command(*, json: bool) -> None:
    """Print what is installed. Nothing that is missing is an error: clearhead works without it."""
    found = look()
    with printing() as console:
        if json:
            print(json_format.dumps(asdict(found), indent=1, allow_nan=False), file=console.file)
            return
        for label, words in _lines(found):
            print_paragraph(label, Text(words), console, indent=_INDENT)


def _lines(found: Installation) -> Iterator[tuple[str, str]]:
    yield "clearhead", f"{found.clearhead}, {found.folder}"
    yield "python", f"{found.python}, {found.machine}"
    threads = "1 thread" if found.torch.threads == 1 else f"{found.torch.threads} threads"
    openmp = "OpenMP" if found.torch.openmp else "no OpenMP"
    yield "torch", f"{found.torch.version}, {found.torch.instructions}, {threads}, {openmp}"
    yield "kernel", _kernel(found.kernel)
    yield "OpenMP", _openmp(found)
    yield "GPU", ", ".join(found.torch.gpus) or "none"
    for name, extra in found.extras.items():
        if name == "demo":
            model = replace(extra.packages[0], name=found.demo_model)
            yield "demo model", _extra(replace(extra, packages=(model,)))
        else:
            yield name, _extra(extra)


def _kernel(kernel: KernelFacts) -> str:
    if not kernel.present:
        return f"absent: {kernel.reason}"
    threads = "OpenMP" if kernel.openmp else "no OpenMP, so one thread"
    return f"{kernel.instructions}, {threads}, {kernel.path}"


def _openmp(found: Installation) -> str:
    names = ", ".join(found.openmp_runtimes)
    if not names:
        return "no runtime was found"
    if len(found.openmp_runtimes) > 1:
        advice = "; build the kernel with GCC to share torch's" if found.kernel.openmp else ""
        return f"{len(found.openmp_runtimes)} runtimes ({names}), each with threads of its own{advice}"
    return f"one runtime for torch and the kernel: {names}" if found.kernel.openmp else f"one runtime: {names}"


def _extra(extra: Extra) -> str:
    installed = ", ".join(_package(package) for package in extra.packages if package.version is not None)
    missing = ", ".join(package.name for package in extra.packages if package.version is None)
    parts = (installed, f"{missing} not installed: {extra.install}" if missing else "")
    return "; ".join(filter(None, parts))


def _package(package: Package) -> str:
    return f"{package.name} {package.version}" + (f" ({package.note})" if package.note else "")
