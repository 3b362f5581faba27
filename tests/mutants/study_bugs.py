"""Bugs in attacks on text and in the studies of language modelling and segmentation."""

from tests.mutants.mutant import Mutant

TEXT = ("lab/tests/robustness/test_text.py",)
LANGUAGE = ("lab/tests/experiments/kernel_pca/test_language.py",)
SEGMENTATION = "lab/tests/experiments/kernel_pca/test_segmentation.py"
MEASURES = ("lab/tests/training/test_measures.py",)

MUTANTS = (
    Mutant("text: ends of lines are swapped", "text:_is_word", "tokens != _end_of_line(vocabulary)", "tokens >= 0", TEXT),
    Mutant("text: the same words whatever the seed", "text:_choose_words", "torch.Generator().manual_seed(seed)", "torch.Generator().manual_seed(0)", TEXT),
    Mutant("text: ends of lines are drawn", "text:_draw_words", "drawn + (drawn >= end) if end >= 0 else drawn", "drawn", TEXT),
    Mutant("text: the share of all tokens", "text:_choose_words", "share * len(positions)", "share * len(tokens)", TEXT),
    Mutant("text: always the unknown word", "text:generic_id", "(GENERIC_WORD, UNKNOWN)", "(UNKNOWN,)", TEXT),
    Mutant("text: contamination of single words", "text:contaminate", "bad.repeat_interleave", "bad.repeat", TEXT),
    Mutant("text: contamination of the first pieces", "text:contaminate", "bad[torch.randperm(pieces, generator=generator)[:round(share * pieces)]]", "bad[:round(share * pieces)]", TEXT),
    Mutant("perplexity: targets are not used", "evaluation:measure_perplexity", "targets[ids + 1]", "tokens[ids + 1]", MEASURES),
    Mutant("study of language: the attack is only read", "language:attacked_perplexity", "measure_perplexity(model, attacked, **window)", "measure_perplexity(model, attacked, targets=text, **window)", LANGUAGE),
    Mutant("study of language: every attack with one share", "language:attacked_perplexity", "attack(text, corpus.vocabulary, share=share, seed=seed)", "attack(text, corpus.vocabulary, share=SHARE, seed=seed)", LANGUAGE),
    Mutant("study of language: one layer at the scale of the paper", "language:", "_robust(4)", "_robust(1)", LANGUAGE),
    Mutant("study of language: the highest perplexity is the best", "language:_report", "min(means, key=means.__getitem__, default='no variant trained')", "max(means, key=means.__getitem__, default='no variant trained')", LANGUAGE),
    Mutant("study: the paper's changes at every scale", "study:Study.recipe", "self.paper_variants if request.scale == 'paper' else {}", "self.paper_variants", LANGUAGE),
    Mutant("study of segmentation: the last batch only", "segmentation:corrupted_overlap", "counts[name] + part if name in counts else part", "part", (f"{SEGMENTATION}::test_every_corruption_is_measured_on_all_batches_with_the_masks_unchanged",)),
    Mutant("study of segmentation: one severity", "segmentation:corrupted_overlap", "corruption(images, severity=severity, generator=generators[name])", "corruption(images, severity=1, generator=generators[name])", (f"{SEGMENTATION}::test_every_corruption_is_measured_on_all_batches_with_the_masks_unchanged",)),
    Mutant("study of segmentation: the same noise whatever the seed", "segmentation:corrupted_overlap", "seed + number", "number", (f"{SEGMENTATION}::test_noise_differs_between_batches_and_is_the_same_for_equal_seeds",)),
    Mutant("study of segmentation: the first images", "segmentation:evaluated_batches", "(pixels[::step], masks[::step])", "(pixels[:len(pixels) // step], masks[:len(pixels) // step])", (f"{SEGMENTATION}::test_images_are_evenly_spaced_in_the_held_out_set",)),
    Mutant("study of segmentation: the decoder stays softmax", "segmentation:_both", "('attention', 'decoder_attention')", "('attention',)", (f"{SEGMENTATION}::test_the_robust_variants_are_in_the_first_blocks",)),
    Mutant("study of segmentation: all severities at each", "segmentation:corrupted_mean", "severity is None or grade == severity", "True", (f"{SEGMENTATION}::test_the_mean_is_over_corruptions_of_one_severity_or_of_all",)),
    Mutant("study of segmentation: the lowest IoU is the best", "segmentation:_report", "max(means, key=means.__getitem__, default='no variant trained')", "min(means, key=means.__getitem__, default='no variant trained')", (f"{SEGMENTATION}::test_a_study_is_reported_and_resumed",)),
)  # fmt: skip
