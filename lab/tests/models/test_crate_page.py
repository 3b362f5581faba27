"""The page on CRATE: its code runs, and its numbers match the models."""

import re
from pathlib import Path

import torch

from clearhead_lab.models.crate import CRATE_SIZES, Crate, crate_config

PAGE = (Path(__file__).parents[3] / "docs" / "crate.md").read_text()


def test_the_code_on_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec("\n".join(blocks), names)
    model, again, images = names["model"], names["again"], names["images"]
    with torch.no_grad():
        assert names["scores"].shape == model(images).shape == again(images).shape == (2, 10)
    assert names["captured"].heads[0].q.shape == (2, 4, 17, 12)
    assert names["next_token"].shape == (2, 13, 67)
    assert names["loss"] > 0


def test_the_table_counts_what_the_models_have() -> None:
    for size in CRATE_SIZES:
        with torch.device("meta"):
            model = Crate(crate_config(size))
        row = f"| {size} | {model.config.width} | {model.config.heads} | {model.config.layers} |"
        assert f"{row} {sum(p.numel() for p in model.parameters()):,} |" in PAGE
