"""Clearhead's own models, and loading of models from folders and Python objects."""
