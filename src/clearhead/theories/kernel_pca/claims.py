"""The claims of kernel PCA on a head: the primary one, its consequences, and published statistics."""

from functools import partial

from clearhead.theories.theory import Claim, Role

PAPER = "Teo and Nguyen 2024 (arXiv 2406.13762)"
REPRODUCTION = "Saritas and Yildiz 2025 (arXiv 2505.07908)"
NO_UNBIASED = "keys or values without variance, or theorem's values on too few tokens for an unbiased similarity"
DIVISION = "the published formula divides by zero"


_claim = partial(
    Claim,
    theory="kernel PCA",
    predicted=None,
    role=Role.SECONDARY,
    size=1.0,
    undefined="keys or values without variance",
)

CAPTURED = _claim(
    statistic="captured variance",
    statement="the head's values span the principal axes of its keys in feature space",
    formula="EV(V) = tr[(WᵀKW)⁺ WᵀK H KW] / Σ_{d≤D_v} Nλ_d,  W = G⁻¹V",
    citation=f"{PAPER}, theorem 1; disputed by {REPRODUCTION}",
    predicted=1.0,
    role=Role.PRIMARY,
    percent=True,
)
OVERLAP = _claim(
    statistic="subspace overlap",
    statement="the axes of the head's values span the principal subspace",
    formula="mean cos² of the principal angles between span{u_d(V)} and the principal axes",
    citation=f"{PAPER}, theorem 1",
    predicted=1.0,
)
MEAN = _claim(
    statistic="mean of g v",
    statement="values weighted by g sum to zero, as eigenvectors of the centred Gram matrix do",
    formula="mean_d |Σ_j g(k_j) v_dj| / Σ_j |g(k_j) v_dj|",
    citation=f"{PAPER}, theorem 1 (a necessary condition)",
    predicted=0.0,
    note="if g of one token exceeds all others, any values give 1",
)
ORTHOGONAL = _claim(
    statistic="axes not orthogonal",
    statement="the axes of the head's values are orthogonal: VᵀKV is diagonal",
    formula="mean over d ≠ d' of cos²(u_d, u_d'),  UᵀU = VᵀKV",
    citation=f"{PAPER}, theorem 1 (a necessary condition, up to the output projection)",
    predicted=0.0,
    note="a mix of the values, which the output projection could undo, changes it",
)
RESIDUAL = _claim(
    statistic="eigenvector residual",
    statement="values weighted by g are eigenvectors of the centred Gram matrix",
    formula="mean_d ‖K̃b − ρb‖ / (Nλ_1 − Nλ_Dv),  b = H G⁻¹v_d / ‖H G⁻¹v_d‖,  ρ = bᵀK̃b",
    citation=f"{PAPER}, equation for a_d; normalised by the range of the spectrum",
    predicted=0.0,
    note="small for any values on tokens without variance",
)
LINEAR_CKA = _claim(
    statistic="linear CKA, unbiased",
    statement="values are similar to the theorem's, up to rotation and scale",
    formula="HSIC_u(VVᵀ, V̂V̂ᵀ) / √(HSIC_u(VVᵀ, VVᵀ) HSIC_u(V̂V̂ᵀ, V̂V̂ᵀ))",
    citation=f"after {REPRODUCTION}, with the unbiased estimate of Song et al. 2012",
    predicted=1.0,
    undefined=NO_UNBIASED,
)
KERNEL_CKA = _claim(
    statistic="kernel CKA, unbiased",
    statement="values are similar to the theorem's, by a Gaussian kernel",
    formula="as linear CKA, with exp(−‖v_i − v_j‖² / 2σ²), σ² the median of ‖v_i − v_j‖² > 0",
    citation=f"after {REPRODUCTION}, with the unbiased estimate of Song et al. 2012",
    predicted=1.0,
    undefined=NO_UNBIASED,
)
MATCHED = _claim(
    statistic="matched cosine",
    statement="each column of the theorem's values is a column of the head's, up to order and sign",
    formula="max over assignments of mean_d |cos(v̂_d, v_π(d))|",
    citation=f"{PAPER}, theorem 1; columns matched, where {REPRODUCTION} matches tokens",
    predicted=1.0,
    note="a mix of the values, which the output projection could undo, changes it",
)
LOCALISATION = _claim(
    statistic="tokens per value column",
    statement="values are concentrated on as few tokens as the theorem's",
    formula="mean_d (Σ_j v_dj²)² / Σ_j v_dj⁴; predicted: the same of the theorem's values",
    citation=f"follows from theorem 1 of {PAPER}: axes of confident heads are concentrated on single tokens",
    size=0.0,
)
EXPLAINED = _claim(
    statistic="explained fraction",
    statement="the axes of the head's values explain the queries as well as the principal axes do",
    formula="1 − J_true / mean_i ‖φ(q_i)‖²; predicted: the same of the theorem's values",
    citation=f"{PAPER}, section 2.3, with the residual that holds for any values",
    percent=True,
)
TRUE_LOSS = _claim(
    statistic="true loss, log10",
    statement="the part of the queries outside the head's axes is as small as for the theorem's values",
    formula="log10 mean_i [‖φ(q_i)‖² − h_iᵀ(VᵀKV)⁺h_i]",
    citation=f"{PAPER}, section 2.3, with the residual that holds for any values",
    predicted=None,
)
LOSS = _claim(
    statistic="projection loss",
    statement="the loss of projecting queries on the head's axes",
    formula="J = mean_i [‖φ(q_i)‖² − ‖h_i‖²]",
    citation=f"{PAPER}, figure 1",
    role=Role.PUBLISHED,
    note="a loss only if the axes are orthonormal; larger values make it smaller without any principal axis",
    undefined="the lengths of queries overflow",
)
LOSS_QUERY = _claim(
    statistic="‖φ(q)‖², log10",
    statement="the first term of the projection loss, which does not depend on the values",
    formula="log10 mean_i exp(s‖q_i‖² − 2 log Σ_j exp(s q_i·k_j))",
    citation=f"{PAPER}, figure 1; {REPRODUCTION}, table of norms",
    role=Role.PUBLISHED,
    note="the same for random values",
)
LOSS_OUTPUT = _claim(
    statistic="‖h‖², log10",
    statement="the second term of the projection loss: at most the first, if the axes are orthonormal",
    formula="log10 mean_i ‖h_i‖²",
    citation=f"{PAPER}, figure 1; {REPRODUCTION}, table of norms",
    role=Role.PUBLISHED,
    note="scales with the values",
)
_gamma = partial(
    _claim,
    statement="K̃â / Nâ is the same for all tokens, as for an eigenvector",
    citation=f"{PAPER}, figures 2 and 5",
    predicted=0.0,
    role=Role.PUBLISHED,
    note="small for any values, because K̃/N is small; ill-posed where â is near zero",
    undefined=DIVISION,
)
_relative_gamma = partial(
    _gamma,
    statement="K̃â / Nâ is the same for all tokens, relative to its mean",
    citation=f"{PAPER}, figures 2 and 5, relative to the eigenvalue",
    note="small for any values where the spectrum is flat",
)
GAMMA = _gamma(
    statistic="gamma difference",
    formula="mean over d and i<j of |γ_di − γ_dj|,  γ_d = K̃â_d / (N â_d),  â_d = H G⁻¹v_d",
)
GAMMA_DEVIATION = _gamma(
    statistic="gamma deviation",
    formula="mean over d of the standard deviation over i<j of |γ_di − γ_dj|",
)
GAMMA_RELATIVE = _relative_gamma(
    statistic="gamma difference, relative",
    formula="mean over d of mean_{i<j} |γ_di − γ_dj| / |mean_i γ_di|",
)
GAMMA_RELATIVE_DEVIATION = _relative_gamma(
    statistic="gamma deviation, relative",
    formula="mean over d of the standard deviation over i<j of |γ_di − γ_dj|, over |mean_i γ_di|",
)
TOKEN_COSINE = _claim(
    statistic="token-assignment cosine",
    statement="rows of the head's values have the directions of the theorem's rows, in the best assignment of tokens",
    formula="max over assignments of tokens of mean_i cos(v_i, v̂_π(i))",
    citation=f"{REPRODUCTION}, optimal cosine",
    predicted=1.0,
    role=Role.PUBLISHED,
    note="tokens are not exchangeable and columns are; the theorem's own values with signs flipped fail it",
)
PUBLISHED_LINEAR_CKA = _claim(
    statistic="linear CKA",
    statement="values are similar to the theorem's, up to rotation and scale",
    formula="HSIC(VVᵀ, V̂V̂ᵀ) / √(HSIC(VVᵀ, VVᵀ) HSIC(V̂V̂ᵀ, V̂V̂ᵀ)), biased estimate",
    citation=f"{REPRODUCTION}, linear CKA",
    predicted=1.0,
    role=Role.PUBLISHED,
    note="biased upward if there are as many columns as tokens",
)
PUBLISHED_KERNEL_CKA = _claim(
    statistic="RBF CKA",
    statement="values are similar to the theorem's, by a Gaussian kernel",
    formula="as linear CKA, with exp(−‖v_i − v_j‖² / 2σ²), σ² the median of ‖v_i − v_j‖² > 0; biased estimate",
    citation=f"{REPRODUCTION}, kernel CKA",
    predicted=1.0,
    role=Role.PUBLISHED,
    note="biased upward if there are as many columns as tokens",
)


def _eigenvalues(suffix: str, formula: str, note: str, undefined: str) -> dict[str, Claim]:
    return {
        name: _claim(
            statistic=f"{name} eigenvalue{suffix}",
            statement="the spectrum of the centred Gram matrix, its first D_v eigenvalues",
            formula=formula,
            citation=f"{PAPER}, figure 2 (648.46, 40.07, 17.73 and 4.65 are printed for max, mean, median and min)",
            role=Role.PUBLISHED,
            note=note,
            undefined=undefined,
        )
        for name in ("max", "mean", "median", "min")
    }


EIGENVALUES = _eigenvalues(
    "",
    "Nλ_d of K̃ a_d = Nλ_d a_d, d ≤ D_v",
    "values do not enter, so random values give the same; their sum is at most Σ_j exp(−s‖k_j‖²) ≤ N",
    "keys or values without variance",
)
STANDARDISED_EIGENVALUES = _eigenvalues(
    ", standardised",
    "Nλ_d, d ≤ D_v, of keys (k − mean) / deviation over each token's features",
    "values do not enter, so random values give the same; the model does not standardise its keys",
    "a key whose features are all equal cannot be standardised",
)

CLAIMS = (
    CAPTURED, OVERLAP, EXPLAINED, TRUE_LOSS, MEAN, ORTHOGONAL, RESIDUAL, LINEAR_CKA, KERNEL_CKA, MATCHED, LOCALISATION,
    LOSS, LOSS_QUERY, LOSS_OUTPUT, GAMMA, GAMMA_DEVIATION, GAMMA_RELATIVE, GAMMA_RELATIVE_DEVIATION, TOKEN_COSINE,
    PUBLISHED_LINEAR_CKA, PUBLISHED_KERNEL_CKA, *EIGENVALUES.values(), *STANDARDISED_EIGENVALUES.values(),
)  # fmt: skip
