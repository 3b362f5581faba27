"""Experiments on attention as a support vector machine (Tarzanagh et al. 2023)."""
