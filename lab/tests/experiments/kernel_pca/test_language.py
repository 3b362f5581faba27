"""Table 3: the attacks on a text, the layers of each variant, and a study on a tiny text."""

import dataclasses
from pathlib import Path

import pytest
import torch

from clearhead.operators.named import RPC, ClampedKeys, Symmetric
from clearhead.stored_json import read_json
from clearhead_lab.data.corpus import Corpus, read_corpus
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import language
from clearhead_lab.experiments.kernel_pca.language import (
    LANGUAGE,
    STUDY,
    attacked_perplexity,
    condition,
    frequency_perplexity,
)  # fmt: skip
from clearhead_lab.experiments.study import StudyRun
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.robustness.text import TEXT_ATTACKS, contaminate, swap_for_generic_word
from clearhead_lab.training.evaluation import measure_perplexity
from clearhead_lab.training.recipe_file import layer_operators

RECIPE = """
task = "language"

[data]
rows = 20

[model]
name = "language-small"
context = 8
width = 8
layers = 2
heads = 2
mlp_width = 8
dropout = 0.0
cutoffs = [4]

[training]
epochs = 1
batch_size = 4
warmup = 0.2
"""
WORDS = ("the", "cat", "AAA", "dog", "sat", "ran", "on", "a", "mat", "and", "slept")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return a folder of token files with random words."""
    folder = tmp_path / "text"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    for split, lines in (("train", 40), ("valid", 13), ("test", 17)):
        drawn = torch.randint(len(WORDS), (lines, 7), generator=generator).tolist()
        text = "\n".join(" ".join(WORDS[number] for number in line) for line in drawn)
        (folder / f"{split}.txt").write_text(f"{text}\n")
    return folder


def _model(corpus: Corpus) -> LanguageModel:
    config = LanguageModelConfig(vocabulary=len(corpus.vocabulary), context=8, width=8, layers=1, heads=2, mlp_width=8)
    model = LanguageModel(config, generator=torch.Generator().manual_seed(2)).eval()
    for weight in model.parameters():
        weight.data *= 9  # far from uniform predictions
    return model


def test_every_condition_is_the_perplexity_of_its_text(texts: Path) -> None:
    corpus = read_corpus(texts)
    model = _model(corpus)
    results = attacked_perplexity(model, corpus, tokens=90, stride=3, seed=4)
    assert len(results) == 2 * (1 + 3 * len(TEXT_ATTACKS) * 2)
    window = {"context": 8, "stride": 3}
    for split in ("valid", "test"):
        text = getattr(corpus, split)[:90]
        assert results[split] == measure_perplexity(model, text, **window)
        for share in (0.025, 0.1):
            swapped = swap_for_generic_word(text, corpus.vocabulary, share=share, seed=4)
            assert results[condition(split, "AAA", share)] == measure_perplexity(model, swapped, **window)
        pieces = contaminate(text, corpus.vocabulary, share=0.05, seed=4)
        read_only = results[condition(split, "contaminated", 0.05, original=True)]
        assert read_only == measure_perplexity(model, pieces, targets=text, **window)
    attacked = [condition("test", "AAA", original=original) for original in (False, True)]
    assert len({results[name] for name in ("test", *attacked)}) == 3


@pytest.mark.parametrize(("scale", "layers", "robust"), [("small", 4, 1), ("paper", 16, 4)])
def test_the_robust_variants_are_in_the_first_layers(tmp_path: Path, scale: str, layers: int, robust: int) -> None:
    request = Request(out=tmp_path, scale=scale)  # type: ignore[arg-type]
    for variant, kind in (("RPC", RPC), ("clamped keys", ClampedKeys)):
        file = STUDY.recipe(request, variant, 0)
        operators = layer_operators(file.model["attention"], layers=layers)
        assert [type(operator) for operator in operators] == [kind] * robust + [Symmetric] * (layers - robust)
    rpc = layer_operators(STUDY.recipe(request, "RPC", 0).model["attention"], layers=layers)[0]
    assert (rpc.iterations, rpc.strength) == (4, 4.0)


def test_a_study_is_reported_and_resumed(tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    variants = {name: STUDY.variants[name] for name in ("symmetric", "RPC")}
    monkeypatch.setattr(language, "STUDY", dataclasses.replace(STUDY, small=str(recipe), variants=variants))
    request = Request(out=tmp_path / "out", data=texts, seeds=2, inputs=60, notice=pytest.fail)
    outcome = LANGUAGE.run(request)
    folder = tmp_path / "out" / "paper-language"
    measured = outcome.facts["measured"]
    assert {name: list(seeds) for name, seeds in measured.items()} == {"symmetric": ["0", "1"], "RPC": ["0", "1"]}
    assert outcome.headline == "lowest test perplexity: no variant trained, -; 4 runs"  # words are drawn at random
    page = (folder / "table.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Claimed", "## Measured", "## Differences from symmetric attention", "## Attacks on the test text, 10%",
        "## What the attacks do", "## Why they differ", "## Figures", "## Manifest",
    ]  # fmt: skip
    assert "| variant | parameters | seeds | valid | test | valid, AAA 10% | test, AAA 10% |" in page
    assert "windows advance by half a context" in page
    assert (folder / "attacks.svg").exists()

    monkeypatch.setattr(language, "attacked_perplexity", lambda *_, **__: pytest.fail("measured again"))
    again = LANGUAGE.run(request)
    assert again.facts["measured"] == measured
    assert read_json(folder / "result.json")["headline"] == outcome.headline


def test_the_variant_of_lowest_perplexity_is_named(tmp_path: Path) -> None:
    conditions = {
        condition(split, attack, original=original)
        for split in ("valid", "test")
        for attack in ("", *TEXT_ATTACKS)
        for original in (False, True)
    }
    measured = {
        variant: {seed: dict.fromkeys(conditions, perplexity + seed) for seed in (0, 1)}
        for variant, perplexity in (("symmetric", 40.0), ("RPC", 30.0), ("softmax", 35.0))
    }
    runs = [StudyRun(variant=variant, seed=0, folder=tmp_path, parameters=1) for variant in measured]
    report = LANGUAGE.report((runs, measured, 1000.0), Request(out=tmp_path))
    assert report.headline == "lowest test perplexity: RPC, 30.5; 3 runs"


def test_the_floor_is_the_perplexity_of_word_frequencies() -> None:
    train, test = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 1, 1])
    corpus = Corpus(name="", train=train, valid=test, test=test, vocabulary=("a", "b", "c"))
    expected = ((4 / 9) * (2 / 9)) ** -0.5  # each word counts once more
    assert frequency_perplexity(corpus, train=None, tokens=2) == pytest.approx(expected)
    assert frequency_perplexity(corpus, train=3, tokens=1) == pytest.approx(6 / 4)


def test_a_dry_run_at_the_scale_of_the_paper_has_the_sizes(tmp_path: Path) -> None:
    outcome = LANGUAGE.run(Request(out=tmp_path, scale="paper", dry_run=True, seeds=1))
    assert outcome.headline.startswith("dry run: 4 variants, 1 seeds, ")
    page = (tmp_path / "paper-language" / "table.md").read_text()
    assert "Batches (96, 256), 119 epochs, adam, learning rate 0.00025." in page
    assert "| RPC | 77,846,912 |" in page
