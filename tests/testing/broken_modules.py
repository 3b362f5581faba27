"""Attention modules with one flaw each, and a correct one."""

import math

import torch
from torch import Tensor, nn


class Right(nn.Module):
    """Correct attention of one head; subclasses override a step with a flaw."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(11, 11) for _ in range(4))

    def forward(self, x: Tensor, key_mask: Tensor | None = None, causal: bool = False) -> Tensor:
        seen = self.visible(x, key_mask, causal)
        return self.out(self.mixed(self.weights(self.scores(x).masked_fill(~seen, -torch.inf)), self.values(x)))

    def visible(self, x: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor:
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        seen = seen.tril() if causal else seen
        return seen if key_mask is None else seen & key_mask[:, None]

    def scores(self, x: Tensor) -> Tensor:
        return self.query(x) @ self.key(x).mT / math.sqrt(11)

    def weights(self, scores: Tensor) -> Tensor:
        nowhere = (scores == -torch.inf).all(dim=-1, keepdim=True)
        return scores.masked_fill(nowhere, 0).softmax(dim=-1).masked_fill(nowhere, 0)

    def values(self, x: Tensor) -> Tensor:
        return self.value(x)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        return weights.to(values.dtype) @ values


class MaskIgnored(Right):
    def visible(self, x, key_mask, causal):
        return super().visible(x, None, causal)


class MaskInverted(Right):
    def visible(self, x, key_mask, causal):
        return super().visible(x, None if key_mask is None else ~key_mask, causal)


class NanWithoutTokens(Right):
    def weights(self, scores):
        return scores.softmax(dim=-1)


class LooksAhead(Right):
    def visible(self, x, key_mask, causal):
        seen = super().visible(x, key_mask, False)
        return seen & torch.ones_like(seen).tril(1) if causal else seen


class LeaksAHair(Right):
    def mixed(self, weights, values):
        return super().mixed(weights, values) + 1e-18 * values.mean(dim=1, keepdim=True)


class MeanOverBatch(Right):
    def values(self, x):
        return super().values(x - x.mean(dim=0))


class KeysWithoutGradient(Right):
    def scores(self, x):
        return self.query(x) @ self.key(x).detach().mT / math.sqrt(11)


class Cut(Right):
    def forward(self, x, key_mask=None, causal=False):
        return super().forward(x, key_mask, causal).detach()


class SoftmaxInSingle(Right):
    def weights(self, scores):
        return super().weights(scores.float())


class SingleOnly(Right):
    def forward(self, x, key_mask=None, causal=False):
        return super().forward(x.float(), key_mask, causal)


class ReturnsSingle(Right):
    def forward(self, x, key_mask=None, causal=False):
        out = super().forward(x, key_mask, causal)
        return out.to(torch.promote_types(out.dtype, torch.float32))


class InPlace(Right):
    def forward(self, x, key_mask=None, causal=False):
        out = super().forward(x, key_mask, causal)
        with torch.no_grad():
            x.mul_(2)
        return out


class AlwaysDropsOut(Right):
    def weights(self, scores):
        return nn.functional.dropout(super().weights(scores), 0.5, training=True)


class CountsCalls(Right):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, key_mask=None, causal=False):
        self.calls += 1
        return super().forward(x, key_mask, causal)


class HiddenState(Right):
    def __init__(self):
        super().__init__()
        self.gain = torch.full((11,), 0.7)

    def values(self, x):
        return super().values(x) * self.gain.to(x.dtype)


class Constant(Right):
    def forward(self, x, key_mask=None, causal=False):
        return 0 * super().forward(x, key_mask, causal) + self.out.bias


class LooksAtNumbers(Right):
    def values(self, x):
        return super().values(x) if x.sum() > 0 else 1 * super().values(x)


class Overflows(Right):
    def weights(self, scores):
        share = scores.exp()
        return share / share.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)


class DividesByNorm(Right):
    def values(self, x):
        return super().values(x / x.norm(dim=-1, keepdim=True))


class OneTokenLess(Right):
    def forward(self, x, key_mask=None, causal=False):
        return super().forward(x, key_mask, causal) / (x.shape[1] - 1)


class GlobalMaximum(Right):
    def values(self, x):
        return super().values(x) * (x.abs().amax() + 1).detach().log().sign()


class Views(Right):
    def values(self, x):
        return super().values(x.view(-1, x.shape[-1])).reshape(x.shape)


class NoAutocast(Right):
    def scores(self, x):
        query = self.query(x)
        with torch.autocast("cpu", enabled=False):
            return query @ nn.functional.linear(x, self.key.weight, self.key.bias).mT / math.sqrt(11)


class CopyOfItself(Right):
    def __deepcopy__(self, memory):
        return self


class Silent(Right):
    def forward(self, x, key_mask=None, causal=False):
        super().forward(x, key_mask, causal)


class Positions(Right):
    def scores(self, x):
        return super().scores(x) + torch.arange(x.shape[1], dtype=x.dtype)
