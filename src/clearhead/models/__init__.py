"""Models to look at, and where they come from."""
