"""Compile the kernel while clearhead is being installed; where that fails, install without it.

A wheel with the library is for one platform and any Python 3: it uses nothing of Python's own interface. A wheel
without is for every platform. An editable installation gets the library beside its sources.
"""

import importlib.util
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

_ROOM = "clearhead/kernels"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Put the kernel into the wheel, or say in one line why it is not there."""

    _scratch: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build into the source tree for an editable installation, else beside it: it may be read-only."""
        if os.environ.get("CLEARHEAD_NO_KERNEL", "0") not in ("", "0"):
            self.app.display_info("clearhead is installed without its compiled kernel: CLEARHEAD_NO_KERNEL is set")
            return
        room = Path(self.root) / "src" / _ROOM
        try:
            if version == "editable":
                _builder(room).build(room)
                return
            self._scratch = TemporaryDirectory(prefix="clearhead-kernel-")
            library = _builder(room).build(Path(self._scratch.name))
        except Exception as error:  # whatever it is, clearhead works without the kernel
            self.app.display_warning(f"clearhead is installed without its compiled kernel, slower: {error}")
            return
        for file in library.parent.iterdir():  # the library and its checksum
            build_data["force_include"][str(file)] = f"{_ROOM}/{file.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The library is in the wheel; what it was built in goes."""
        if self._scratch is not None:
            self._scratch.cleanup()


def _builder(room: Path) -> ModuleType:
    """build.py by its path: clearhead itself is not installed yet, and torch need not be."""
    specification = importlib.util.spec_from_file_location("clearhead_kernel_build", room / "build.py")
    if specification is None or specification.loader is None:
        raise ImportError(f"cannot read {room / 'build.py'}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _platform() -> str:
    """The platform that this library is for; whether it would run on others (manylinux) nobody has checked."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
