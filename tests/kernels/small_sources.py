"""A small library with the kernel's interface that compiles quickly."""

from pathlib import Path

import pytest

from clearhead.kernels.build import BuildError, _find_compiler
from clearhead.kernels.library import ABI

__all__ = ["INTERFACE", "needs_compiler", "write_sources"]

INTERFACE = """
#define EXPORT extern "C" __attribute__((visibility("default")))
namespace generic { int width(); }
namespace avx2 { int width(); }
namespace avx512 { int width(); }
EXPORT int clearhead_abi() { return VERSION; }
EXPORT int clearhead_instructions() { return 1 | 2 * HAS2 | 4 * HAS4; }
EXPORT int clearhead_openmp() { return OPENMP; }
EXPORT int width() { return generic::width(); }
extern "C" int not_exported() { return 1; }
"""
_SWITCHES = """
#ifdef CLEARHEAD_HAS_AVX2
#define HAS2 1
#else
#define HAS2 0
#endif
#ifdef CLEARHEAD_HAS_AVX512
#define HAS4 1
#else
#define HAS4 0
#endif
#ifdef _OPENMP
#define OPENMP 1
#else
#define OPENMP 0
#endif
"""
# The same inline function in every variant: the linker keeps one copy, which must run on every processor.
SHARED = """
inline __attribute__((noinline)) int shared_width() {
#if defined(__AVX512F__)
    return 16;
#elif defined(__AVX2__)
    return 8;
#else
    return 4;
#endif
}
"""
VARIANT = '#include "shared.h"\nnamespace CLEARHEAD_VARIANT { int width() { return shared_width(); } }\n'


def _has_compiler() -> bool:
    try:
        _find_compiler()
    except BuildError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="there is no C++ compiler here")


def write_sources(folder: Path, *, interface: str = INTERFACE, variant: str = VARIANT) -> Path:
    """Write the sources into a new folder and return it."""
    folder.mkdir()
    (folder / "interface.cpp").write_text(f"#define VERSION {ABI}\n{_SWITCHES}{interface}")
    (folder / "variant.cpp").write_text(variant)
    (folder / "shared.h").write_text(SHARED)
    return folder
