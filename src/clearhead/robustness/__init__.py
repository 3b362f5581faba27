"""Inputs made worse, and what is left of a model's answers under them."""
