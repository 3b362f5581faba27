"""The theory on a planted head, on random heads, and with padding. `pytest` runs it in the folder of the package."""

import dataclasses

import torch
from my_theory import OWN, THEORY
from torch.nn import functional

import clearhead as ch


class Planted(torch.nn.Module):
    """Attention in three heads: in head 0, queries are keys times eight."""

    def forward(self, x):
        """x: (b, n, 24)."""
        q, k, v = x.roll(7, -1), x, x.roll(3, -1)
        q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in (q, k, v))
        q = torch.cat([8 * k[:, :1], q[:, 1:]], dim=1)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_a_planted_head_is_supported_and_random_heads_are_not():
    """Head 0 attends to the own token."""
    batches = torch.randn(6, 4, 17, 24, generator=torch.Generator().manual_seed(0))
    verdicts = [finding.verdict for finding in ch.audit(Planted(), batches, theories=[THEORY])["own-token"]]
    assert verdicts == [ch.Verdict.SUPPORTED, ch.Verdict.NO_EVIDENCE, ch.Verdict.NO_EVIDENCE]


def test_padding_changes_nothing():
    """Six tokens alone, and with padding after them."""
    q, k, v = torch.randn(3, 3, 11, 8, generator=torch.Generator().manual_seed(0))
    padded = ch.Example(layer=0, name="a", number=1, seed=0, q=q, k=k, v=v, out=v, scale=1.0)
    padded = dataclasses.replace(padded, mask=(torch.arange(11) < 6).expand(1, 11, 11))
    alone = {name: getattr(padded, name)[:, :6] for name in ("q", "k", "v", "out")}
    alone = dataclasses.replace(padded, **alone, mask=None)
    first, second = (THEORY.measure(example, ch.Random(1))[OWN] for example in (alone, padded))
    torch.testing.assert_close(first.value, second.value)
    torch.testing.assert_close(first.controls, second.controls)
