"""Slow definitions of the operators, each under the name of the operator: one query or one token at a time.

Tests and `clearhead verify` compare the operators with them, forward and backward.
"""

from clearhead.operators.reference.attention import (
    clamped_key_attention,
    general_attention,
    kernel_pca_attention,
    scaled_attention,
    softmax_attention,
    spatial_attention,
    symmetric_attention,
)
from clearhead.operators.reference.crate import (
    causal_token_statistics_attention,
    ista_step,
    overcomplete_step,
    subspace_attention,
    subspace_step,
    token_statistics_attention,
    token_statistics_step,
)
from clearhead.operators.reference.pursuit import principal_attention_pursuit, rpc_attention

__all__ = [
    "causal_token_statistics_attention",
    "clamped_key_attention",
    "general_attention",
    "ista_step",
    "kernel_pca_attention",
    "overcomplete_step",
    "principal_attention_pursuit",
    "rpc_attention",
    "scaled_attention",
    "softmax_attention",
    "spatial_attention",
    "subspace_attention",
    "subspace_step",
    "symmetric_attention",
    "token_statistics_attention",
    "token_statistics_step",
]
