"""Compile the kernel: one shared library with the same arithmetic for several instruction sets.

Standard library only, no import of clearhead: an installer loads this file by its path where torch is not installed.
`python -m clearhead.kernels.build` builds the kernel later, once there is a compiler.

Never -ffast-math (old compilers then flush denormals in the whole process when the library is loaded) and never
-march=native (the library may be carried to another processor).

The library's SHA-256 is written next to it, as sha256sum does: the loader of the operating system checks little, and a
truncated library ends the process.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = "_symmetric.so"
CHECKSUM = f"{LIBRARY}.sha256"
SOURCES = Path(__file__).parent
COMMAND = "python -m clearhead.kernels.build"

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip
# Smallest first: the linker keeps the first of several copies of an inline function, so that generic code never calls a
# copy with instructions that only some processors have.
_VARIANTS = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mavx2", "-mfma"),
}
_PROBES = {
    ("-fopenmp",): "#include <omp.h>\nint probe() { return omp_get_max_threads(); }\n",
    (): "int probe() { return 1; }\n",
}
_AT_ONCE = 2
_SECONDS = 300.0


class BuildError(Exception):
    """A failed build. The message is one line: cause and remedy."""


class _FailedError(Exception):
    """A failed compiler run, with the compiler's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    path: Path
    variants: tuple[str, ...]
    openmp: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiler:
    """A compiler, its deadline, and its running processes."""

    command: tuple[str, ...]
    deadline: float
    running: set[subprocess.Popen[str]] = field(default_factory=set)

    def run(self, *arguments: str | Path) -> str:
        """Run the compiler and return its output; raise `_FailedError` unless it succeeds in time."""
        command = [*self.command, *map(str, arguments)]
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                errors="replace", env=os.environ | {"LC_ALL": "C"},
                start_new_session=True,  # so that its child processes can be stopped too
            )  # fmt: skip
        except OSError as error:
            raise _FailedError(error.strerror or str(error)) from None
        with process:
            self.running.add(process)
            try:
                output, _ = process.communicate(timeout=max(self.deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                self.stop()
                raise _FailedError(f"it took longer than {_SECONDS:.0f} s") from None
            finally:
                self.running.discard(process)
        if process.returncode:
            raise _FailedError(_first_error(output) or f"it ended with code {process.returncode} and no message")
        return output

    def stop(self) -> None:
        """Stop all running processes."""
        for process in [*self.running]:
            with suppress(OSError):  # it may have ended already
                os.killpg(process.pid, signal.SIGKILL)


def build(folder: Path, *, sources: Path = SOURCES, flags: Sequence[str] = ()) -> Path:
    """Compile the kernel into `folder` and return the library's path; an existing library is replaced at the end.

    sources: folder of interface.cpp and variant.cpp; flags: additional flags for compiling and linking (sanitizers)

    Its checksum is in the file `CHECKSUM` of the same folder.

    Raises `BuildError` without leaving files behind if there is no compiler, or it fails.
    """
    return _build(folder, sources=sources, flags=flags).path


def checksum_line(content: bytes) -> str:
    """Return the content of `CHECKSUM` for a library with this content; `sha256sum --check` reads it too."""
    return f"{hashlib.sha256(content).hexdigest()}  {LIBRARY}\n"


def _build(folder: Path, *, sources: Path, flags: Sequence[str]) -> _Built:
    compiler = _Compiler(command=_find_compiler(), deadline=time.monotonic() + _SECONDS)
    try:
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as work:
            try:
                built = _compile(compiler, sources, Path(work), tuple(flags))
            except BaseException:
                compiler.stop()
                raise
            checksum = built.path.with_name(CHECKSUM)
            checksum.write_text(checksum_line(built.path.read_bytes()))
            target = Path(folder) / LIBRARY
            checksum.replace(Path(folder) / CHECKSUM)
            built.path.replace(target)
    except OSError as error:
        raise BuildError(
            f"cannot write the kernel into {folder} ({error.strerror or error}); "
            f"run {COMMAND} as a user who may write there"
        ) from None
    return _Built(path=target, variants=built.variants, openmp=built.openmp)


def _find_compiler() -> tuple[str, ...]:
    if sys.platform == "win32":
        raise BuildError("the kernel is built on Linux and macOS only; everything works without it, slower")
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise BuildError(f"CXX is {chosen[0]}, which is not a program here; set it to a C++ compiler, or unset it")
        return tuple(chosen)
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return (name,)
    raise BuildError(
        f"there is no C++ compiler ({', '.join(_COMPILERS)}); install one, such as g++ or Xcode's command line tools, "
        f"then run {COMMAND}"
    )


def _compile(compiler: _Compiler, sources: Path, work: Path, flags: tuple[str, ...]) -> _Built:
    """Compile each variant that the compiler supports, then the interface that lists them, and link them."""
    flags = (*_FLAGS, *flags, *_openmp(compiler, work))
    candidates = _variants(compiler)

    def variant(name: str) -> Path | _FailedError:
        target = work / f"{name}.o"
        instructions = (f"-DCLEARHEAD_VARIANT={name}", *candidates[name])
        try:
            compiler.run(*flags, *instructions, "-c", sources / "variant.cpp", "-o", target)
        except _FailedError as error:
            return error
        return target

    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        tried = dict(zip(candidates, pool.map(variant, candidates), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if isinstance(tried["generic"], _FailedError):
        raise _refused(compiler, "variant.cpp", tried["generic"])
    # A compiler too old for the newest instructions makes a library without them.
    objects = {name: made for name, made in tried.items() if isinstance(made, Path)}
    has = [f"-DCLEARHEAD_HAS_{name.upper()}" for name in objects if name != "generic"]
    interface, library = work / "interface.o", work / LIBRARY
    try:
        compiler.run(*flags, *has, "-c", sources / "interface.cpp", "-o", interface)
        compiler.run(*flags, "-shared", interface, *objects.values(), "-o", library)
    except _FailedError as error:
        raise _refused(compiler, "interface.cpp", error) from None
    return _Built(path=library, variants=tuple(objects), openmp="-fopenmp" in flags)


def _openmp(compiler: _Compiler, work: Path) -> tuple[str, ...]:
    """Return the flag for OpenMP, or none if the compiler or its runtime lacks it: the kernel then has one thread."""
    failed = _FailedError("it was not tried")
    for flags, text in _PROBES.items():
        probe = work / "probe.cpp"
        probe.write_text(text)
        try:
            compiler.run("-std=c++17", "-fPIC", *flags, "-shared", probe, "-o", work / "probe.so")
        except _FailedError as error:
            failed = error
        else:
            return flags
    raise _refused(compiler, "two lines of C++17", failed)


def _variants(compiler: _Compiler) -> dict[str, tuple[str, ...]]:
    """Return the variants for the compiler's target machine; Python may run on another."""
    try:
        machine = compiler.run("-dumpmachine").strip()
    except _FailedError:
        machine = ""
    names = _VARIANTS if machine.startswith(("x86_64", "amd64")) else ("generic",)
    return {name: _VARIANTS[name] for name in names}


def _refused(compiler: _Compiler, what: str, error: _FailedError) -> BuildError:
    name = shlex.join(compiler.command)
    return BuildError(f"{name} does not compile {what}: {error}; set CXX to a C++17 compiler and run {COMMAND}")


def _first_error(output: str) -> str:
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    telling = (line for line in lines if re.search("(?<!collect2: )error|undefined", line, re.IGNORECASE))
    return next(telling, lines[0] if lines else "")


def main() -> int:
    """Build the kernel next to its sources and print one line; return 0, or 2 if it cannot be built."""
    try:
        built = _build(SOURCES, sources=SOURCES, flags=())
    except BuildError as error:
        print(f"clearhead: {error}", file=sys.stderr)
        return 2
    threads = "OpenMP" if built.openmp else "no OpenMP, so one thread"
    print(f"built {built.path} ({', '.join(built.variants)}; {threads})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
