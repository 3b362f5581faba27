"""Numerical methods that do not depend on attention."""
