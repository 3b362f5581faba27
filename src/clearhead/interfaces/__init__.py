"""The ways in which models expose attention, one file each: `find(model)` and `attach(layer, handler)`."""

from clearhead.interfaces.attachment import Detach, Handler, Layer, attachment_of
from clearhead.interfaces.call import AttentionNotSeenError, Call, Original
from clearhead.interfaces.descriptions import AttentionSpec, read_descriptions
from clearhead.interfaces.finding import INTERFACES, attach, find

__all__ = [
    "INTERFACES",
    "AttentionNotSeenError",
    "AttentionSpec",
    "Call",
    "Detach",
    "Handler",
    "Layer",
    "Original",
    "attach",
    "attachment_of",
    "find",
    "read_descriptions",
]
