"""A theory: tokens attend to themselves more than to other tokens."""

import numpy as np
import torch

import clearhead as ch

OTHERS = ch.Control(name="the tokens in another order")
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
    """Return the value of the claim by head, and the draws of its control by draw and head."""
    weights, tokens = example.attention_weights(), example.tokens  # tokens: without padding
    orders = [tokens[torch.randperm(len(tokens), generator=rng.torch)] for _ in range(20)]
    own, *others = (weights[:, tokens, order].mean(dim=-1).cpu().numpy() for order in (tokens, *orders))
    return {OWN: ch.Sample(value=own, controls={OTHERS: np.stack(others)})}


THEORY = ch.Theory(key="own-token", title="own token", claims=(OWN,), measure=measure, applies=applies)
