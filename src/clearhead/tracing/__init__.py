"""How tensors of a forward pass came about: linear maps of queries, keys and values, and the residual stream."""
