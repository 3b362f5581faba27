"""The mark of each verdict and the rule that leads to it, the same in the terminal and on the page."""

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import SMALL, SUPPORT

MARKS = {
    Verdict.SUPPORTED: "*",
    Verdict.PARTLY_SUPPORTED: "+",
    Verdict.NO_EVIDENCE: "~",
    Verdict.CONTRADICTED: "!",
    Verdict.NOT_APPLICABLE: "",
    Verdict.UNDECIDED: "?",
    Verdict.TRUE_BY_CONSTRUCTION: "=",
    Verdict.NOT_JUDGED: "",
}
"""One character next to a head's number, so that no verdict is shown by colour alone."""

_ADJUSTED = (
    "The p-value for lying beyond every control, adjusted over the heads of this claim (Benjamini and Hochberg), is "
)
_SIGNIFICANT = _ADJUSTED + "at most 5%"

RULES = {
    Verdict.SUPPORTED: f"{_SIGNIFICANT}, the value lies on the theory's side of the controls, and the whole 95% "
    f"interval of the agreement is at least {SUPPORT} (and at most {2 - SUPPORT} where a value can exceed the "
    "prediction). A claim that predicts only a direction needs no more than the right side.",
    Verdict.PARTLY_SUPPORTED: f"{_SIGNIFICANT} and the value lies on the theory's side of the controls, but the 95% "
    f"interval of the agreement reaches below {SUPPORT} (or above {2 - SUPPORT} where a value can exceed the "
    "prediction).",
    Verdict.NO_EVIDENCE: f"{_ADJUSTED}above 5%: the head cannot be distinguished from at least one control. Or the "
    "predicted value itself lies among the controls. Four kinds: equal to a control, if arithmetic resolves no "
    "difference on any input; equivalent to the controls, if a head that follows "
    f"the theory by half would have been detected (a difference of {SMALL} where only a direction is predicted); "
    "between controls, if it lies significantly above one and below another; too little power otherwise.",
    Verdict.CONTRADICTED: f"{_SIGNIFICANT}, but the value lies on the side of the controls away from the theory.",
    Verdict.NOT_APPLICABLE: "The theory makes no statement about this head, or the statistic could not be measured: "
    "no input was usable, or a value is not finite.",
    Verdict.UNDECIDED: "There is a value but no test: it needs two inputs, a spread, and a baseline where the theory "
    "is judged by the model before training.",
    Verdict.TRUE_BY_CONSTRUCTION: "The statement holds for every head because of how it is computed, so it is not "
    "tested.",
    Verdict.NOT_JUDGED: "A statistic as published. It is shown with its value for random values and not tested.",
}
"""The rule of `clearhead.audit.judging.judge` that leads to each verdict, in words."""
