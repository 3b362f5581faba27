"""Pure attention operators, (q, k, v, *, mask) -> o, one family per file, each with a slow twin beside it."""

from clearhead.operators.clamped import clamped_key_attention, clamped_key_attention_slow
from clearhead.operators.drop_in import (
    DROP_INS,
    RPC,
    ClampedKeys,
    DropIn,
    Softmax,
    Symmetric,
    drop_in_as_json,
    drop_in_from_json,
)
from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian,
    gaussian_distance,
    general_attention,
    general_attention_slow,
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
from clearhead.operators.kernel_pca_attention import kernel_pca_attention, kernel_pca_attention_slow
from clearhead.operators.key_bound import KeyBound, KeyMu, Scope, Threshold, Width
from clearhead.operators.learned_scaling import LearnedScaling, Scaled
from clearhead.operators.pursuit import principal_attention_pursuit, principal_attention_pursuit_slow
from clearhead.operators.pursuit_options import PRESETS, DropoutPlace, Inner, Order, Pursuit, Shrink, preset
from clearhead.operators.pursuit_trace import PursuitStep, PursuitTrace, trace_pursuit
from clearhead.operators.resizing import resize_matrix
from clearhead.operators.rpc import rpc_attention, rpc_attention_slow
from clearhead.operators.scaled import (
    AlphaAsymmetric,
    AlphaSymmetric,
    SMatrix,
    scaled_attention,
    scaled_attention_slow,
)
from clearhead.operators.softmax import softmax_attention, softmax_attention_slow
from clearhead.operators.sparse_coding import (
    StepSizeWarning,
    ista_step,
    ista_step_slow,
    largest_step,
    overcomplete_step,
    overcomplete_step_slow,
    warn_of_step,
)
from clearhead.operators.spatial import fold, spatial_attention, spatial_attention_slow, spatial_size, unfold
from clearhead.operators.subspace import (
    subspace_attention,
    subspace_attention_slow,
    subspace_step,
    subspace_step_slow,
)
from clearhead.operators.symmetric import symmetric_attention, symmetric_attention_slow
from clearhead.operators.token_statistics import (
    causal_token_statistics_attention,
    causal_token_statistics_attention_slow,
    token_statistics_attention,
    token_statistics_attention_slow,
    token_statistics_step,
    token_statistics_step_slow,
    variational_rate,
)

__all__ = [
    "DROP_INS",
    "PRESETS",
    "RPC",
    "AlphaAsymmetric",
    "AlphaSymmetric",
    "ByExplained",
    "ByRank",
    "ClampedKeys",
    "DropIn",
    "DropoutPlace",
    "FlatSpectrumWarning",
    "Inner",
    "KernelPCA",
    "KernelSpectrum",
    "KeyBound",
    "KeyMu",
    "LearnedScaling",
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
    "causal_token_statistics_attention_slow",
    "clamped_key_attention",
    "clamped_key_attention_slow",
    "concatenation",
    "dot_product",
    "drop_in_as_json",
    "drop_in_from_json",
    "embedded_gaussian",
    "fold",
    "gaussian",
    "gaussian_distance",
    "general_attention",
    "general_attention_slow",
    "ista_step",
    "ista_step_slow",
    "kernel_pca",
    "kernel_pca_attention",
    "kernel_pca_attention_slow",
    "kernel_pca_spectrum",
    "largest_step",
    "overcomplete_step",
    "overcomplete_step_slow",
    "preset",
    "principal_attention_pursuit",
    "principal_attention_pursuit_slow",
    "resize_matrix",
    "rpc_attention",
    "rpc_attention_slow",
    "scaled_attention",
    "scaled_attention_slow",
    "softmax_attention",
    "softmax_attention_slow",
    "spatial_attention",
    "spatial_attention_slow",
    "spatial_size",
    "subspace_attention",
    "subspace_attention_slow",
    "subspace_step",
    "subspace_step_slow",
    "symmetric_attention",
    "symmetric_attention_slow",
    "token_statistics_attention",
    "token_statistics_attention_slow",
    "token_statistics_step",
    "token_statistics_step_slow",
    "trace_pursuit",
    "unfold",
    "variational_rate",
    "warn_of_step",
]
