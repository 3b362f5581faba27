"""The claims of kernel PCA on a head: the primary one, its consequences, and published statistics."""

from clearhead.theories.theory import Claim, Role

PAPER = "Teo and Nguyen 2024 (arXiv 2406.13762)"
REPRODUCTION = "Saritas and Yildiz 2025 (arXiv 2505.07908)"
NO_UNBIASED = "keys or values without variance, or theorem's values on too few tokens for an unbiased similarity"
DIVISION = "the published formula divides by zero"


def _claim(
    statistic: str,
    statement: str,
    formula: str,
    where: str,
    predicted: float | None,
    role: Role = Role.SECONDARY,
    note: str = "",
    *,
    percent: bool = False,
    size: float = 1.0,
    undefined: str = "keys or values without variance",
) -> Claim:
    return Claim(
        theory="kernel PCA", statistic=statistic, statement=statement, formula=formula, citation=where,
        predicted=predicted, role=role, note=note, percent=percent, size=size, undefined=undefined,
    )  # fmt: skip


CAPTURED = _claim(
    "captured variance",
    "the head's values span the principal axes of its keys in feature space",
    "EV(V) = tr[(WᵀKW)⁺ WᵀK H KW] / Σ_{d≤D_v} Nλ_d,  W = G⁻¹V",
    f"{PAPER}, theorem 1; disputed by {REPRODUCTION}",
    1.0,
    Role.PRIMARY,
    percent=True,
)
OVERLAP = _claim(
    "subspace overlap",
    "the axes of the head's values span the principal subspace",
    "mean cos² of the principal angles between span{u_d(V)} and the principal axes",
    f"{PAPER}, theorem 1",
    1.0,
)
MEAN = _claim(
    "mean of g v",
    "values weighted by g sum to zero, as eigenvectors of the centred Gram matrix do",
    "mean_d |Σ_j g(k_j) v_dj| / Σ_j |g(k_j) v_dj|",
    f"{PAPER}, theorem 1 (a necessary condition)",
    0.0,
    note="if g of one token exceeds all others, any values give 1",
)
ORTHOGONAL = _claim(
    "axes not orthogonal",
    "the axes of the head's values are orthogonal: VᵀKV is diagonal",
    "mean over d ≠ d' of cos²(u_d, u_d'),  UᵀU = VᵀKV",
    f"{PAPER}, theorem 1 (a necessary condition, up to the output projection)",
    0.0,
    note="a mix of the values, which the output projection could undo, changes it",
)
RESIDUAL = _claim(
    "eigenvector residual",
    "values weighted by g are eigenvectors of the centred Gram matrix",
    "mean_d ‖K̃b − ρb‖ / (Nλ_1 − Nλ_Dv),  b = H G⁻¹v_d / ‖H G⁻¹v_d‖,  ρ = bᵀK̃b",
    f"{PAPER}, equation for a_d; normalised by the range of the spectrum",
    0.0,
    note="small for any values on tokens without variance",
)
LINEAR_CKA = _claim(
    "linear CKA, unbiased",
    "values are similar to the theorem's, up to rotation and scale",
    "HSIC_u(VVᵀ, V̂V̂ᵀ) / √(HSIC_u(VVᵀ, VVᵀ) HSIC_u(V̂V̂ᵀ, V̂V̂ᵀ))",
    f"after {REPRODUCTION}, with the unbiased estimate of Song et al. 2012",
    1.0,
    undefined=NO_UNBIASED,
)
KERNEL_CKA = _claim(
    "kernel CKA, unbiased",
    "values are similar to the theorem's, by a Gaussian kernel",
    "as linear CKA, with exp(−‖v_i − v_j‖² / 2σ²), σ² the median of ‖v_i − v_j‖² > 0",
    f"after {REPRODUCTION}, with the unbiased estimate of Song et al. 2012",
    1.0,
    undefined=NO_UNBIASED,
)
MATCHED = _claim(
    "matched cosine",
    "each column of the theorem's values is a column of the head's, up to order and sign",
    "max over assignments of mean_d |cos(v̂_d, v_π(d))|",
    f"{PAPER}, theorem 1; columns matched, where {REPRODUCTION} matches tokens",
    1.0,
    note="a mix of the values, which the output projection could undo, changes it",
)
LOCALISATION = _claim(
    "tokens per value column",
    "values are concentrated on as few tokens as the theorem's",
    "mean_d (Σ_j v_dj²)² / Σ_j v_dj⁴; predicted: the same of the theorem's values",
    f"follows from theorem 1 of {PAPER}: axes of confident heads are concentrated on single tokens",
    None,
    size=0.0,
)
EXPLAINED = _claim(
    "explained fraction",
    "the axes of the head's values explain the queries as well as the principal axes do",
    "1 − J_true / mean_i ‖φ(q_i)‖²; predicted: the same of the theorem's values",
    f"{PAPER}, section 2.3, with the residual that holds for any values",
    None,
    percent=True,
)
TRUE_LOSS = _claim(
    "true loss, log10",
    "the part of the queries outside the head's axes is as small as for the theorem's values",
    "log10 mean_i [‖φ(q_i)‖² − h_iᵀ(VᵀKV)⁺h_i]",
    f"{PAPER}, section 2.3, with the residual that holds for any values",
    None,
)
LOSS = _claim(
    "projection loss",
    "the loss of projecting queries on the head's axes",
    "J = mean_i [‖φ(q_i)‖² − ‖h_i‖²]",
    f"{PAPER}, figure 1",
    None,
    Role.PUBLISHED,
    "a loss only if the axes are orthonormal; larger values make it smaller without any principal axis",
    undefined="the lengths of queries overflow",
)
LOSS_QUERY = _claim(
    "‖φ(q)‖², log10",
    "the first term of the projection loss, which does not depend on the values",
    "log10 mean_i exp(s‖q_i‖² − 2 log Σ_j exp(s q_i·k_j))",
    f"{PAPER}, figure 1; {REPRODUCTION}, table of norms",
    None,
    Role.PUBLISHED,
    "the same for random values",
)
LOSS_OUTPUT = _claim(
    "‖h‖², log10",
    "the second term of the projection loss: at most the first, if the axes are orthonormal",
    "log10 mean_i ‖h_i‖²",
    f"{PAPER}, figure 1; {REPRODUCTION}, table of norms",
    None,
    Role.PUBLISHED,
    "scales with the values",
)
GAMMA = _claim(
    "gamma difference",
    "K̃â / Nâ is the same for all tokens, as for an eigenvector",
    "mean over d and i<j of |γ_di − γ_dj|,  γ_d = K̃â_d / (N â_d),  â_d = H G⁻¹v_d",
    f"{PAPER}, figures 2 and 5",
    0.0,
    Role.PUBLISHED,
    "small for any values, because K̃/N is small; ill-posed where â is near zero",
    undefined=DIVISION,
)
GAMMA_DEVIATION = _claim(
    "gamma deviation",
    "K̃â / Nâ is the same for all tokens, as for an eigenvector",
    "mean over d of the standard deviation over i<j of |γ_di − γ_dj|",
    f"{PAPER}, figures 2 and 5",
    0.0,
    Role.PUBLISHED,
    "small for any values, because K̃/N is small; ill-posed where â is near zero",
    undefined=DIVISION,
)
GAMMA_RELATIVE = _claim(
    "gamma difference, relative",
    "K̃â / Nâ is the same for all tokens, relative to its mean",
    "mean over d of mean_{i<j} |γ_di − γ_dj| / |mean_i γ_di|",
    f"{PAPER}, figures 2 and 5, relative to the eigenvalue",
    0.0,
    Role.PUBLISHED,
    "small for any values where the spectrum is flat",
    undefined=DIVISION,
)
GAMMA_RELATIVE_DEVIATION = _claim(
    "gamma deviation, relative",
    "K̃â / Nâ is the same for all tokens, relative to its mean",
    "mean over d of the standard deviation over i<j of |γ_di − γ_dj|, over |mean_i γ_di|",
    f"{PAPER}, figures 2 and 5, relative to the eigenvalue",
    0.0,
    Role.PUBLISHED,
    "small for any values where the spectrum is flat",
    undefined=DIVISION,
)
TOKEN_COSINE = _claim(
    "token-assignment cosine",
    "rows of the head's values have the directions of the theorem's rows, in the best assignment of tokens",
    "max over assignments of tokens of mean_i cos(v_i, v̂_π(i))",
    f"{REPRODUCTION}, optimal cosine",
    1.0,
    Role.PUBLISHED,
    "tokens are not exchangeable and columns are; the theorem's own values with signs flipped fail it",
)
PUBLISHED_LINEAR_CKA = _claim(
    "linear CKA",
    "values are similar to the theorem's, up to rotation and scale",
    "HSIC(VVᵀ, V̂V̂ᵀ) / √(HSIC(VVᵀ, VVᵀ) HSIC(V̂V̂ᵀ, V̂V̂ᵀ)), biased estimate",
    f"{REPRODUCTION}, linear CKA",
    1.0,
    Role.PUBLISHED,
    "biased upward if there are as many columns as tokens",
)
PUBLISHED_KERNEL_CKA = _claim(
    "RBF CKA",
    "values are similar to the theorem's, by a Gaussian kernel",
    "as linear CKA, with exp(−‖v_i − v_j‖² / 2σ²), σ² the median of ‖v_i − v_j‖² > 0; biased estimate",
    f"{REPRODUCTION}, kernel CKA",
    1.0,
    Role.PUBLISHED,
    "biased upward if there are as many columns as tokens",
)


def _eigenvalues(suffix: str, formula: str, note: str, undefined: str) -> dict[str, Claim]:
    return {
        name: _claim(
            f"{name} eigenvalue{suffix}",
            "the spectrum of the centred Gram matrix, its first D_v eigenvalues",
            formula,
            f"{PAPER}, figure 2 (648.46, 40.07, 17.73 and 4.65 are printed for max, mean, median and min)",
            None,
            Role.PUBLISHED,
            note,
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
