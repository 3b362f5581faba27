"""Inputs of audits: text, tables, images and sound, read from disk."""
