"""A theory: tokens attend to themselves more than to other tokens."""

import dataclasses

import numpy as np
import torch

import clearhead as ch

OTHERS = ch.Control(name="the tokens in another order")
# A random head prefers some tokens too, the own one among them. Its draws are the same for all inputs.
TURNED = ch.Control(name="the head with its queries turned at random", fixed=True)
OWN = ch.Claim(
    theory="own token",
    statistic="attention on the own token",
    statement="a token gets more attention from its own query than from others",
    formula="mean over i of softmax(s q_i·k_j)_i",
    citation="yours",
    predicted=None,
    direction=ch.Direction.HIGHER,
)


def applies(example):
    """Return why the theory does not cover an example, if so."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return ch.Reason(ch.ReasonKind.NOT_COVERED, "queries and keys are of different tokens")
    return None


def measure(example, rng):
    """Return the value of the claim by head, and the draws of its controls by draw and head."""
    weights, tokens = example.attention_weights(), example.tokens  # tokens: without padding

    def share(weights, order):
        return weights[:, tokens, order].mean(dim=-1).cpu().numpy()

    def turned(draw):
        normal = torch.randn(2 * [example.q.shape[-1]], generator=ch.Random(example.seed, example.layer, draw).torch)
        rotation = torch.linalg.qr(normal).Q.to(example.q)
        return dataclasses.replace(example, q=example.q @ rotation).attention_weights()

    orders = [tokens[torch.randperm(len(tokens), generator=rng.torch)] for _ in range(20)]
    controls = {
        OTHERS: np.stack([share(weights, order) for order in orders]),
        TURNED: np.stack([share(turned(draw), tokens) for draw in range(20)]),
    }
    return {OWN: ch.Sample(value=share(weights, tokens), controls=controls)}


THEORY = ch.Theory(key="own-token", title="own token", claims=(OWN,), measure=measure, applies=applies)
