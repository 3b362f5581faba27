"""Sparse coding steps as layers: operators, initialisation, warnings."""

import copy
import warnings

import pytest
import torch

from clearhead.modules import OvercompleteStep, SparseCodingStep
from clearhead.numerics.precision import tolerance
from clearhead.operators import StepSizeWarning, largest_step
from clearhead.operators.sparse_coding import slow_ista_step, slow_overcomplete_step
from clearhead.shapes import ShapeError
from tests.modules.drawing import differ, normal, require_same

MAKE = {"one step": SparseCodingStep, "overcomplete": OvercompleteStep}


def test_modules_pass_their_settings_to_the_operators() -> None:
    x = normal(2, 7, 11)
    one = SparseCodingStep(11, step=0.2, penalty=0.3).double()
    require_same(one(x), slow_ista_step(x, one.dictionary, step=0.2, penalty=0.3))
    assert differ(one(x), slow_ista_step(x, one.dictionary, step=0.1, penalty=0.3))
    two = OvercompleteStep(11, num_atoms=13, step=0.2, penalty=0.3).double()
    require_same(two(x), slow_overcomplete_step(x, two.dictionary, two.decoder, step=0.2, penalty=0.3))
    assert differ(two(x), slow_overcomplete_step(x, two.dictionary, two.decoder, step=0.2, penalty=0.1))
    assert OvercompleteStep(11).dictionary.shape == OvercompleteStep(11).decoder.shape == (11, 44)


def test_the_published_step_size_is_stable_at_initialisation() -> None:
    """Random dictionaries have a squared norm of about 8 at every width; a step of .1 is below 1/8."""
    torch.manual_seed(0)
    for width in (101, 307):
        assert 0.1 < largest_step(SparseCodingStep(width).dictionary) < 0.14


@pytest.mark.parametrize("name", MAKE)
def test_a_too_long_step_warns_once_per_state_and_not_in_training(name: str) -> None:
    layer, x = MAKE[name](7, step=50.0), normal(3, 7, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)
    layer.eval()
    with pytest.warns(StepSizeWarning, match="the step size 50 is above"):
        layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    with pytest.warns(StepSizeWarning):
        layer(x)
    with torch.no_grad():
        layer.dictionary.mul_(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)


@pytest.mark.parametrize("name", MAKE)
def test_autocast_chooses_the_dtype(name: str) -> None:
    layer, x = MAKE[name](7), normal(41, 7, dtype=torch.float32)
    want = layer(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for got in (layer(x), layer(x[:3]), layer(x.bfloat16())):
            assert got.dtype is torch.bfloat16
            assert (got - want[: len(got)]).abs().max() <= tolerance(torch.bfloat16) * want.abs().max()
        assert layer.double()(x.double()).dtype is torch.float64


@pytest.mark.parametrize("name", MAKE)
def test_modules_run_in_inference_mode_and_on_the_meta_device(name: str) -> None:
    with torch.inference_mode():
        assert MAKE[name](7).eval()(torch.ones(3, 7)).shape == (3, 7)
    with torch.device("meta"):
        assert MAKE[name](7).eval()(torch.ones(3, 7)).shape == (3, 7)


@pytest.mark.parametrize("name", MAKE)
def test_compiles_without_a_graph_break(name: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    layer, x = MAKE[name](7).double().eval(), normal(41, 7)
    torch.compiler.reset()
    require_same(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


@pytest.mark.parametrize("name", MAKE)
def test_invalid_step_sizes_raise_an_error(name: str, typechecked: bool) -> None:
    for wrong in ({"step": 0.0}, {"step": -0.1}, {"penalty": -0.1}, {"step": float("nan")}):
        with pytest.raises(ValueError, match="expected a step above zero and a penalty of at least zero"):
            MAKE[name](7, **wrong)
    with pytest.raises(ValueError, match="one or more; got embed_dim 0"):
        MAKE[name](0)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    with pytest.raises(ShapeError, match="expected z"):
        MAKE[name](7)(torch.ones(3, 5))
    with pytest.raises(ValueError, match="one floating dtype"):
        MAKE[name](7)(torch.ones(3, 7).double())
