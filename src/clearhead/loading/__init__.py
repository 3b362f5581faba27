"""Loading of models from folders and Python objects, with their tokenizers and processors."""
