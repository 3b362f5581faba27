"""Training one attention layer as the sources do, many runs at once, and what it leads to."""
