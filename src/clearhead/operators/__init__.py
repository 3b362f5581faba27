"""Pure attention operators, (q, k, v, *, mask) -> o, one family per file, each with a slow twin beside it."""

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
from clearhead.operators.pursuit import principal_attention_pursuit, principal_attention_pursuit_slow
from clearhead.operators.softmax import softmax_attention, softmax_attention_slow
from clearhead.operators.spatial import fold, spatial_attention, spatial_attention_slow, spatial_size, unfold
from clearhead.operators.symmetric import symmetric_attention, symmetric_attention_slow

__all__ = [
    "ByExplained",
    "ByRank",
    "FlatSpectrumWarning",
    "KernelPCA",
    "KernelSpectrum",
    "Similarity",
    "concatenation",
    "dot_product",
    "embedded_gaussian",
    "fold",
    "gaussian",
    "gaussian_distance",
    "general_attention",
    "general_attention_slow",
    "kernel_pca",
    "kernel_pca_attention",
    "kernel_pca_attention_slow",
    "kernel_pca_spectrum",
    "principal_attention_pursuit",
    "principal_attention_pursuit_slow",
    "softmax_attention",
    "softmax_attention_slow",
    "spatial_attention",
    "spatial_attention_slow",
    "spatial_size",
    "symmetric_attention",
    "symmetric_attention_slow",
    "unfold",
]
