"""Swap: replace the operator of attention layers, save what is swapped, and restore the model."""

from clearhead._swap.files import load_swaps, save_swaps
from clearhead._swap.huggingface import register_huggingface
from clearhead._swap.notes import find_swaps
from clearhead._swap.operator import SwapWarning
from clearhead._swap.swaps import Swap, SwappedLayer, swap

__all__ = [
    "Swap",
    "SwapWarning",
    "SwappedLayer",
    "find_swaps",
    "load_swaps",
    "register_huggingface",
    "save_swaps",
    "swap",
]
