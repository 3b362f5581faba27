"""Arithmetic that knows nothing of attention."""
