"""The linear maps of queries, keys and values are found in every supported family."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.fidelity import tensors
from clearhead.modules import MultiHeadAttention
from clearhead.numerics.precision import machine_epsilon
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.interfaces.map_checks import assert_found, assert_scores, score_error
from tests.interfaces.test_torch_mha import BATCH, RUNS, VARIANTS
from tests.interfaces.zoo import EITHER_IMPLEMENTATION, FAMILIES, with_large_weights

TOKENS, WIDTH = 11, 24

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)

CASES = [*((name, None) for name in FAMILIES), *((name, "eager") for name in EITHER_IMPLEMENTATION)]
ROTATED = {"llama", "gemma2", "gpt-oss", "timm eva"}
"""Families with rotary codes, whose queries and keys are not linear maps of the tokens."""


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_maps_of_every_family_are_found_and_outputs_are_bit_identical(name: str, implementation: str | None) -> None:
    """The second pass uses the columns found in the first."""
    family = FAMILIES[name]
    model, inputs = family.make(), family.inputs()
    if implementation:
        model.set_attn_implementation(implementation)
    with torch.no_grad():
        alone = list(tensors(model(**inputs)))
        with capture(model) as captured:
            while_capturing = [list(tensors(model(**inputs))) for _ in range(2)]
    assert len(captured.heads) == 2 * family.calls
    for heads in captured.heads:
        assert_found(heads)
        if name.split(",")[0] in ROTATED:
            assert heads.queries_from is heads.keys_from is None
        else:
            assert_scores(heads)
    assert all(torch.equal(a, b) for outputs in while_capturing for a, b in zip(alone, outputs, strict=True))


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "timm vit", "whisper"])
def test_control_another_layers_maps_give_other_scores(name: str) -> None:
    """The control of the test above."""
    model, inputs = FAMILIES[name].make(), FAMILIES[name].inputs()
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
    first, second = captured.heads[:2]
    assert_scores(first)
    for queries, keys in ((second, first), (first, second), (second, second)):
        assert score_error(first, queries.queries_from, keys.keys_from) > 1e-2


def test_the_maps_of_whisper_include_its_query_factor() -> None:
    family = FAMILIES["whisper"]
    model = family.make()
    with torch.no_grad(), capture(model) as captured:
        model(**family.inputs())
    own = model.encoder.layers[0].self_attn.q_proj.weight.T.unflatten(1, (4, 6)).transpose(0, 1)
    given = captured.heads[0].queries_from.weight
    torch.testing.assert_close(given, own * 6**-0.5, rtol=2 * machine_epsilon(torch.float32), atol=0)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_maps_of_torchs_encoder_and_decoder(name: str, gradients: bool) -> None:
    make, run, calls = RUNS[name]
    model = make().eval()
    with torch.set_grad_enabled(gradients):
        alone = run(model)
        with capture(model) as captured:
            while_capturing = [run(model) for _ in range(2)]
    assert len(captured.heads) == 2 * calls
    for heads in captured.heads:
        assert_found(heads)
        assert_scores(heads)
    assert all(torch.equal(alone, output) for output in while_capturing)


APPENDS_TOKENS = {"learned key", "zero key", "all"}
"""Variants of torch's module that append a key and a value that belong to no token."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_torchs_module(variant: str) -> None:
    options = {"batch_first": True, **VARIANTS[variant]}
    model = with_large_weights(nn.MultiheadAttention(WIDTH, 4, **options)).eval()
    inputs = [torch.randn(BATCH, n, w) for n, w in ((TOKENS, WIDTH), (5, options.get("kdim", WIDTH)))]
    inputs.append(torch.randn(BATCH, 5, options.get("vdim", WIDTH)))
    with torch.no_grad(), capture(model) as captured:
        model(*inputs)
    (heads,) = captured.heads
    assert_found(heads, "q")
    assert torch.equal(heads.queries_from.x, inputs[0])
    if variant in APPENDS_TOKENS:
        assert heads.keys_from is heads.values_from is None
    else:
        assert_found(heads)
        assert_scores(heads)
        assert torch.equal(heads.keys_from.x, inputs[1])
        assert torch.equal(heads.values_from.x, inputs[2])


def _tokens() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def _own_vit() -> tuple[nn.Module, Tensor, int]:
    config = VisionTransformerConfig(
        image_size=10, patch_size=5, channels=3, classes=7, width=WIDTH, heads=4, layers=3, mlp_width=29
    )
    images = torch.rand(BATCH, 3, 10, 10, generator=torch.Generator().manual_seed(1))
    return with_large_weights(VisionTransformer(config)), images, 3


OWN: dict[str, Callable[[], tuple[nn.Module, Tensor, int]]] = {
    "vision transformer": _own_vit,
    "groups": lambda: (with_large_weights(MultiHeadAttention(WIDTH, num_heads=4, num_kv_heads=2)), _tokens(), 1),
    "unequal widths": lambda: (
        with_large_weights(MultiHeadAttention(WIDTH, num_heads=3, head_dim=(5, 7, 5))),
        _tokens(),
        2,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_maps_of_clearheads_own_models(name: str) -> None:
    """Heads of unequal widths give one call per width; heads that share keys share their map."""
    model, x, calls = OWN[name]()
    with torch.no_grad(), capture(model.eval()) as captured:
        for _ in range(2):
            model(x)
    assert len(captured.heads) == 2 * calls
    for heads in captured.heads:
        assert_found(heads)
        assert_scores(heads)
    if name == "groups":
        weight = captured.heads[0].keys_from.weight
        assert torch.equal(weight[0], weight[1])
        assert not torch.equal(weight[1], weight[2])


def test_normalised_queries_and_keys_have_no_map() -> None:
    from timm.layers import Attention

    model = with_large_weights(Attention(WIDTH, 4, qk_norm=True, norm_layer=nn.LayerNorm)).eval()
    with torch.no_grad(), capture(model) as captured:
        for _ in range(2):
            model(_tokens())
    for heads in captured.heads:
        assert_found(heads)
        assert heads.queries_from is heads.keys_from is None
