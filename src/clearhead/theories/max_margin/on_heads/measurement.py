"""The claims of the theory measured on groups of inputs.

A few queries are sampled from every input, and for every query some of the tokens that it sees; the head's choice is
its choice among all visible tokens. A group of inputs makes one problem and one sample, and rules fitted on it are
tested on the previous group.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Int
from clearhead.theories.example import Example, Random
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.claims import RATIO
from clearhead.theories.max_margin.on_heads.choices import SATURATED, InputChoices, Sampling, choices_of, obstacle
from clearhead.theories.max_margin.on_heads.evidence import draw_replacements, group_samples
from clearhead.theories.max_margin.on_heads.other_norms import Matrices
from clearhead.theories.max_margin.on_heads.predictions import OTHER_NORMS, PREDICTED, KeptGroup, predict_head
from clearhead.theories.max_margin.on_heads.random_heads import Space, UntrainedHeads, space_of
from clearhead.theories.theory import Claim, Picture, Sample

MAX_KEPT = 2**23
"""Limit on the numbers of a layer's untrained heads that are kept for the audit: 32 MB. Larger heads are drawn again
for each batch."""
MAX_KEPT_BY_LARGE_BATCHES = 2**20
"""The limit for batches of at least `LARGE_BATCH` inputs, for which drawing again takes little of the time: 4 MB."""
LARGE_BATCH = 6
HEAD_SEED = 2**31
"""Separates the seed of random heads, which are the same on every input, from the seeds of the numbered inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Prepared examples of several inputs at one layer, which make one sample.

    number: of the group at this layer, from 0; before: the prepared examples of the group before, if any
    last: the example that completed the group
    """

    number: int
    prepared: Sequence[InputChoices]
    before: Sequence[InputChoices]
    last: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMarginOnHeads:
    """The claims on the heads of a layer.

    everywhere: solve in all norms and for all controls in all heads, not only in those that the theory may cover
    """

    sampling: Sampling
    everywhere: bool

    def claims_of(self, example: Example) -> tuple[Claim, ...]:
        """Return the claims on the layer: in head space if maps are missing, on gradients if there are any."""
        claims = [claim for claim in c.CLAIMS if claim is not c.LOCAL or example.out_gradient is not None]
        return tuple(claims if _maps_known(example) else (c.HEAD_SPACE_CLAIMS[claim] for claim in claims))

    def prepare(self, examples: Sequence[Example], generators: Sequence[Random]) -> list[InputChoices]:
        """Return the choices of some queries of every example; of untrained heads where controls are wanted."""
        prepared: list[InputChoices] = []
        for _, pairs in itertools.groupby(zip(examples, generators, strict=True), key=lambda pair: pair[0].controls):
            some, numbers = zip(*((example, rng.numpy) for example, rng in pairs), strict=True)
            space, sampling = _space(some[0]), self._sampling(some[0])
            untrained = self._untrained_heads(some[0], inputs=len(some))
            prepared += choices_of(some, space, numbers, sampling, untrained=untrained)
        return prepared

    def measure(self, group: Group, rng: Random) -> dict[Claim, Sample]:
        """Measure every claim on every head."""
        last = group.last
        choices, before = (
            [choice for input_choices in inputs for choice in input_choices.measured]
            for inputs in (group.prepared, group.before)
        )
        replacements = draw_replacements(choices, self.sampling.replacements, rng.numpy) if last.controls else None
        matrices = Matrices(_space(last), self._untrained_heads(last).random)
        samples = group_samples(
            choices, before, replacements, matrices, everywhere=self.everywhere, wants=lambda *x: _wants(last, *x)
        )
        in_head_space = not _maps_known(last)
        by_claim = {c.HEAD_SPACE_CLAIMS[claim] if in_head_space else claim: x for claim, x in samples.items()}
        return {claim: by_claim[claim] for claim in self.claims_of(last)}

    def keep(self, group: Group) -> KeptGroup:
        """Return what the predictions need of a group. The group itself is kept for held-out selection alone."""
        kept = KeptGroup.of(group.prepared)
        if not _wants(group.last, c.HELD_OUT):
            for choices in group.prepared:
                choices.forget()
        return kept

    def predict(
        self, groups: Sequence[KeptGroup], heads: Sequence[int], claims: Collection[Claim]
    ) -> dict[Claim, Array]:
        """Return the predicted values of these heads, (groups, heads), under the claims in both spaces."""
        in_both_spaces = {x for claim in OTHER_NORMS for x in (claim, c.HEAD_SPACE_CLAIMS[claim])}
        other_norms = not in_both_spaces.isdisjoint(claims)
        by_head = one_thread_each(
            lambda h: predict_head(groups, h, everywhere=self.everywhere, other_norms=other_norms), heads
        )
        predicted = dict(zip(PREDICTED, np.stack(by_head, axis=-1), strict=True))
        return predicted | {c.HEAD_SPACE_CLAIMS[claim]: values for claim, values in predicted.items()}

    def _untrained_heads(self, example: Example, *, inputs: int = 1) -> UntrainedHeads:
        """Return the untrained heads of the layer, drawn once in an audit unless they take much memory.

        inputs: the number of inputs that are prepared together; the heads of a group are those of its last batch
        """
        sampling, space = self._sampling(example), _space(example)

        def draw() -> UntrainedHeads:
            generator = Random(example.seed, example.layer, HEAD_SEED).torch
            return space.draw(generator, random=sampling.random, rotated=sampling.rotated)

        width = example.k.shape[-1] if example.keys_from is None else example.keys_from.x.shape[-1]
        entries = 2 * (sampling.random + sampling.rotated) * width * example.k.shape[-1]
        limit = MAX_KEPT_BY_LARGE_BATCHES if inputs >= LARGE_BATCH else MAX_KEPT
        key = ("untrained heads", example.layer, example.controls)
        return example.per_call.get(key, lambda: example.per_audit.get(key, draw) if entries <= limit else draw())

    def _sampling(self, example: Example) -> Sampling:
        if example.controls:
            return self.sampling
        return dataclasses.replace(self.sampling, random=0, rotated=0, replacements=0)


def _wants(example: Example, *claims: Claim) -> bool:
    """Return whether one of these claims is wanted, in one of the two spaces."""
    return example.wants(*claims, *(c.HEAD_SPACE_CLAIMS[claim] for claim in claims))


def _maps_known(example: Example) -> bool:
    return example.keys_from is not None and example.queries_from is not None


def _space(example: Example) -> Space:
    return example.per_call.get("space", lambda: space_of(example))


MAX_QUERIES = 48


def margins(example: Example) -> Picture | None:
    """Return by how much the score of the selected token exceeds the next one, query by query, largest first.

    The smallest of these is the margin of the head on this input, before it is divided by the norm of its matrix.
    """
    if obstacle(example) is not None:
        return None
    queries = _queries(example)
    scores = example.scale * example.q[:, queries].double() @ example.k.double().mT
    if example.mask is not None:
        scores = scores.masked_fill(~example.mask[:, queries], -torch.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    gaps = (first - second).sort(dim=-1, descending=True).values
    if not gaps.shape[-1]:
        return None
    return Picture(
        theory=RATIO.theory,
        title="Margins by query",
        caption="Score of the selected token minus the score of the next one, one bar for each query, largest first. "
        "The shortest bar is the margin on this input. Above the line one token can have 99% of the attention of two; "
        "the theory covers heads most of whose queries are there.",
        bars=gaps.cpu().numpy(),
        line=math.log(SATURATED / (1 - SATURATED)),
    )


def _queries(example: Example) -> Int[Tensor, "n"]:
    """Return the first queries that are tokens of the input and see at least two keys in every head."""
    n, m = example.q.shape[-2], example.k.shape[-2]
    usable = torch.full((n,), m > 1, device=example.q.device)
    if example.mask is not None:
        usable = usable & (example.mask.sum(dim=-1) > 1).all(dim=0)
    if n == m:
        usable = usable & example.visible.all(dim=0)
    return usable.nonzero().flatten()[:MAX_QUERIES]
