"""Bugs put into the package on purpose: `python tests/faults/inject.py` reports which of them the tests kill."""
