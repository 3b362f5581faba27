"""CRATE and a vision transformer of about the same size: the plans of their training, and the models by name."""

from typing import Any

from clearhead_lab.data.image_sets import ImageSet, pixel_moments
from clearhead_lab.experiments.training_runs import Config, Plan
from clearhead_lab.models.crate import CrateConfig, Form
from clearhead_lab.training.batches import random_changes, random_shift
from clearhead_lab.training.recipe import Recipe

__all__ = ["DIGITS_PLAN", "FASHION_PLAN", "PETS_PLAN", "VIT", "configs"]

VIT = "ViT"

FASHION_PLAN = Plan(
    patch_size=4,
    layers=6,
    heads=8,
    width=96,
    mlp_width=208,
    crate_width=160,
    forms=(Form.RELEASED,),
    recipe=Recipe(epochs=3, learning_rate=1e-3, label_smoothing=0.1),
)
DIGITS_PLAN = Plan(
    patch_size=2,
    layers=4,
    heads=4,
    width=32,
    mlp_width=64,
    crate_width=52,
    forms=(Form.RELEASED, Form.TIED, Form.NEGATED, Form.PAPER),
    recipe=Recipe(epochs=40, batch_size=64, learning_rate=2e-3, warmup=3.0),
    augment=lambda images, generator: random_shift(images, generator, max_pixels=1),
)
PETS_PLAN = Plan(
    patch_size=8,
    layers=6,
    heads=8,
    width=80,
    mlp_width=160,
    crate_width=128,
    forms=(Form.RELEASED,),
    recipe=Recipe(epochs=25, batch_size=64, learning_rate=1e-3, warmup=2.0, label_smoothing=0.1),
    augment=random_changes,
)


def configs(images: ImageSet, plan: Plan) -> dict[str, Config]:
    """Return the models by name: CRATE in every form of the plan, and the vision transformer."""
    mean, spread = pixel_moments(images.train_images)
    sizes: dict[str, Any] = {
        "image_size": images.train_images.shape[-1], "channels": images.train_images.shape[1],
        "classes": images.classes, "patch_size": plan.patch_size, "layers": plan.layers, "heads": plan.heads,
        "pixel_mean": mean, "pixel_spread": spread,
    }  # fmt: skip
    crate = {f"CRATE, {form}": CrateConfig(width=plan.crate_width, form=form, **sizes) for form in plan.forms}
    return {**crate, VIT: plan.vit_for(images)}
