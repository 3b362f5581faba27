"""Pure attention operators, (q, k, v, *, mask) -> o, one family per file, each with a slow twin beside it."""

from clearhead.operators.softmax import softmax_attention, softmax_attention_slow

__all__ = ["softmax_attention", "softmax_attention_slow"]
