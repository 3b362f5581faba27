"""The claims of the theory on a trained head, from the weakest to the strongest, and their controls."""

import dataclasses
from functools import partial

from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Control, Direction, Requirement, Role

PAPER = "Tarzanagh et al. 2023 (arXiv 2308.16898)"

RANDOM_HEAD = Control(name="a random head", fixed=True)
ROTATED_HEAD = Control(name="the head with random singular vectors", fixed=True)
OTHER_TOKENS = Control(name="random tokens")
OTHER_POSITIONS = Control(name="tokens of other sequences")
OTHER_QUERIES = Control(name="queries of other sequences")
OTHER_HEAD = Control(name="the matrix of another head")
HEBBIAN = Control(name="the Hebbian matrix")
RIDGE = Control(name="ridge regression")
MAJORITY = Control(name="the most common position")
EVERY_TOKEN = Control(name="all tokens")
ANY_TOKENS = Control(name="as many random tokens")


REQUIRED_SATURATION = 0.5
LEAST_SATURATION = REQUIRED_SATURATION / 2
"""Share of saturated queries that a group of inputs needs for its problem to be solved in a head."""
SATURATED_HEADS = Requirement(
    statistic="saturated queries",
    at_least=REQUIRED_SATURATION,
    reason=Reason(ReasonKind.NOT_COVERED, "attention is not saturated"),
)
"""The theory covers heads in which at least this share of queries is saturated."""


_claim = partial(
    Claim,
    theory="max margin",
    citation=f"{PAPER}, problem (Att-SVM)",
    predicted=None,
    role=Role.SECONDARY,
    size=1.0,
    undefined="no matrix separates these tokens, or fewer than a quarter of the queries are saturated",
    requires=SATURATED_HEADS,
)

RATIO = _claim(
    statistic="margin ratio",
    statement="the head selects its tokens with the largest margin that a matrix of its norm can have on all inputs",
    formula="ρ = [min ⟨A_it, W⟩ / ‖W‖] · ‖Wᵐᵐ‖,  A_it = (x_iα − x_it) z_iᵀ,  "
    "Wᵐᵐ the attention SVM of the head's own selection",
    role=Role.PRIMARY,
    note="one sample is a group of inputs with a few queries each; W and Wᵐᵐ are compared on sampled tokens. The "
    "predicted value is the ratio of the SVM of all groups",
)
LARGEST_RATIO = dataclasses.replace(RATIO, statistic="largest distance of two scores", role=Role.SECONDARY)
"""Not a claim of an audit: what the rounding of margin ratios is relative to, in their unit."""
SATURATION = _claim(
    statistic="saturated queries",
    statement="queries give one token nearly all of their attention, the limit that the theory covers",
    formula="share of queries with max_t softmax(X W z)_t > .99",
    predicted=1.0,
    percent=True,
    note="a condition: the other claims are judged only in heads in which most queries are saturated",
    requires=None,
)
SEPARABLE = _claim(
    statistic="separated by itself",
    statement="the head's matrix separates the tokens that it selects from all others",
    formula="share of groups with min ⟨A_it, W⟩ > 0",
    predicted=1.0,
    percent=True,
    note="true for any head and its own argmax, trained or not. Random tokens are separable too if there are fewer "
    "constraints than about four times the entries of W",
)
LOW_RATIO = _claim(
    statistic="margin ratio, 5% quantile",
    statement="nearly all of the head's margins are as large as those of the best matrix",
    formula="the same with the 5 % quantile of the margins of W and of Wᵐᵐ in place of the minimum",
)
COSINE = _claim(
    statistic="cosine, Frobenius",
    statement="the head's matrix has the direction that gradient descent on W converges to, "
    "the SVM of least Frobenius norm",
    formula="⟨W, Wᵐᵐ⟩ / ‖W‖ ‖Wᵐᵐ‖",
)
COSINE_SPAN = _claim(
    statistic="cosine in the span",
    statement="the part of the head's matrix that these scores depend on has that direction",
    formula="⟨PW, Wᵐᵐ⟩ / ‖PW‖ ‖Wᵐᵐ‖,  P the projection on the span of the A_it",
)
COSINE_NUCLEAR = _claim(
    statistic="cosine, nuclear",
    statement="the head's matrix has the direction of gradient descent on keys and queries, "
    "the SVM of least nuclear norm",
    formula="⟨W, W⋆ᵐᵐ⟩ / ‖W‖ ‖W⋆ᵐᵐ‖",
    citation=f"{PAPER}, problem (Att-SVM⋆)",
    undefined="solved for saturated heads only",
)
COSINE_MAX_ENTRY = _claim(
    statistic="cosine, max-entry",
    statement="the head's matrix has the direction that sign descent converges to, the SVM of least max-entry norm",
    formula="⟨W, W∞ᵐᵐ⟩ / ‖W‖ ‖W∞ᵐᵐ‖",
    citation=f"{PAPER}, problem (Att-SVM), in another norm",
    note="depends on the coordinates of tokens; measured only if W is small",
    undefined="solved for saturated heads with small matrices only",
)
HELD_OUT = _claim(
    statistic="held-out selection",
    statement="the SVM of one group of inputs selects the head's tokens in another group more often than "
    "other rules do",
    formula="share of queries of the previous group whose argmax_t x_tᵀ Wᵐᵐ z, of the sampled tokens, is "
    "the head's token",
    direction=Direction.HIGHER,
    note="depends on what the head selects and not on its W, so the theory predicts no number",
    percent=True,
    undefined="the first group of inputs has no previous group",
)
LOCAL = _claim(
    statistic="local optimality",
    statement="the loss falls more towards the selected token than towards the support tokens",
    formula="share of support tokens t with γ_α > γ_t,  γ_t = −⟨∂L/∂o, v_t⟩",
    citation=f"{PAPER}, locally optimal tokens",
    predicted=1.0,
    percent=True,
    note="needs the gradient of a loss at the head's output",
    undefined="no gradient was given",
)

CLAIMS = (
    RATIO, SATURATION, SEPARABLE, LOW_RATIO, COSINE, COSINE_SPAN, COSINE_NUCLEAR, COSINE_MAX_ENTRY, HELD_OUT, LOCAL,
)  # fmt: skip


def in_head_space(claim: Claim) -> Claim:
    """Return the claim for layers whose maps to keys and queries are unknown: tokens are keys, W = s I."""
    note = "the maps to keys and queries are unknown, so tokens are the head's keys, z its query, and W = s I"
    return dataclasses.replace(claim, note=f"{claim.note}; {note}" if claim.note else note)


HEAD_SPACE_CLAIMS = {claim: in_head_space(claim) for claim in CLAIMS}
