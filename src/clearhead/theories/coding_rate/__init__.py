"""Attention as compression: the coding rate of tokens, its reduction by classes, and the steps that lower it."""
