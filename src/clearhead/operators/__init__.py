"""Attention operators, pure functions (q, k, v, *, mask, scale) -> o, one family per file.

The slow definition of each stands next to the fast form: `slow_softmax_attention` in `clearhead.operators.softmax`.
"""

from clearhead.operators.clamped_keys import KeyBound, KeyMu, Scope, Threshold, Width, clamped_key_attention
from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian,
    gaussian_distance,
    general_attention,
)
from clearhead.operators.kernel_pca import (
    ByExplained,
    ByRank,
    FlatSpectrumWarning,
    KernelPCA,
    KernelSpectrum,
    kernel_pca,
    kernel_pca_spectrum,
)
from clearhead.operators.kernel_pca_attention import kernel_pca_attention
from clearhead.operators.learned_scaling import LearnedScaling, Scaled
from clearhead.operators.named import (
    OPERATORS,
    RPC,
    ClampedKeys,
    NamedOperator,
    Softmax,
    Symmetric,
    operator_from_dict,
    operator_to_dict,
)
from clearhead.operators.pursuit import principal_attention_pursuit
from clearhead.operators.pursuit_options import PRESETS, DropoutIterations, Inner, Order, Pursuit, Shrink, preset
from clearhead.operators.rpc import PursuitStep, PursuitTrace, rpc_attention, trace_pursuit
from clearhead.operators.scaled import (
    AlphaAsymmetric,
    AlphaSymmetric,
    SMatrix,
    resize_matrix,
    scaled_attention,
)
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.sparse_coding import (
    StepSizeWarning,
    ista_step,
    largest_step,
    overcomplete_step,
    warn_of_step,
)
from clearhead.operators.spatial import fold, spatial_attention, spatial_size, unfold
from clearhead.operators.subspace import (
    subspace_attention,
    subspace_step,
)
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.token_statistics import (
    causal_token_statistics_attention,
    token_statistics_attention,
    token_statistics_step,
    variational_rate,
)

__all__ = [
    "OPERATORS",
    "PRESETS",
    "RPC",
    "AlphaAsymmetric",
    "AlphaSymmetric",
    "ByExplained",
    "ByRank",
    "ClampedKeys",
    "DropoutIterations",
    "FlatSpectrumWarning",
    "Inner",
    "KernelPCA",
    "KernelSpectrum",
    "KeyBound",
    "KeyMu",
    "LearnedScaling",
    "NamedOperator",
    "Order",
    "Pursuit",
    "PursuitStep",
    "PursuitTrace",
    "SMatrix",
    "Scaled",
    "Scope",
    "Shrink",
    "Similarity",
    "Softmax",
    "StepSizeWarning",
    "Symmetric",
    "Threshold",
    "Width",
    "causal_token_statistics_attention",
    "clamped_key_attention",
    "concatenation",
    "dot_product",
    "embedded_gaussian",
    "fold",
    "gaussian",
    "gaussian_distance",
    "general_attention",
    "ista_step",
    "kernel_pca",
    "kernel_pca_attention",
    "kernel_pca_spectrum",
    "largest_step",
    "operator_from_dict",
    "operator_to_dict",
    "overcomplete_step",
    "preset",
    "principal_attention_pursuit",
    "resize_matrix",
    "rpc_attention",
    "scaled_attention",
    "softmax_attention",
    "spatial_attention",
    "spatial_size",
    "subspace_attention",
    "subspace_step",
    "symmetric_attention",
    "token_statistics_attention",
    "token_statistics_step",
    "trace_pursuit",
    "unfold",
    "variational_rate",
    "warn_of_step",
]
