r"""Kernel PCA measured on one example, and the distance of its scores from a kernel.

If a mask shows queries different keys (causal masks), the keys of the query with the most visible keys are used: the
theorem holds only for the queries that see all of them.

The theorem assumes the kernel exp(s x.y). Self-attention with a bias b or a soft cap has E_ij = exp(cap(s k_i.k_j) +
b_ij) on its keys. This is a kernel of tokens and positions if it is symmetric and positive semi-definite. The statistic
is the distance from the nearest such matrix, after scaling E to ones on the diagonal, which does not change these
properties:

    |E - E+| / |E|,   E+ the nearest symmetric positive semi-definite matrix.

|E - E+|^2 is the squared norm of the antisymmetric part plus the squared negative eigenvalues of the symmetric part
(Higham 1988).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float, all_finite
from clearhead.theories.example import Example, Random
from clearhead.theories.kernel_pca.captured import captured_by_head
from clearhead.theories.kernel_pca.claims import CAPTURED
from clearhead.theories.kernel_pca.controls import RANDOM_MAP, Draws, RandomMaps, Values
from clearhead.theories.kernel_pca.entry import Entry, make_sample
from clearhead.theories.kernel_pca.loss import queries_in_space
from clearhead.theories.kernel_pca.space import key_space, principal_axes
from clearhead.theories.kernel_pca.spans import span_of
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import SAMPLED, measure_by_head, sample_tokens
from clearhead.theories.theory import Claim, Control, Picture, Role, Sample, Samples

KERNEL = Claim(
    theory="kernel PCA",
    statistic="distance from a kernel",
    statement="scores with their bias or cap are a kernel of tokens and positions, as theorem 1 requires",
    formula="‖E − E₊‖ / ‖E‖,  E_ij = exp(cap(s k_i·k_j) + b_ij) with unit diagonal, E₊ the nearest positive kernel",
    citation="a condition of theorem 1 of Teo and Nguyen 2024 (arXiv 2406.13762)",
    predicted=0.0,
    role=Role.SECONDARY,
    note="measured only if a bias or a cap makes the other claims not applicable",
    undefined="no tokens",
)
SHUFFLED = Control(name="shuffled scores")
DRAWS = 2


def distance_from_a_kernel(log_kernel: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b"]:
    """Return |E - E+| / |E| for E given by its logarithm."""
    log_kernel = log_kernel.double()
    half = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
    scaled = log_kernel - half.unsqueeze(-1) - half.unsqueeze(-2)
    entries = (scaled - scaled.amax(dim=(-2, -1), keepdim=True)).exp()
    antisymmetric, symmetric = (entries - entries.mT) / 2, (entries + entries.mT) / 2
    negative = torch.linalg.eigvalsh(symmetric).clamp_max(0).square().sum(dim=-1)
    distance: Tensor = (antisymmetric.square().sum(dim=(-2, -1)) + negative).sqrt()
    return distance / entries.square().sum(dim=(-2, -1)).sqrt()


def measure_kernel(example: Example, rng: Random) -> Sample | Reason:
    """Measure `KERNEL` on an example whose scores have a bias or a cap."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "in cross-attention the bias is not defined for pairs of keys")
    if not bool(torch.isfinite(example.k).all()):
        return Reason(ReasonKind.NOT_FINITE, "keys are not finite")
    tokens = example.visible.any(dim=0)
    k = example.k[:, tokens].double()
    scores = example.scale * k @ k.mT
    if example.softcap is not None:
        scores = example.softcap * torch.tanh(scores / example.softcap)
    if example.bias is not None:
        scores = scores + example.bias[:, tokens][:, :, tokens]
    draws = [distance_from_a_kernel(_shuffle(scores, rng.torch)) for _ in range(DRAWS if example.controls else 0)]
    return Sample(
        value=distance_from_a_kernel(scores).cpu().numpy(),
        controls={SHUFFLED: torch.stack(draws).cpu().numpy()} if draws else {},
    )


def _shuffle(scores: Tensor, generator: torch.Generator) -> Tensor:
    """Return the scores between different tokens in another order, symmetric where they were."""
    m = scores.shape[-1]
    first, second = torch.triu_indices(m, m, offset=1, device=scores.device)
    order = torch.randperm(len(first), generator=generator).to(scores.device)
    shuffled = scores.clone()
    shuffled[..., first, second] = scores[..., first[order], second[order]]
    shuffled[..., second, first] = scores[..., second[order], first[order]]
    return shuffled


PICTURE_TOKENS, PICTURE_AXES = 256, 24

NO_DRAWS = Draws(random_values=0, random_map=0, permuted=0, other_heads=0)
BIAS = Reason(ReasonKind.NOT_COVERED, "a bias on the scores depends on positions, so they are not a kernel of the keys")
SOFTCAP = Reason(ReasonKind.NOT_COVERED, "capped scores are not an exponential kernel")
NOT_FINITE = Reason(ReasonKind.NOT_FINITE, "queries, keys or values are not finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPCA:
    """The claims of kernel PCA that are measured, and the number of draws of each control."""

    claims: Sequence[Claim]
    draws: Draws

    def claims_of(self, example: Example) -> tuple[Claim, ...]:
        """Return the claims on the example's layer; `KERNEL` only where scores have a bias or a cap."""
        return (*self.claims, KERNEL) if _changed_scores(example) else tuple(self.claims)

    def measure(self, example: Example, rng: Random) -> Samples:
        """Measure every claim on every head."""
        reason = _obstacle(example)
        samples: dict[Claim, Sample | Reason] = {}
        if reason is not None:
            samples |= dict.fromkeys(self.claims, reason)
        else:
            samples |= measure_by_head(_key_set(example), lambda heads, keys: self._measure(example, heads, keys, rng))
        if _changed_scores(example):
            samples[KERNEL] = measure_kernel(example, rng)
        return samples

    def _measure(self, example: Example, heads: slice, keys: Tensor, rng: Random) -> dict[Claim, Sample]:
        # Query heads that share keys and values share the numbers that do not depend on queries.
        step = example.groups if heads == slice(None) else 1
        visible, keys = keys, sample_tokens(keys, rng.torch)
        k, v = (x[heads][::step, keys] for x in (example.k, example.v))
        sinks = None if example.sinks is None else example.sinks[heads][::step]
        values = self._values(example, v.double(), slice(heads.start, heads.stop, step), keys, rng)
        samples = {}
        if CAPTURED in self.claims and example.wants(CAPTURED):
            by_head = captured_by_head(k, values.spanning, scale=example.scale, sinks=sinks)
            numbers = by_head.repeat_interleave(step, dim=-1)
            samples[CAPTURED] = make_sample(
                CAPTURED, numbers, values.counts, fewest_keys=self.draws.fewest_keys, shared=step
            )
        others = [claim for claim in self.claims if claim is not CAPTURED and example.wants(claim)]
        if others:
            space = key_space(k, scale=example.scale, sinks=sinks)
            q = example.q[heads].reshape(-1, step, *example.q.shape[-2:])
            entry = Entry(
                space=space,
                principal=principal_axes(space, v.shape[-1]),
                queries=queries_in_space(space, q[..., _queries(example, heads, visible), :]),
            )
            samples |= entry.samples(others, values.by_control(), fewest_keys=self.draws.fewest_keys)
        if not torch.equal(keys, visible):
            samples = {claim: dataclasses.replace(sample, caveat=SAMPLED) for claim, sample in samples.items()}
        return samples

    def _values(self, example: Example, v: Tensor, heads: slice, keys: Tensor, rng: Random) -> Values:
        """Return the values of the heads and draw those of the controls."""
        draws = self.draws if example.controls else NO_DRAWS
        linear, maps = example.values_from, None
        if linear is not None and draws.random_map:
            maps = example.per_audit.get(
                (RANDOM_MAP, example.layer),
                lambda: RandomMaps.draw(linear, draws=draws.random_map, seed=example.seed, layer=example.layer),
            ).at(linear.x[0][keys], heads)
        return Values.draw(v, draws, rng.torch, maps=maps)


def spectrum(example: Example) -> Picture | None:
    """Return the variance of the keys along their principal axes, and the part of each that the values capture.

    The parts of all axes add up to the captured variance of the example. Of a long input the first tokens are used.
    """
    if _obstacle(example) is not None:
        return None
    sets = _key_set(example)
    slices = [slice(None)] if len(sets) == 1 else [slice(head, head + 1) for head in range(len(sets))]
    pairs = [_along_axes(example, heads, keys) for heads, keys in zip(slices, sets, strict=True)]
    width = max(bars.shape[-1] for bars, _ in pairs)
    bars, part = (
        torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=torch.nan) for x in column])
        for column in zip(*pairs, strict=True)
    )
    return Picture(
        theory=CAPTURED.theory,
        title="Spectrum of the keys",
        caption="Variance of the keys along their first principal axes, as a share of what the values could capture at "
        "most. The filled part is what the values capture; the theory predicts full bars.",
        bars=bars.cpu().numpy(),
        part=part.cpu().numpy(),
    )


def _along_axes(example: Example, heads: slice, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variance along the principal axes and the part that the values capture, (heads, axes)."""
    chosen = keys.nonzero().flatten()[:PICTURE_TOKENS]
    sinks = None if example.sinks is None else example.sinks[heads]
    space = key_space(example.k[heads][:, chosen], scale=example.scale, sinks=sinks)
    v = example.v[heads][:, chosen].double()
    principal = principal_axes(space, max(PICTURE_AXES, v.shape[-1]))
    along = (span_of(space, v).mT @ principal.directions).square().sum(dim=-2)
    largest = principal.energy[..., : v.shape[-1]].sum(dim=-1, keepdim=True)
    shares = principal.energy / largest
    return shares[:, :PICTURE_AXES], (shares * along)[:, :PICTURE_AXES]


def _changed_scores(example: Example) -> bool:
    return example.bias is not None or example.softcap is not None


def _obstacle(example: Example) -> Reason | None:
    """Return why the claims on values do not apply to the example; None if they do."""
    if example.bias is not None:
        return BIAS
    if example.softcap is not None:
        return SOFTCAP
    width = example.v.shape[-1]
    if int(_key_set(example).sum(dim=-1).min()) <= width:
        return Reason(ReasonKind.TOO_SHORT, f"at most {width} tokens, whose variance any {width} axes capture")
    if not all(all_finite(x) for x in (example.q, example.k, example.v)):
        return NOT_FINITE
    return None


def _key_set(example: Example) -> Bool[Tensor, "h m"]:
    """Return the keys of the (last) query with the most visible keys; one row if all heads share it."""
    if example.mask is None:
        return example.visible
    mask = example.mask
    widest = mask.shape[1] - 1 - mask.sum(dim=-1).flip(-1).argmax(dim=-1)
    return mask[torch.arange(mask.shape[0], device=mask.device), widest]


def _queries(example: Example, heads: slice, keys: Tensor) -> Bool[Tensor, "n"]:
    """Return the queries that see exactly these keys; in self-attention those whose own token is a key, so no padding.

    If no such token is left, as in a mask that hides every token from itself, all queries that see these keys.
    """
    n, m = example.q.shape[-2], example.k.shape[-2]
    if example.mask is None:
        return torch.ones(n, dtype=torch.bool, device=example.q.device)
    mask = example.mask[heads] if example.mask.shape[0] > 1 else example.mask
    same = (mask == keys).all(dim=-1).all(dim=0).expand(n)
    own_token_seen = same & keys if n == m else same
    return own_token_seen if bool(own_token_seen.any()) else same
