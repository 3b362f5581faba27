"""Where the statements of the theory stand, and how far a tensor is from what it should be."""

from torch import Tensor

__all__ = ["CRATE", "DENOISING", "HU", "LANDSCAPE", "MCR2", "TOST", "apart"]

MCR2 = "Yu et al. 2020 (arXiv 2006.08558)"
CRATE = "Yu et al. 2023 (arXiv 2306.01129)"
LANDSCAPE = "Wang et al. 2024 (arXiv 2406.01909)"
HU = "Hu et al. 2024 (arXiv 2411.17182)"
TOST = "Wu et al. 2024 (arXiv 2412.17810)"
DENOISING = "Wang et al. 2025 (arXiv 2506.03790)"


def apart(found: Tensor, expected: Tensor) -> float:
    """The relative error of one tensor."""
    return float((found - expected).norm() / expected.norm())
