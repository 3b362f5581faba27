"""The ways in which models expose attention, one file each: `find(model)` and `attach(layer, handler)`."""

from clearhead.interfaces.attachment import Attachment, Detach, Handler, Interface, Layer, attach_to, attachment_of
from clearhead.interfaces.call import AttentionNotSeenError, Call, Original
from clearhead.interfaces.descriptions import AttentionSpec, read_descriptions
from clearhead.interfaces.finding import INTERFACES, attach, find
from clearhead.interfaces.forward import unwrap_forward, wrap_forward

__all__ = [
    "INTERFACES",
    "Attachment",
    "AttentionNotSeenError",
    "AttentionSpec",
    "Call",
    "Detach",
    "Handler",
    "Interface",
    "Layer",
    "Original",
    "attach",
    "attach_to",
    "attachment_of",
    "find",
    "read_descriptions",
    "unwrap_forward",
    "wrap_forward",
]
