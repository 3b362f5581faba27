"""Table 3: attention variants in language modelling, clean and with swapped words.

The authors published no code of the attack, so its protocol is not known. An evaluation of a changed test file reads
and predicts the attacked text: that is the measure here. It counts the swapped words, which no model can predict. With
original targets the attacked text is only read, and the words of the original text are predicted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.report.tables import decimals
from clearhead_lab.data.corpus import Corpus, read_corpus
from clearhead_lab.experiments.estimates import Floor
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.study import (
    CLAMPED_KEYS,
    RPC,
    Study,
    StudyRun,
    Variants,
    compared,
    first_layers,
    how_compared,
    measure_study,
    measured_table,
    study_experiment,
    train_study,
    variants_named,
)  # fmt: skip
from clearhead_lab.robustness.text import GENERIC_WORD, PIECE, TEXT_ATTACKS
from clearhead_lab.training.evaluation import measure_perplexity

SHARES = (0.025, 0.05, 0.1)
SHARE = SHARES[-1]
"""The share in the tables."""
TOKENS = 20_000
"""Tokens of each split that are evaluated at the small scale."""
CLAIMED = (
    "On WikiText-103, RPC in layers 1 to 4 lowers the perplexity by at least 1 on validation and test text, clean and "
    f'with words swapped for "{GENERIC_WORD}" (Table 3). The cells of the table and the share of swapped words are not '
    "at hand."
)
DIFFER = (
    "The small model has 4 layers of width 64 and a context of 64 tokens, the paper's 16 layers of width 128 and 256 "
    "tokens. It was trained on 400,000 tokens of WikiText-2 for 3 epochs, the paper's on 100 million tokens for "
    "500,000 steps. RPC and clamped keys are in layer 0 only. The paper evaluates with a sliding window, one "
    "prediction for each window; here windows advance by half a context."
)


def _robust(layers: int) -> Variants:
    return {
        "clamped keys": {"attention": first_layers(CLAMPED_KEYS, layers)},
        "RPC": {"attention": first_layers(RPC, layers)},
    }


STUDY = Study(
    small="language-wikitext-2-small",
    paper="language-wikitext-103",
    variants={**variants_named("softmax", "symmetric"), **_robust(1)},
    paper_variants=_robust(4),
)


def condition(split: str, attack: str = "", share: float = SHARE, *, original: bool = False) -> str:
    """Return the name of a measure: the split, the attack and its share, and which targets."""
    if not attack:
        return split
    return f"{split}, {attack} {100 * share:g}%{', original targets' if original else ''}"


def attacked_perplexity(
    model: nn.Module, corpus: Corpus, *, tokens: int | None, stride: int, seed: int
) -> dict[str, float]:
    """Return perplexities on the first tokens of both held-out splits by `condition`: clean, and under every attack.

    tokens: None for all; stride: of windows, as in `measure_perplexity`; seed: of the attacks
    """
    context: int = model.config.context  # type: ignore[union-attr, assignment]
    window: dict[str, Any] = {"context": context, "stride": stride}
    results = {}
    for split in ("valid", "test"):
        text = getattr(corpus, split)[:tokens]
        results[condition(split)] = measure_perplexity(model, text, **window)
        for name, attack in TEXT_ATTACKS.items():
            for share in SHARES:
                attacked = attack(text, corpus.vocabulary, share=share, seed=seed)
                results[condition(split, name, share)] = measure_perplexity(model, attacked, **window)
                results[condition(split, name, share, original=True)] = measure_perplexity(
                    model, attacked, targets=text, **window
                )
    return results


def frequency_perplexity(corpus: Corpus, *, train: int | None, tokens: int | None) -> float:
    """Return the perplexity of the first test tokens under the frequencies of words in the first training tokens.

    Each word of the vocabulary counts once more. train, tokens: None for all
    """
    counts = torch.bincount(corpus.train[:train], minlength=len(corpus.vocabulary)).double() + 1
    return float((counts / counts.sum()).log()[corpus.test[:tokens]].mean().neg().exp())


def _measure(request: Request, folder: Path) -> Any:
    runs = train_study(STUDY, request)
    assert request.data is not None, "trained on it"
    settings = {"tokens": _tokens(request), "sliding": request.scale == "paper"}
    packages = ("operators", "models", "robustness", "training")
    measured = measure_study(runs, request, folder, _attack_run, settings, packages=packages)
    corpus = read_corpus(request.data)
    take = STUDY.recipe(request, next(iter(STUDY.variants)), request.seed).data.take
    return runs, measured, frequency_perplexity(corpus, train=take or None, tokens=_tokens(request))


def _tokens(request: Request) -> int | None:
    return request.inputs or (None if request.scale == "paper" else TOKENS)


def _attack_run(
    *, folder: str, data: str, tokens: int | None, sliding: bool, seed: int, loss: float
) -> dict[str, float]:
    """Attack the model of a run. `loss` of its last epoch identifies the weights."""
    run = StudyRun(variant="", seed=seed, folder=Path(folder), log=(), parameters=0)
    model = run.model().to("cuda" if torch.cuda.is_available() else "cpu")
    context: int = model.config.context  # type: ignore[union-attr, assignment]
    stride = 1 if sliding else max(context // 2, 1)
    return attacked_perplexity(model, read_corpus(Path(data)), tokens=tokens, stride=stride, seed=seed)


def _report(results: Any, request: Request) -> Report:
    runs: list[StudyRun] = results[0]
    measured: Mapping[str, Mapping[int, Mapping[str, float]]] = results[1]
    swapped = f"{GENERIC_WORD} {100 * SHARE:g}%"
    titles = {
        condition(split, attack): f"{split}{f', {swapped}' if attack else ''}"
        for attack in ("", GENERIC_WORD)
        for split in ("valid", "test")
    }
    others = {
        condition("test", attack, original=original): f"{attack}{', original targets' if original else ''}"
        for attack in TEXT_ATTACKS
        for original in (False, True)
    }
    floor = Floor(
        measure=condition("test"), value=results[2], name="the perplexity of word frequencies", lower_is_better=True
    )
    trained = floor.trained(measured)
    means = {v: sum(x[condition("test")] for x in measured[v].values()) / len(measured[v]) for v in trained}
    best = min(means, key=means.__getitem__, default="no variant trained")
    recipe = STUDY.recipe(request, next(iter(measured)), request.seed)
    tokens = "all" if _tokens(request) is None else f"the first {_tokens(request):,}"
    stride = "1 token" if request.scale == "paper" else "half a context"
    return Report(
        headline=f"lowest test perplexity: {best}, {decimals(means.get(best), 1)}; {len(runs)} runs",
        setting=f"Recipe {recipe.name}, {recipe.recipe.epochs} epochs. Perplexity on {tokens} tokens of each split, "
        f"windows advance by {stride}; lower is better. {100 * SHARE:g}% of the words are attacked. "
        f"{how_compared(floor)}",
        sections=[
            ("Claimed", CLAIMED),
            ("Measured", measured_table(runs, measured, titles, floor=floor)),
            ("Differences from symmetric attention", compared(measured, titles, baseline="symmetric", floor=floor)),
            (f"Attacks on the test text, {100 * SHARE:g}%", measured_table(runs, measured, others, floor=floor)),
            ("What the attacks do", _attacks_text()),
            ("Why they differ", DIFFER),
        ],
        figures={"attacks.svg": lambda: _draw({variant: measured[variant] for variant in trained})},
        facts={"measured": {name: {str(s): dict(v) for s, v in seeds.items()} for name, seeds in measured.items()}},
    )


def _attacks_text() -> str:
    return (
        f'A swap replaces single words, by "{GENERIC_WORD}" or by words drawn from the vocabulary with equal '
        f"probability; contamination replaces the words of pieces of {PIECE} tokens by drawn words. The attacked text "
        "is read and predicted, as in an evaluation of a changed file, so that the perplexity counts words that no "
        "model can predict. With original targets it is only read."
    )


def _draw(measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Any:
    """Draw the perplexity by the share of swapped words, for both kinds of targets."""
    figure, panels = make_panels(2, title="Perplexity by the share of swapped words")
    for axes, original in zip(panels, (False, True), strict=True):
        for colour, (variant, seeds) in enumerate(measured.items()):
            names = [condition("test"), *(condition("test", GENERIC_WORD, s, original=original) for s in SHARES)]
            curves = [[values[name] for values in seeds.values()] for name in names]
            plot_mean(axes, [0, *(100 * share for share in SHARES)], curves, label=variant, colour=colour)
        title = "original words predicted" if original else "attacked words predicted"
        finish_panel(axes, title=f"Test text, {title}", x=f"words swapped for {GENERIC_WORD}, %", y="perplexity")
    return figure


LANGUAGE = study_experiment(
    STUDY,
    "language",
    _measure,
    _report,
    title="Attention variants in language modelling, clean and with swapped words",
    reproduces="softmax, symmetric, clamped keys and RPC on WikiText-2 with swapped words",
    source="Table 3",
    cost="45 min",
    full_cost="42 GPU hours",
)
