"""Attention as a support vector machine that selects tokens (Tarzanagh et al. 2023, arXiv 2308.16898, 2306.13596)."""

from clearhead.theories.max_margin.attention_svm import attention_svm
from clearhead.theories.max_margin.multi_token import MultiToken, multi_token_svm
from clearhead.theories.max_margin.solution import Conflict, MarginWarning, MaxMargin, Norm, Status

__all__ = ["Conflict", "MarginWarning", "MaxMargin", "MultiToken", "Norm", "Status", "attention_svm", "multi_token_svm"]
