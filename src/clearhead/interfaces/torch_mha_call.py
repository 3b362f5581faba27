"""One call of torch.nn.MultiheadAttention: its operands batch first, its projections, and its output per head."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.interfaces.call import AttentionNotSeenError, Call, split_mask
from clearhead.numerics.precision import tolerance


def padded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a nested tensor padded with zeros, and where it is padding."""
    lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
    whole = x.to_padded_tensor(0.0)
    return whole, torch.arange(whole.shape[1], device=x.device) >= lengths[:, None]


def nested_rows(output: Tensor, padding: Tensor) -> Tensor:
    """Return the rows that are not padding as a nested tensor."""
    rows = [row[:length] for row, length in zip(output, (~padding).sum(dim=1).tolist(), strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.strided)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """The operands of one call, batch first whatever the layout of the call."""

    module: nn.MultiheadAttention
    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    need_weights: bool
    average_weights: bool
    dropout: float
    batched: bool
    cross: bool

    @classmethod
    def read(cls, module: nn.MultiheadAttention, arguments: dict[str, Any]) -> "TorchCall":
        """Return the operands from the arguments of the module's forward."""
        query, key, value = arguments["query"], arguments["key"], arguments["value"]
        cross = not _same(query, key)
        padding = arguments.get("key_padding_mask")
        if query.is_nested:
            _, padding = padded(key)
            query, key, value = (x.to_padded_tensor(0.0) for x in (query, key, value))
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            padding = None if padding is None else padding.unsqueeze(0)
        elif not module.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        return cls(
            module=module,
            query=query,
            key=key,
            value=value,
            key_padding_mask=padding,
            attn_mask=arguments.get("attn_mask"),
            need_weights=arguments.get("need_weights", True),
            average_weights=arguments.get("average_attn_weights", True),
            dropout=module.dropout if module.training else 0.0,
            batched=batched,
            cross=cross,
        )

    def in_layout_of_call(self, output: Tensor) -> Tensor:
        """Return an output in the layout of the call."""
        if not self.batched:
            return output.squeeze(0)
        return output if self.module.batch_first else output.transpose(0, 1)

    def weights_for_call(self, weights: Tensor) -> Tensor:
        """Return the weights of all heads as the caller wants them: their mean over the heads, or all."""
        weights = weights.mean(dim=1) if self.average_weights else weights
        return weights if self.batched else weights.squeeze(0)

    def call(self, name: str, interface: str) -> Call:
        """Return the attention call that the module makes."""
        q, k, v = (_split(x, self.module.num_heads) for x in self._projections())
        mask, bias = split_mask(self._added(self.module.num_heads, k.shape[-2] - self.key.shape[1]))
        return Call(
            name=name,
            module=self.module,
            interface=interface,
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5,
            mask=mask,
            bias=bias,
            dropout=self.dropout,
            cross=self.cross,
            weights=[] if self.need_weights else None,
            projection=self.module.out_proj.weight,
        )

    def _added(self, heads: int, extra_keys: int) -> Tensor | None:
        """Return everything added to the scores, (b, h, n, m), -inf where a key is hidden; None if nothing is.

        Here True in a boolean mask hides a key. Keys that the module appends are always visible.
        """
        b, n, m = self.query.shape[0], self.query.shape[1], self.key.shape[1]
        terms = []
        mask = _floating(self.attn_mask, self.query.dtype)
        if mask is not None:
            terms.append(mask.view(b, heads, n, m) if mask.ndim == 3 else mask.view(1, 1, n, m))
        padding = _floating(self.key_padding_mask, self.query.dtype)
        if padding is not None:
            terms.append(padding.view(b, 1, 1, m))
        if not terms:
            return None
        return functional.pad(sum(terms[1:], terms[0]), (0, extra_keys))

    def _projections(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v with heads joined, and with the keys that the module appends: a learned one, one of zeros."""
        module = self.module
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        inputs = (self.query, self.key, self.value)
        q, k, v = (functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
        if module.bias_k is not None and module.bias_v is not None:
            k = torch.cat([k, module.bias_k.expand(k.shape[0], 1, -1)], dim=1)
            v = torch.cat([v, module.bias_v.expand(v.shape[0], 1, -1)], dim=1)
        if module.add_zero_attn:
            k, v = functional.pad(k, (0, 0, 0, 1)), functional.pad(v, (0, 0, 0, 1))
        return q, k, v

    def attention_output(self, state: Tensor | None) -> Tensor:
        """Return the output before the output projection, by torch's own function with the identity to project with.

        state: the random state before the model's own call in training. The same weights are dropped again, and the
            model continues as if nothing had been drawn in between.
        """
        module, width = self.module, self.module.embed_dim
        separate = module.in_proj_weight is None
        after = torch.get_rng_state()
        if state is not None:
            torch.set_rng_state(state)
        try:
            output, _ = functional.multi_head_attention_forward(
                self.query.transpose(0, 1),
                self.key.transpose(0, 1),
                self.value.transpose(0, 1),
                width,
                module.num_heads,
                module.in_proj_weight,
                module.in_proj_bias,
                module.bias_k,
                module.bias_v,
                module.add_zero_attn,
                module.dropout,
                torch.eye(width, dtype=self.query.dtype, device=self.query.device),
                None,
                training=module.training,
                key_padding_mask=_floating(self.key_padding_mask, self.query.dtype),
                need_weights=self.need_weights,
                attn_mask=_floating(self.attn_mask, self.query.dtype),
                use_separate_proj_weight=separate,
                q_proj_weight=module.q_proj_weight if separate else None,
                k_proj_weight=module.k_proj_weight if separate else None,
                v_proj_weight=module.v_proj_weight if separate else None,
            )
        finally:
            torch.set_rng_state(after)
        return _split(output.transpose(0, 1), module.num_heads)

    def check(self, name: str, call: Call, out: Tensor, output: Tensor) -> None:
        """Raise if the attention output does not lead to the module's, on rows with a visible key."""
        if out.numel() == 0:
            return
        module = self.module
        if output.is_nested:
            output = output.to_padded_tensor(0.0, (out.shape[0], out.shape[2], module.embed_dim))
        output = output.detach()
        expected = self.in_layout_of_call(module.out_proj(out.transpose(1, 2).flatten(2))).detach()
        rows = torch.ones_like(expected[..., :1], dtype=torch.bool)
        if call.mask is not None:
            visible = call.mask.any(dim=-1).all(dim=1)
            rows = self.in_layout_of_call(visible.expand(out.shape[0], out.shape[2]).unsqueeze(-1))
        difference = torch.where(rows, expected - output, 0).abs().amax()
        if float(difference) > 4 * tolerance(output.dtype, terms=module.embed_dim) * (1 + float(expected.abs().amax())):
            raise AttentionNotSeenError(
                f"{name}: attention computed again on torch's open path differs from its output by "
                f"{float(difference):.1e}; describe the module, or leave it out"
            )


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _same(query: Tensor, key: Tensor) -> bool:
    """Return whether both are one tensor, or views of the same memory in the same order."""
    return query is key or (not query.is_nested and query.shape == key.shape and query.data_ptr() == key.data_ptr())


def _floating(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask of either kind as what is added to the scores."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
    return mask.to(dtype)
