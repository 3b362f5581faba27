"""Proved statements that are checked numerically, each with a control that must fail, and what they are about."""
