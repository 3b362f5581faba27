"""The experiments of Teo and Nguyen 2024 (arXiv 2406.13762), at a scale for a laptop and at the paper's."""
