"""Papers that the theorems on coding rates come from."""

__all__ = ["CRATE", "DENOISING", "HU", "LANDSCAPE", "MCR2", "TOST"]

MCR2 = "Yu et al. 2020 (arXiv 2006.08558)"
CRATE = "Yu et al. 2023 (arXiv 2306.01129)"
LANDSCAPE = "Wang et al. 2024 (arXiv 2406.01909)"
HU = "Hu et al. 2024 (arXiv 2411.17182)"
TOST = "Wu et al. 2024 (arXiv 2412.17810)"
DENOISING = "Wang et al. 2025 (arXiv 2506.03790)"
