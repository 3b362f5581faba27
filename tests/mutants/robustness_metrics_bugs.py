"""Bugs in the corruptions of ImageNet-C and in the metrics of robustness."""

from tests.mutants.mutant import Mutant

IMAGES = ("lab/tests/robustness/test_imagenet_c.py",)
METRICS = ("lab/tests/robustness/test_metrics.py",)

MUTANTS = (
    Mutant("imagenet-c: numpy's state is not restored", "imagenet_c:_seeded", "np.random.set_state(state)", "pass", IMAGES),
    Mutant("imagenet-c: the state is not restored after an error", "imagenet_c:_seeded", "try:\n    yield\nfinally:\n    np.random.set_state(state)", "yield; np.random.set_state(state)", IMAGES),
    Mutant("imagenet-c: numpy is not seeded", "imagenet_c:_seeded", "np.random.seed(seed)", "", IMAGES),
    Mutant("imagenet-c: glass blur has no seed", "imagenet_c:", "{'impulse_noise', 'glass_blur'}", "{'impulse_noise'}", IMAGES),
    Mutant("imagenet-c: impulse noise has no seed", "imagenet_c:", "{'impulse_noise', 'glass_blur'}", "{'glass_blur'}", IMAGES),
    Mutant("imagenet-c: one seed for all images", "imagenet_c:_corrupt_images", "seeds[index]", "seeds[0]", IMAGES),
    Mutant("imagenet-c: one seed for all glass", "imagenet_c:_corrupt_images", "options[index]", "options[0]", IMAGES),
    Mutant("imagenet-c: seeds depend on the size of the batch", "imagenet_c:_corrupt_images", "torch.randint(2 ** 32, (len(images),), generator=generator)", "torch.randint(2 ** 32, (len(images),), generator=generator).flip(0)", IMAGES),
    Mutant("imagenet-c: height and width are exchanged", "imagenet_c:_corrupt_images", "(pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1)", "(pixels * 255).round().to(torch.uint8).permute(0, 3, 2, 1)", IMAGES),
    Mutant("imagenet-c: the severity is one less", "imagenet_c:_corruption", "(1.0, 2.0, 3.0, 4.0, 5.0)", "(1.0, 1.0, 2.0, 3.0, 4.0)", IMAGES),
    Mutant("imagenet-c: no drop makes a black image", "imagenet_c:_corrupt_image", "np.where(np.isfinite(result), result, image)", "np.nan_to_num(result)", IMAGES),
    Mutant("imagenet-c: pixels are rounded", "imagenet_c:_corrupt_image", "np.where(np.isfinite(result), result, image)", "np.where(np.isfinite(result), np.round(result), image)", IMAGES),
    Mutant("imagenet-c: grey images are accepted", "imagenet_c:_check", "channels != 3", "channels > 3", IMAGES),
    Mutant("imagenet-c: only the height is checked", "imagenet_c:_check", "min(height, width)", "height", IMAGES),
    Mutant("imagenet-c: a missing package has a traceback", "imagenet_c:_functions", "ImportError", "KeyError", IMAGES),
    Mutant("imagenet-c: two corruptions are exchanged", "imagenet_c:", "('gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression')", "('gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'frost', 'snow', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression')", IMAGES),
    Mutant("imagenet-c: the package is needed at import", "imagenet_c:", "import numpy as np", "import imagecorruptions; import numpy as np", IMAGES),
    Mutant("sweep: a new generator for each batch", "robustness.corruptions:corrupt_batches", "if images.dtype != torch.uint8: ...", "generator.manual_seed(int.from_bytes(digest[:7], 'big'))\nif images.dtype != torch.uint8: ...", IMAGES),
    Mutant("mce: the ratio upside down", "metrics:mean_corruption_error", "100 * _mean_rate(rates, name) / baseline", "100 * baseline / _mean_rate(rates, name)", METRICS),
    Mutant("mce: a fraction", "metrics:mean_corruption_error", "100 * _mean_rate(rates, name)", "_mean_rate(rates, name)", METRICS),
    Mutant("mce: the ratio of all sums", "metrics:mean_corruption_error", "sum(ratios.values()) / len(ratios)", "100 * sum((_mean_rate(errors[c], c) for c in errors)) / sum((_mean_rate(baseline_errors[c], c) for c in errors))", METRICS),
    Mutant("mce: the mean over the baseline's corruptions", "metrics:mean_corruption_error", "len(ratios)", "len(baseline_errors)", METRICS),
    Mutant("mce: a baseline without errors", "metrics:mean_corruption_error", "baseline == 0", "baseline < 0", METRICS),
    Mutant("mce: percentages are accepted", "metrics:_mean_rate", "(values >= 0) & (values <= 1)", "values >= 0", METRICS),
    Mutant("mce: some severities are accepted", "metrics:_mean_rate", "values.shape not in ((), (len(SEVERITIES),))", "values.size > len(SEVERITIES)", METRICS),
    Mutant("mce: AlexNet's rates of two corruptions are exchanged", "metrics:", "{'gaussian_noise': 0.886428, 'shot_noise': 0.894468, 'impulse_noise': 0.92264, 'defocus_blur': 0.81988, 'glass_blur': 0.826268, 'motion_blur': 0.785948, 'zoom_blur': 0.79836, 'snow': 0.866816, 'frost': 0.826572, 'fog': 0.819324, 'brightness': 0.564592, 'contrast': 0.853204, 'elastic_transform': 0.646056, 'pixelate': 0.71784, 'jpeg_compression': 0.6065}", "{'gaussian_noise': 0.886428, 'shot_noise': 0.894468, 'impulse_noise': 0.92264, 'defocus_blur': 0.81988, 'glass_blur': 0.826268, 'motion_blur': 0.785948, 'zoom_blur': 0.79836, 'snow': 0.866816, 'frost': 0.826572, 'fog': 0.819324, 'brightness': 0.564592, 'contrast': 0.646056, 'elastic_transform': 0.853204, 'pixelate': 0.71784, 'jpeg_compression': 0.6065}", METRICS),
    Mutant("score: single precision", "metrics:max_softmax_score", "logits.double().softmax(dim=1).amax(dim=1)", "logits.softmax(dim=1).amax(dim=1).double()", METRICS),
    Mutant("score: the highest logit", "metrics:max_softmax_score", "logits.double().softmax(dim=1)", "logits.double()", METRICS),
    Mutant("aupr: high confidence is positive", "metrics:area_under_precision_recall", "confidences.argsort()", "confidences.argsort(descending=True)", METRICS),
    Mutant("aupr: the other positive class", "metrics:area_under_precision_recall", "order >= len(scores_in)", "order < len(scores_in)", METRICS),
    Mutant("aupr: ties are separate thresholds", "metrics:area_under_precision_recall", "confidences[order].diff(append=torch.tensor([torch.inf], dtype=torch.float64)) > 0", "confidences[order].diff(append=torch.tensor([torch.inf], dtype=torch.float64)) >= 0", METRICS),
    Mutant("aupr: recall of all examples", "metrics:area_under_precision_recall", "len(scores_out)", "len(order)", METRICS),
    Mutant("aupr: scores that are not finite", "metrics:area_under_precision_recall", "not bool(scores.isfinite().all())", "False", METRICS),
    Mutant("ece: lower edges belong to a bin", "metrics:calibration_error", "torch.bucketize(confidence.double(), edges)", "torch.bucketize(confidence.double(), edges, right=True)", METRICS),
    Mutant("ece: the absolute value of each example", "metrics:calibration_error", "right.double() - confidence.double()", "(right.double() - confidence.double()).abs()", METRICS),
    Mutant("ece: bins count equally", "metrics:calibration_error", "gaps.abs().sum", "gaps.abs().mean", METRICS),
    Mutant("ece: gaps of bins cancel", "metrics:calibration_error", "float(gaps.abs().sum())", "abs(float(gaps.sum()))", METRICS),
    Mutant("ece: ten bins by default", "metrics:", "CALIBRATION_BINS = 15", "CALIBRATION_BINS = 10", METRICS),
    Mutant("metric input: NaN is accepted", "metrics:_check_scores", "not bool(scores.isfinite().all())", "False", METRICS),
    Mutant("metric input: no examples", "metrics:_check_scores", "scores.ndim != 2 or 0 in scores.shape or (not scores.is_floating_point())", "scores.ndim != 2 or not scores.is_floating_point()", METRICS),
)  # fmt: skip
