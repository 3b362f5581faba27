"""Experiments on coding rate reduction and CRATE (Yu et al. 2023)."""
