"""Readers for data on disk, and the small text that ships with the package."""
