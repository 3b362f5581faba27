"""The claims of the coding rate on heads, layers and maps, and their controls."""

from functools import partial

from clearhead.theories.theory import Claim, Control, Direction, Role, Unit

PAPER = "Yu et al. 2023 (arXiv 2306.01129)"
INVESTIGATION = "Hu, Zou and Xu 2024 (arXiv 2411.17182)"
ONE_HEAD = "one head has no other to overlap with"
ZERO_MAP = "a map of zeros has no columns to compare"

NOTHING_ADDED = Control(name="nothing added")
SIZE_ALONE = Control(name="a change of size alone")
OTHER_TOKENS = Control(name="additions of other tokens")
RANDOM_SUBSPACE = Control(name="a random subspace", fixed=True)
SAME_RATE = Control(name="another subspace of the same rate", fixed=True)
UNIFORM = Control(name="uniform attention")
IDENTITY = Control(name="attention of each token to itself")
OTHER_HEAD = Control(name="attention weights of another head")
NORM_ALONE = Control(name="the norm alone")
RANDOM_MAP = Control(name="a random map", fixed=True)
BEFORE_MLP = Control(name="before the MLP")
GAUSSIAN = Control(name="Gaussian features")
AT_THIS_SIZE = Control(name="before attention, at this size")
BEFORE_ATTENTION = Control(name="before attention")
IN_RANDOM_SUBSPACES = Control(name="in random subspaces")


_claim = partial(
    Claim,
    theory="coding rate",
    predicted=None,
    role=Role.SECONDARY,
    direction=Direction.LOWER,
    size=1.0,
    undefined="nothing of the input lies in the head's subspace",
)


def _by_depth(title: str, label: str, note: str = "") -> Claim:
    """Return a quantity by layer, as papers draw it over depth."""
    return Claim(
        theory="coding rate", statistic=title, statement="", formula=label, citation=PAPER, predicted=None,
        role=Role.DEPTH, note=note, unit=Unit.LAYER,
    )  # fmt: skip


_RATE = "R(ZU_h) = ½ logdet(I + p/(Nε²) U_hᵀZᵀZU_h),  U_h an orthonormal basis of the head's value map"

COMPRESSION = _claim(
    statistic="rate change",
    statement="attention compresses the tokens in the head's subspace: their coding rate falls, "
    "independent of their size",
    formula=f"max of the relative changes of R(ZU_h) for unit-norm tokens and at matched scale;  {_RATE}",
    citation=f"{PAPER}, section 2.3; the raw rate may rise: {INVESTIGATION}",
    role=Role.PRIMARY,
    note="the less compressing of the unit-norm and the scale-matched change, input by input. A change of size alone "
    "is 0 by definition. Z⁺ is the sum of tokens and attention's output, before a norm that may follow it. Attention "
    "with other weights and the same values must compress less. The rate falls with depth in untrained models too, so "
    "several draws of the same head before training decide with the other controls. Z is the stream, and a norm "
    "between it and the value map is left out",
)
AFTER_NORM = _claim(
    statistic="rate change after the norm",
    statement="the same as the rate change, with the norm that follows the sum",
    formula="as the rate change, with Z⁺ = norm(Z + attention(Z))",
    citation=f"{PAPER}, section 2.3, read for models that normalise after the sum",
    note="only in models that normalise after the sum. The trained gain of the norm lowers the rate without attention, "
    "so the norm alone, norm(Z), is a control",
)
UNIT_NORM = _claim(
    statistic="unit-norm change",
    statement="the coding rate of tokens of length one falls",
    formula="[R(Ẑ⁺U_h) − R(ẐU_h)] / R(ẐU_h),  ẑ = z/‖z‖ in the whole space",
    citation=f"{PAPER}, section 2.3, for tokens of length one",
    note="with ε = .5 the rate of a unit token's small part in a subspace is nearly its energy there",
)
SCALE_MATCHED = _claim(
    statistic="scale-matched change",
    statement="the coding rate falls after the tokens are scaled back to their former size",
    formula="[R(sZ⁺U_h) − R(ZU_h)] / R(ZU_h),  s = ‖Z‖_F/‖Z⁺‖_F",
    citation=f"{PAPER}, section 2.3, at the same Frobenius norm",
    note="a single token that grows a lot shrinks all others",
)
RAW = _claim(
    statistic="raw change",
    statement="the coding rate of the unscaled tokens falls",
    formula="[R(Z⁺U_h) − R(ZU_h)] / R(ZU_h)",
    citation=f"{PAPER}, section 2.3; a sum Z + attention(Z) raises it: {INVESTIGATION}",
    note="says little by itself: scaling all tokens by .9 lowers it as attention would. A change of size alone has "
    "the model's factor ‖Z⁺‖_F/‖Z‖_F",
)
ORTHONORMAL = _claim(
    statistic="map not orthonormal",
    statement="the head's map is a multiple of one with orthonormal columns",
    formula="‖p WᵀW/‖W‖² − I‖_F / √p",
    citation=f"{PAPER}, section 2.2 (an assumption)",
    predicted=0.0,
    direction=None,
    note="from the weights alone, the same on every input; other claims use an orthonormal basis of the map",
    undefined=ZERO_MAP,
)
OVERLAP = _claim(
    statistic="overlap of subspaces",
    statement="the subspaces of a layer's heads are incoherent",
    formula="mean over j ≠ h of ‖U_hᵀU_j‖_F²/p",
    citation=f"{PAPER}, section 2.2 (an assumption)",
    predicted=0.0,
    direction=None,
    note="from the weights alone; heads that share values count once. p/c for random subspaces",
    undefined=ONE_HEAD,
)
LARGEST_COSINE = _claim(
    statistic="largest cosine of subspaces",
    statement="no direction of the head's subspace is close to another head's subspace",
    formula="max over j ≠ h of σ_max(U_hᵀU_j)",
    citation=f"{PAPER}, section 2.2 (an assumption)",
    predicted=0.0,
    direction=None,
    note="from the weights alone",
    undefined=ONE_HEAD,
)
DENSITY = _claim(
    statistic="density after the MLP",
    statement="the MLP makes the tokens sparse",
    formula="mean over tokens of (‖z‖_1/‖z‖_2)²/c: 1/c for one-hot features, 2/π for Gaussian ones, "
    "1 for equal magnitudes",
    citation=f"{PAPER}, section 2.4, for features without exact zeros",
    note="depends on the coordinates: a rotation of the features changes it",
    unit=Unit.LAYER,
    percent=True,
)
NONZERO = _claim(
    statistic="non-zero entries after the MLP",
    statement="the MLP sets entries of the tokens to zero",
    formula="‖Z‖_0/(cN)",
    citation=f"{PAPER}, section 2.4 and figure on sparsity by layer",
    note="most transformers have no exact zeros, before or after. In CRATE it falls with depth before training too",
    unit=Unit.LAYER,
    percent=True,
)
RAW_MAP = _claim(
    statistic="rate change by the map itself",
    statement="the same as the rate change, with the learned subspaces as they are",
    formula="as the rate change, with the head's map W_h in place of its orthonormal basis U_h",
    citation=f"{PAPER}, section 2.3, with the map that the model learned",
    note="only if queries, keys and values share one map, as in CRATE",
)
UNSCALED_MAP = _claim(
    statistic="map not orthonormal, unscaled",
    statement="the learned subspaces have orthonormal columns",
    formula="‖WᵀW − I‖_F / √p",
    citation=f"{PAPER}, section 2.2 (an assumption)",
    predicted=0.0,
    direction=None,
    note="only if queries, keys and values share one map, as in CRATE; from the weights alone",
    undefined=ZERO_MAP,
)

HEAD_CLAIMS = (COMPRESSION, UNIT_NORM, SCALE_MATCHED, RAW)
MAP_CLAIMS = (ORTHONORMAL, OVERLAP, LARGEST_COSINE)
LAYER_CLAIMS = (DENSITY, NONZERO)
TIED_CLAIMS = (RAW_MAP, UNSCALED_MAP)
NORM_CLAIMS = (AFTER_NORM,)

RAW_RATE = _by_depth(
    "Coding rate after attention",
    "Rᶜ, nats",
    "the sum over heads of R(ZU_h) after the attention of each layer. It grows and shrinks with the tokens",
)
UNIT_RATE = _by_depth("Coding rate after attention, unit tokens", "Rᶜ, nats", "the same with every token at length one")
DENSITY_BY_LAYER = _by_depth(
    "Density after the MLP", "(|z|₁/|z|₂)²/c", "1/c for one-hot features, 1 for equal magnitudes"
)
NONZERO_BY_LAYER = _by_depth("Non-zero entries after the MLP", "share of entries")
DEPTH_CLAIMS = (RAW_RATE, UNIT_RATE, DENSITY_BY_LAYER, NONZERO_BY_LAYER)
