"""Conversion of the parameters of torch.nn.MultiheadAttention to the names of `MultiHeadAttention`."""

from collections.abc import Mapping

from torch import Tensor, nn

from clearhead.errors import InputError

__all__ = ["check_supported", "convert_state_dict"]

SEPARATE = {"q_proj_weight": "query.weight", "k_proj_weight": "key.weight", "v_proj_weight": "value.weight"}
OUT = {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
APPENDED = ("bias_k", "bias_v")


def check_supported(module: nn.MultiheadAttention) -> None:
    """Raise ValueError for options of torch.nn.MultiheadAttention that `MultiHeadAttention` does not have."""
    if module.bias_k is not None or module.bias_v is not None:
        raise InputError("add_bias_kv, which appends a learned key and value, is not supported; pass a module without")
    if module.add_zero_attn:
        raise InputError("add_zero_attn, which appends a key of zeros, is not supported; pass a module without it")
    if module.dropout and module.training:
        raise InputError(
            f"dropout in training mode is not supported (got dropout {module.dropout}); call module.eval() first"
        )


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters as `query`, `key`, `value` and `out`, each with weight and, if there is one, bias.

    torch stores the three input projections in one matrix, unless kdim or vdim differs from embed_dim, and their biases
    in one vector.
    """
    if any(name in state_dict for name in APPENDED):
        raise InputError(
            "add_bias_kv, which appends a learned key and value, is not supported; "
            f"got a state dict with {', '.join(state_dict)}"
        )
    stacked = "in_proj_weight" in state_dict
    weights = {"in_proj_weight"} if stacked else set(SEPARATE)
    required, allowed = weights | {"out_proj.weight"}, weights | {"in_proj_bias", *OUT}
    if not required <= state_dict.keys() <= allowed:
        raise InputError(
            f"expected the state dict of a torch.nn.MultiheadAttention, with {', '.join(sorted(required))}, and "
            f"perhaps in_proj_bias and out_proj.bias; got {', '.join(state_dict) or 'nothing'}"
        )
    converted = {ours: state_dict[theirs] for theirs, ours in (SEPARATE | OUT).items() if theirs in state_dict}
    for theirs, kind in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
        if theirs in state_dict:
            chunks = zip(("query", "key", "value"), state_dict[theirs].chunk(3), strict=True)
            converted |= {f"{ours}.{kind}": chunk for ours, chunk in chunks}
    return converted
