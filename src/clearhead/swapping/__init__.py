"""Put another operator into a model's attention layers: for a block, until it is undone, or for good with a file."""

from clearhead.sockets.answering import SwapWarning
from clearhead.sockets.doors.huggingface import register_huggingface
from clearhead.swapping.storing import load_swaps, save_swaps
from clearhead.swapping.swap import Layers, Swap, SwappedLayer, find_swaps, swap

__all__ = [
    "Layers",
    "Swap",
    "SwapWarning",
    "SwappedLayer",
    "find_swaps",
    "load_swaps",
    "register_huggingface",
    "save_swaps",
    "swap",
]
