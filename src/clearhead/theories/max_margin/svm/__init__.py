"""Attention SVMs: constraints in factors, a solver for each norm, certificates, and conflicts where none exists."""
