"""Inputs of audits (text, tables, images, sound), and images and text to train on, read from disk."""
