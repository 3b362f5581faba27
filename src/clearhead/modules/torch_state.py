"""The parameters of a torch.nn.MultiheadAttention under the names of ours."""

from collections.abc import Mapping

from torch import Tensor, nn

from clearhead.errors import InputError

__all__ = ["check_supported", "renamed_state"]

SEPARATE = {"q_proj_weight": "query.weight", "k_proj_weight": "key.weight", "v_proj_weight": "value.weight"}
OUT = {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
APPENDED = ("bias_k", "bias_v")


def check_supported(module: nn.MultiheadAttention) -> None:
    """Raise ValueError for what torch.nn.MultiheadAttention can do and `MultiHeadAttention` cannot."""
    if module.bias_k is not None or module.bias_v is not None:
        raise InputError(
            "expected a module without add_bias_kv, which appends a learned key and value; got one with it"
        )
    if module.add_zero_attn:
        raise InputError("expected a module without add_zero_attn, which appends a key of zeros; got one with it")
    if module.dropout and module.training:
        raise InputError(
            f"expected a module without dropout, or in evaluation (module.eval()), where it has none; "
            f"got dropout {module.dropout} in training"
        )


def renamed_state(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same parameters as `query`, `key`, `value` and `out`, weight and bias each where there is one.

    torch keeps the three input maps in one matrix, unless kdim or vdim differs from embed_dim, and their biases in one
    vector.
    """
    if any(name in state_dict for name in APPENDED):
        raise InputError(
            "expected a state dict of a module without add_bias_kv, which appends a learned key and value; "
            f"got {', '.join(state_dict)}"
        )
    stacked = "in_proj_weight" in state_dict
    weights = {"in_proj_weight"} if stacked else set(SEPARATE)
    needed, allowed = weights | {"out_proj.weight"}, weights | {"in_proj_bias", *OUT}
    if not needed <= state_dict.keys() <= allowed:
        raise InputError(
            f"expected the state dict of a torch.nn.MultiheadAttention, with {', '.join(sorted(needed))}, and "
            f"in_proj_bias and out_proj.bias or not; got {', '.join(state_dict) or 'nothing'}"
        )
    renamed = {ours: state_dict[theirs] for theirs, ours in (SEPARATE | OUT).items() if theirs in state_dict}
    for theirs, kind in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
        if theirs in state_dict:
            parts = state_dict[theirs].chunk(3)
            renamed |= {f"{ours}.{kind}": part for ours, part in zip(("query", "key", "value"), parts, strict=True)}
    return renamed
