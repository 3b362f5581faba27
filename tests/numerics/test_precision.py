import math

import pytest
import torch

from clearhead.numerics.precision import difference_step, machine_epsilon, tolerance

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_epsilon_is_the_spacing_at_one(dtype: torch.dtype) -> None:
    one = torch.ones((), dtype=dtype)
    epsilon = machine_epsilon(dtype)
    assert (one + epsilon).item() == 1 + epsilon
    assert (one + epsilon / 4).item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_tolerance_grows_as_the_root_of_the_terms(dtype: torch.dtype) -> None:
    assert tolerance(dtype, terms=1) == 8 * machine_epsilon(dtype)
    assert tolerance(dtype, terms=49) == pytest.approx(7 * tolerance(dtype, terms=1))
    assert tolerance(dtype) == tolerance(dtype, terms=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("terms", [7, 101, 1009])
def test_the_tolerance_accepts_correct_sums_and_rejects_lower_precision(dtype: torch.dtype, terms: int) -> None:
    generator = torch.Generator().manual_seed(terms)
    rows = torch.randn(31, terms, generator=generator, dtype=torch.float64).to(dtype)
    columns = torch.randn(terms, 29, generator=generator, dtype=torch.float64).to(dtype)
    exact = rows.double() @ columns.double()

    def error(keep) -> float:
        got = torch.zeros(31, 29, dtype=torch.float64)
        for j in range(terms):
            got = keep(got + keep(rows.double()[:, j, None] * columns.double()[j]))
        return ((got - exact).abs().max() / exact.abs().max()).item()

    digits = round(-math.log2(machine_epsilon(dtype)))

    def rounded_to(bits: int):
        def keep(x: torch.Tensor) -> torch.Tensor:
            mantissa, exponent = torch.frexp(x)
            return torch.ldexp(torch.round(mantissa * 2.0**bits) / 2.0**bits, exponent)

        return keep

    assert error(rounded_to(digits + 1)) <= tolerance(dtype, terms=terms)
    assert error(rounded_to(digits - 7)) > tolerance(dtype, terms=terms)


def test_the_difference_step_minimises_the_error() -> None:
    step = difference_step(torch.float64)
    points = torch.linspace(-1, 1, 101, dtype=torch.float64)

    def error(h: float) -> float:
        return (((points + h).sin() - (points - h).sin()) / (2 * h) - points.cos()).abs().max().item()

    assert error(step) < step**1.5
    assert error(step) < error(100 * step)
    assert error(step) < error(step / 1000)
