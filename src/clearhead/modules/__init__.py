"""Attention with parameters: torch modules that project their inputs and call one operator."""

from clearhead.modules.inputs import PaddedSets, pad_sets
from clearhead.modules.kernel_pca import KernelPCAAttention
from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.modules.rate_reduction import RateReductionLoss
from clearhead.modules.rpc import RPCAttention
from clearhead.modules.single_head import LearnedQueryAttention, SelfAttention
from clearhead.modules.sparse_coding import OvercompleteStep, SparseCodingStep
from clearhead.modules.spatial import SpatialAttention
from clearhead.modules.subspace import SubspaceAttention
from clearhead.modules.token_attention import ScaledAttention, SymmetricAttention
from clearhead.modules.token_statistics import CausalTokenStatisticsAttention, TokenStatisticsAttention

__all__ = [
    "CausalTokenStatisticsAttention",
    "KernelPCAAttention",
    "LearnedQueryAttention",
    "MultiHeadAttention",
    "OvercompleteStep",
    "PaddedSets",
    "RPCAttention",
    "RateReductionLoss",
    "ScaledAttention",
    "SelfAttention",
    "SparseCodingStep",
    "SpatialAttention",
    "SubspaceAttention",
    "SymmetricAttention",
    "TokenStatisticsAttention",
    "pad_sets",
]
