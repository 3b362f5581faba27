"""Attention as a support vector machine that selects tokens (Tarzanagh et al. 2023, arXiv 2308.16898, 2306.13596).

Gradient descent on W leads to the matrix of least norm that selects some tokens with a margin: in the Frobenius norm
where W itself is trained, in the nuclear norm where its factors are. `attention_svm` solves for it, and
`multi_token_svm` where several tokens are selected at once.
"""

from clearhead.theories.max_margin.claims import CLAIMS
from clearhead.theories.max_margin.on_heads.measurement import MaxMarginClaims
from clearhead.theories.max_margin.svm.multi_token import MultiToken, multi_token_svm
from clearhead.theories.max_margin.svm.solution import Conflict, MarginWarning, MaxMargin, Norm, Status
from clearhead.theories.max_margin.svm.solving import attention_svm
from clearhead.theories.max_margin.theorems import theorems
from clearhead.theories.theory import Theory

__all__ = [
    "CLAIMS",
    "THEORY",
    "Conflict",
    "MarginWarning",
    "MaxMargin",
    "MaxMarginClaims",
    "MultiToken",
    "Norm",
    "Status",
    "attention_svm",
    "multi_token_svm",
    "theorems",
]

THEORY = Theory(name="max-margin", title="max margin", begin=MaxMarginClaims, theorems=theorems)
