"""Bugs that the tests must find in the operators and modules, each as the right text and the wrong one."""

from dataclasses import dataclass

SOFTMAX = ("tests/operators/test_softmax.py",)
GENERAL = ("tests/operators/test_general.py", "tests/operators/test_general_facts.py")
SPATIAL = ("tests/operators/test_spatial.py",)
MODULES = ("tests/modules",)


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "softmax: scale left out",
        "operators/softmax.py",
        "scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale\n    bias",
        "scale = 1.0 if scale is None else scale\n    bias",
        SOFTMAX,
    ),
    Fault(
        "softmax: scale given is ignored by the kernel",
        "operators/softmax.py",
        "attn_mask=added, scale=scale)",
        "attn_mask=added)",
        SOFTMAX,
    ),
    Fault(
        "softmax: mask dropped beside a bias",
        "operators/softmax.py",
        "bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)",
        "bias.to(q.dtype)",
        SOFTMAX,
    ),
    Fault(
        "softmax: mask inverted on the dense path",
        "operators/softmax.py",
        "scores.masked_fill(~mask, -torch.inf)",
        "scores.masked_fill(mask, -torch.inf)",
        SOFTMAX,
    ),
    Fault(
        "softmax: cap not multiplied back",
        "operators/softmax.py",
        "        scores = softcap * torch.tanh(scores / softcap)",
        "        scores = torch.tanh(scores / softcap)",
        SOFTMAX,
    ),
    Fault(
        "softmax: bias counted twice",
        "operators/softmax.py",
        "    if bias is not None:\n        scores = scores + bias\n    if mask is not None:\n        scores = scores.masked",
        "    if bias is not None:\n        scores = scores + 2 * bias\n    if mask is not None:\n        scores = scores.masked",
        SOFTMAX,
    ),
    Fault(
        "softmax: sinks left out of the sum",
        "operators/softmax.py",
        "total = torch.logaddexp(total, sinks.to(total.dtype)[:, None, None])",
        "total = total + 0 * sinks.sum()",
        SOFTMAX,
    ),
    Fault(
        "softmax: rows without keys shown to the kernel",
        "operators/softmax.py",
        "return torch.where(somewhere, attend(mask=mask | ~somewhere), 0)",
        "return attend(mask=mask | ~somewhere)",
        SOFTMAX,
    ),
    Fault(
        "softmax: half precision scores",
        "operators/softmax.py",
        "wide = torch.promote_types(q.dtype, torch.float32)",
        "wide = q.dtype",
        SOFTMAX,
    ),
    Fault(
        "softmax: sum over queries",
        "operators/softmax.py",
        "total = torch.logsumexp(scores, dim=-1, keepdim=True)",
        "total = torch.logsumexp(scores, dim=-2, keepdim=True)",
        SOFTMAX,
    ),
    Fault(
        "general: scale of the Gaussian left out",
        "operators/general.py",
        "fused=lambda q, k, mask: (q, k, scale)",
        "fused=lambda q, k, mask: (q, k, 1.0)",
        GENERAL,
    ),
    Fault(
        "general: scaled by default",
        "operators/general.py",
        "def gaussian(*, scale: float = 1.0)",
        "def gaussian(*, scale: float = 0.5)",
        GENERAL,
    ),
    Fault(
        "general: theta on the keys too",
        "operators/general.py",
        "(k if self.phi is None else self.phi(k))",
        "(k if self.phi is None else self.theta(k))",
        GENERAL,
    ),
    Fault(
        "general: dot product divided by its sum",
        "operators/general.py",
        "return ((weights / visible) @ v.to(weights.dtype)).to(v.dtype)",
        "return ((weights / weights.sum(dim=-1, keepdim=True)) @ v.to(weights.dtype)).to(v.dtype)",
        GENERAL,
    ),
    Fault(
        "general: hidden keys counted",
        "operators/general.py",
        ".sum(dim=-1, keepdim=True).clamp_min(1)",
        ".sum(dim=-1, keepdim=True).clamp_min(1) * 0 + v.shape[-2]",
        GENERAL,
    ),
    Fault(
        "general: mask dropped where divided by the count",
        "operators/general.py",
        "weights = torch.where(mask, weights, 0)",
        "weights = weights + 0",
        GENERAL,
    ),
    Fault(
        "general: bias dropped where divided by the count",
        "operators/general.py",
        "scores = scores if bias is None else scores + bias",
        "scores = scores",
        GENERAL,
    ),
    Fault(
        "general: concatenation without ReLU",
        "operators/general.py",
        "return torch.relu((q @ of_query).unsqueeze(-1) + (k @ of_key).unsqueeze(-2))",
        "return (q @ of_query).unsqueeze(-1) + (k @ of_key).unsqueeze(-2)",
        GENERAL,
    ),
    Fault(
        "general: concatenation, halves exchanged",
        "operators/general.py",
        "weight[: widths[0]].to(q.dtype), weight[widths[0] :].to(k.dtype)",
        "weight[widths[1] :].to(q.dtype), weight[: widths[1]].to(k.dtype)",
        GENERAL,
    ),
    Fault(
        "general: distance without the keys' lengths",
        "operators/general.py",
        "lengths = -k.square().sum(dim=-1, keepdim=True) / 2",
        "lengths = -k.square().sum(dim=-1, keepdim=True) * 0",
        GENERAL,
    ),
    Fault(
        "general: bandwidth not squared",
        "operators/general.py",
        "torch.cat([k, lengths], dim=-1), bandwidth**-2",
        "torch.cat([k, lengths], dim=-1), bandwidth**-1",
        GENERAL,
    ),
    Fault(
        "general: distances taken far from the origin",
        "operators/general.py",
        "q, k = q - middle, k - middle",
        "q, k = q - 0 * middle, k - 0 * middle",
        GENERAL,
    ),
    Fault(
        "general: g not applied",
        "operators/general.py",
        "v = v if value is None else value(v)",
        "v = v",
        GENERAL,
    ),
    Fault(
        "spatial: height and width exchanged",
        "operators/spatial.py",
        "return tokens.reshape(tokens.shape[0], *spatial, tokens.shape[2]).movedim(-1, axis)",
        "return tokens.reshape(tokens.shape[0], *spatial[::-1], tokens.shape[2]).movedim(-1, axis)",
        SPATIAL,
    ),
    Fault(
        "spatial: size of the keys",
        "operators/spatial.py",
        "fold(operator(*tokens, **options), spatial_size(q, channel_axis), channel_axis)",
        "fold(operator(*tokens, **options), spatial_size(k, channel_axis), channel_axis)",
        SPATIAL,
    ),
    Fault(
        "multi-head: heads joined in another order",
        "modules/multi_head.py",
        "return out.movedim(-3, -2).flatten(-2)",
        "return out.movedim(-3, -1).flatten(-2)",
        MODULES,
    ),
    Fault(
        "multi-head: unequal heads joined by group",
        "modules/multi_head.py",
        "torch.cat([outputs[i] for i in range(len(outputs))], dim=-1)",
        "torch.cat(list(outputs.values()), dim=-1)",
        MODULES,
    ),
    Fault(
        "multi-head: every query head its own key",
        "modules/multi_head.py",
        "shared = [i // self._share for i in group]",
        "shared = [i % self.key_heads for i in group]",
        MODULES,
    ),
    Fault(
        "multi-head: a mask per head given to the wrong head",
        "modules/multi_head.py",
        "return added[..., chosen, :, :]",
        "return added[..., [chosen[0]] * len(chosen), :, :]",
        MODULES,
    ),
    Fault(
        "multi-head: scale given is ignored",
        "modules/multi_head.py",
        '"scale": self.scale}',
        '"scale": None}',
        MODULES,
    ),
    Fault(
        "masks: causal from the first key",
        "modules/inputs.py",
        ".tril(m - n)",
        ".tril()",
        MODULES,
    ),
    Fault(
        "masks: padding dropped beside a mask",
        "modules/inputs.py",
        "together = there if together is None else together & there",
        "together = there if together is None else together",
        MODULES,
    ),
)
