"""Attention as compression."""
