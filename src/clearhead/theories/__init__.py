"""Theories of attention: each states claims and measures them on `Heads`, knowing no model and no other theory."""
