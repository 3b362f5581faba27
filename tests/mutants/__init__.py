"""Planted bugs, and the command that checks that the tests find them."""
