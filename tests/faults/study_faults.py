"""Bugs in attacks on text and in the studies of language modelling and segmentation."""

from fault import Fault

TEXT = ("tests/robustness/test_text.py",)
LANGUAGE = ("tests/experiments/paper/test_language.py",)
SEGMENTATION = "tests/experiments/paper/test_segmentation.py"
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
    Fault("study of segmentation: the last batch only", "experiments/paper/segmentation.py", "counts[name] + part if name in counts else part", "part", (f"{SEGMENTATION}::test_every_corruption_is_measured_on_all_batches_with_the_masks_unchanged",)),
    Fault("study of segmentation: one severity", "experiments/paper/segmentation.py", "corruption(images, severity=severity, generator", "corruption(images, severity=1, generator", (f"{SEGMENTATION}::test_every_corruption_is_measured_on_all_batches_with_the_masks_unchanged",)),
    Fault("study of segmentation: the same noise whatever the seed", "experiments/paper/segmentation.py", "torch.Generator().manual_seed(seed + number)", "torch.Generator().manual_seed(number)", (f"{SEGMENTATION}::test_noise_differs_between_batches_and_is_the_same_for_equal_seeds",)),
    Fault("study of segmentation: the first images", "experiments/paper/segmentation.py", "yield pixels[::step], masks[::step]", "yield pixels[: len(pixels) // step], masks[: len(pixels) // step]", (f"{SEGMENTATION}::test_images_are_evenly_spaced_in_the_held_out_set",)),
    Fault("study of segmentation: the decoder stays softmax", "experiments/paper/segmentation.py", "f\"model.decoder_attention={operators}\"", "'model.decoder_attention=\"softmax\"'", (f"{SEGMENTATION}::test_the_robust_variants_are_in_the_first_blocks",)),
    Fault("study of segmentation: all severities at each", "experiments/paper/segmentation.py", "if severity is None or grade == severity", "if True", (f"{SEGMENTATION}::test_the_mean_is_over_corruptions_of_one_severity_or_of_all",)),
    Fault("study of segmentation: the lowest IoU is the best", "experiments/paper/segmentation.py", "best = max(means", "best = min(means", (f"{SEGMENTATION}::test_a_study_is_reported_and_resumed",)),
)  # fmt: skip
