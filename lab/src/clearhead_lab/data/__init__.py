"""Images and text to train on, read from disk."""
