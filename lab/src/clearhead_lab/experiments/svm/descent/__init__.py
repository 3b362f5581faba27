"""Training of one attention layer as in the sources, many runs at once."""
