"""Reproductions of published results. Nothing but the command line imports this package."""
