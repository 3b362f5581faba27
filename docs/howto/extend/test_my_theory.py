"""The theory on a planted head, on random heads, and with padding. `pytest` runs it in the folder of the package."""

import dataclasses

import torch
from my_theory import OWN, THEORY
from torch.nn import functional

import clearhead as ch


class Attention(torch.nn.Module):
    """Attention in three heads of random maps. If planted, the queries of head 0 are its keys times eight."""

    def __init__(self, seed, planted=False):
        super().__init__()
        self.maps, self.planted = (
            torch.randn(3, 24, 24, generator=torch.Generator().manual_seed(seed)) / 24**0.5,
            planted,
        )

    def forward(self, x):
        """x: (b, n, 24)."""
        q, k, v = ((x @ each).unflatten(-1, (3, 8)).transpose(1, 2) for each in self.maps)
        if self.planted:
            q = torch.cat([8 * k[:, :1], q[:, 1:]], dim=1)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def verdicts(seed, **options):
    """Return the verdicts of the three heads."""
    batches = torch.randn(6, 4, 17, 24, generator=torch.Generator().manual_seed(seed))
    return [
        finding.verdict for finding in ch.audit(Attention(seed, **options), batches, theories=[THEORY])["own-token"]
    ]


def test_a_planted_head_is_supported():
    """Head 0 attends to the own token."""
    assert verdicts(0, planted=True)[0] is ch.Verdict.SUPPORTED


def test_few_random_heads_are_supported():
    """Of 36; with the tokens in another order as the only control, eight are."""
    found = [verdict for seed in range(12) for verdict in verdicts(seed)]
    assert found.count(ch.Verdict.SUPPORTED) <= 3


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
