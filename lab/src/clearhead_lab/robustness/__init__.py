"""Corrupted inputs, and how a model performs on them."""
