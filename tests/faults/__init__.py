"""Planted bugs: `python tests/faults/inject.py` reports which of them the tests detect."""
