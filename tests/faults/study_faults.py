"""Bugs in attacks on text and in the studies of language modelling and segmentation."""

from fault import Fault

TEXT = ("tests/robustness/test_text.py",)
LANGUAGE = ("tests/experiments/paper/test_language.py",)
MEASURES = ("tests/training/test_measures.py",)

STUDY_FAULTS = (
    Fault("text: ends of lines are swapped", "robustness/text.py", "return tokens != _end_of_line(vocabulary)", "return tokens >= 0", TEXT),
    Fault("text: the same words whatever the seed", "robustness/text.py", "generator = torch.Generator().manual_seed(seed)\n    order", "generator = torch.Generator().manual_seed(0)\n    order", TEXT),
    Fault("text: ends of lines are drawn", "robustness/text.py", "return drawn + (drawn >= end) if end >= 0 else drawn", "return drawn", TEXT),
    Fault("text: the share of all tokens", "robustness/text.py", "round(share * len(positions))", "round(share * len(tokens))", TEXT),
    Fault("text: always the unknown word", "robustness/text.py", "for word in (GENERIC_WORD, UNKNOWN):", "for word in (UNKNOWN,):", TEXT),
    Fault("text: contamination of single words", "robustness/text.py", "bad.repeat_interleave(PIECE)[: len(tokens)]", "bad.repeat(PIECE)[: len(tokens)]", TEXT),
    Fault("text: contamination of the first pieces", "robustness/text.py", "bad[torch.randperm(pieces, generator=generator)[: round(share * pieces)]] = True", "bad[: round(share * pieces)] = True", TEXT),
    Fault("perplexity: targets are not used", "training/evaluation.py", "targets[ids + 1].to(device)", "tokens[ids + 1].to(device)", MEASURES),
    Fault("study of language: the attack is only read", "experiments/paper/language.py", "results[condition(split, name, share)] = measure_perplexity(model, attacked, **window)", "results[condition(split, name, share)] = measure_perplexity(model, attacked, targets=text, **window)", LANGUAGE),
    Fault("study of language: every attack with one share", "experiments/paper/language.py", "attack(text, corpus.vocabulary, share=share, seed=seed)", "attack(text, corpus.vocabulary, share=SHARE, seed=seed)", LANGUAGE),
    Fault("study of language: one layer at the scale of the paper", "experiments/paper/language.py", "paper_variants=_robust(4)", "paper_variants=_robust(1)", LANGUAGE),
    Fault("study of language: the highest perplexity is the best", "experiments/paper/language.py", "best = min(means", "best = max(means", LANGUAGE),
    Fault("study: the paper's changes at every scale", "experiments/paper/study.py", "self.paper_variants if request.scale == \"paper\" else {}", "self.paper_variants", LANGUAGE),
)  # fmt: skip
