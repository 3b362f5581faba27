"""Experiments on published models, and the vision transformer trained for them."""
