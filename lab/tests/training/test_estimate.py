"""What a dry run says."""

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.errors import InputError
from clearhead_lab.training.estimate import SUSTAINED_FLOPS, estimate_run
from clearhead_lab.training.recipe_file import RecipeFile, read_recipe_file
from clearhead_lab.training.run import build_model


def _file(*changes: str, name: str = "vit-cifar-10-small") -> RecipeFile:
    return read_recipe_file(name, list(changes))


def test_parameters_steps_and_rates_are_those_of_the_run() -> None:
    file = _file()
    estimate = estimate_run(file)
    model = build_model(file)
    assert estimate.parameters == sum(weight.numel() for weight in model.parameters())
    assert estimate.inputs == (64, 3, 32, 32)
    assert estimate.steps == 10 * (10_000 // 64)
    assert estimate.rates[156] == file.recipe.learning_rate
    assert estimate.rates[estimate.steps - 1] < 1e-3 * file.recipe.learning_rate
    assert estimate.gpu_hours == pytest.approx(
        6 * estimate.multiply_adds * 64 * estimate.steps / SUSTAINED_FLOPS / 3600
    )


def test_activations_are_the_tensors_that_a_backward_pass_needs() -> None:
    """Measured on real tensors of two sizes of batch, without fused kernels, the difference is the estimate."""
    file = _file("model.attention=softmax")
    model = build_model(file).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    totals = []
    for rows in (2, 3):
        seen: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor, seen: dict[int, torch.Tensor] = seen) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with sdpa_kernel(SDPBackend.MATH), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = model(torch.rand(rows, 3, 32, 32))
        totals.append(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()))
        assert logits.shape == (rows, 10)
    one_row = estimate_run(file).activation_bytes / 64
    assert one_row == pytest.approx(totals[1] - totals[0], rel=0.05)


def test_average_accumulation_processes_and_precision_change_the_memory() -> None:
    plain = estimate_run(_file())
    assert estimate_run(_file("training.ema=0.9")).weight_bytes == 5 * 4 * plain.parameters
    assert estimate_run(_file("training.optimizer=sgd")).weight_bytes == 3 * 4 * plain.parameters
    for changed in (_file("training.accumulate=2"), _file("training.precision=bfloat16")):
        assert estimate_run(changed).activation_bytes == plain.activation_bytes // 2
    assert estimate_run(_file(), processes=4).activation_bytes == plain.activation_bytes // 4
    with pytest.raises(InputError, match="64 rows cannot be divided between 3 processes"):
        estimate_run(_file(), processes=3)


def test_iterations_of_rpc_and_rare_words_are_counted() -> None:
    few, many = (
        estimate_run(_file(f'model.attention={{operator = "rpc", iterations = {n}}}')).multiply_adds for n in (1, 5)
    )
    assert many > few
    language = read_recipe_file("language-wikitext-103")
    adaptive = estimate_run(language).multiply_adds
    tied = estimate_run(dataclasses.replace(language, model={**language.model, "output": "tied", "cutoffs": []}))
    assert adaptive < tied.multiply_adds / 2


def test_a_recipe_without_rows_or_with_too_few_is_refused() -> None:
    with pytest.raises(InputError, match="does not say the number of training rows"):
        estimate_run(_file("data.rows=0"))
    with pytest.raises(InputError, match="a batch of 64 rows is larger than the 7 rows"):
        estimate_run(_file(), rows=7)
