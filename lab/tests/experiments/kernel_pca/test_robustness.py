"""The study of attention variants under attacks: what it measures, its page, and its sanity lines."""

import dataclasses
from pathlib import Path

import pytest

from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import robustness
from clearhead_lab.robustness.evaluation import CHECKS
from lab.tests.experiments.kernel_pca.tiny_study import tiny_study, write_images


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    variants = {name: robustness.STUDY.variants[name] for name in ("softmax", "symmetric", "RPC, layer 0")}
    study = dataclasses.replace(tiny_study(robustness.STUDY, tmp_path), variants=variants)
    monkeypatch.setattr(robustness, "STUDY", study)
    monkeypatch.setattr(robustness, "BUDGETS", (0.02, 0.3))
    monkeypatch.setattr(robustness, "ATTACKS", ("fgsm", "pgd"))
    monkeypatch.setattr(robustness, "TITLES", {"fgsm": "FGSM", "pgd": "PGD", "worst": "worst"})
    return Request(out=tmp_path / "out", data=write_images(tmp_path), inputs=7, seeds=2, epochs=1)


def test_every_run_is_attacked_and_the_page_has_its_lines(request_: Request) -> None:
    outcome = robustness.VARIANT_ROBUSTNESS.run(request_)
    measured = outcome.facts["measured"]
    assert set(measured) == {"softmax", "symmetric", "RPC, layer 0"}
    for variant, seeds in measured.items():
        assert set(seeds) == {"0", "1"}
        for results in seeds.values():
            values = results["values"]
            assert set(values) == {
                "clean", "corrupted", *(f"{n} {e}" for n in ("fgsm", "pgd", "worst") for e in ("0.02", "0.3"))
            }  # fmt: skip
            assert values["worst 0.3"] <= values["worst 0.02"] <= values["clean"]
            lines = {line["name"]: line["status"] for line in results["sanity"]}
            assert len(lines) in (0, len(CHECKS))
            if lines:
                assert (lines["transfer not stronger than white box"] == "not run") == (variant == "softmax")
                surrogate = lines["gradients through iterations not weaker than a surrogate's"]
                assert (surrogate != "not run") == variant.startswith("RPC")
            assert any("optimisation loop" in note for note in results["notes"]) == variant.startswith("RPC")
    page = (request_.out / "paper-robustness" / "table.md").read_text()
    for heading in ("Claimed", "Measured", "Differences from symmetric", "Sanity lines", "Why they differ"):
        assert f"## {heading}" in page
    assert (request_.out / "paper-robustness" / "robustness.svg").exists()


def test_rpc_is_compared_with_its_simplest_controls() -> None:
    assert set(robustness.STUDY.variants) == {"softmax", "symmetric", "clamped keys", "RPC, layer 0", "RPC, all layers"}


def test_flagged_lines_are_on_the_page() -> None:
    def results(status: str) -> dict[str, object]:
        return {"values": {}, "sanity": [{"name": "a line", "status": status, "text": "7 of 9"}], "notes": []}

    measured = {"x": {0: results("PASS"), 1: results("FLAG")}, "y": {0: results("not run"), 1: results("not run")}}
    table = {field.title: list(field.cells) for field in robustness._sanity_table(measured)}
    assert table == {"line": ["a line"], "x": ["1 of 2 pass"], "y": ["not run"]}
    assert robustness._flagged(measured) == "- x, seed 1: a line: 7 of 9"
    assert robustness._flagged({"y": measured["y"]}) == "None."
