"""A named operator: a file holds its name and its settings, so that a swap with it can be saved."""

from dataclasses import dataclass

import clearhead as ch


@dataclass(frozen=True, kw_only=True)
class Sharper(ch.NamedOperator):
    """Softmax attention with all scores times a factor: o_i is the mean of v_j by softmax(factor s q_i·k_j)."""

    name = "sharper"  # without a type, or it would be a setting
    factor: float = 2.0

    def __post_init__(self):
        """Check the settings, which may come from a file."""
        if not isinstance(self.factor, int | float) or not 0 < self.factor < 100:
            raise ch.InputError(f"expected a factor between 0 and 100; got {self.factor!r}")

    def __call__(self, q, k, v, *, mask=None, scale=None):
        """Return the output, (..., n, e)."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return ch.operators.softmax_attention(q, k, v, mask=mask, scale=self.factor * scale)
