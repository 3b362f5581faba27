"""Planted bugs of evaluations under attacks."""

from fault import Fault

EVALUATION = ("tests/robustness/test_evaluation.py",)
SANITY = ("tests/robustness/test_sanity.py",)
BATCHES = ("tests/robustness/test_batches.py",)
CONFIDENCE = ("tests/robustness/test_confidence.py",)

ATTACK_FAULTS = (
    Fault("evaluation: misclassified images are attacked", "robustness/evaluation.py", "    right = clean == labels\n    predicted", "    right = labels >= 0\n    predicted", EVALUATION),
    Fault("evaluation: smaller budgets are forgotten", "robustness/record.py", "if result.eps <= eps:", "if result.eps == eps:", EVALUATION),
    Fault("evaluation: one attack is the worst case", "robustness/record.py", "right[: len(reached)] &= reached", "right[: len(reached)] = reached", EVALUATION),
    Fault("evaluation: labels out of range", "robustness/confidence.py", "int(task.labels.min()) < 0 or int(task.labels.max()) >= classes", "False", EVALUATION),
    Fault("evaluation: the mode is lost", "robustness/classifier.py", "            module.training = training\n", "            pass\n", EVALUATION),
    Fault("evaluation: parameters stay frozen", "robustness/classifier.py", "            parameter.requires_grad_(gradient)\n", "            pass\n", EVALUATION),
    Fault("evaluation: parts of another seed", "robustness/evaluation.py", "\"seed\": task.seed,", "\"seed\": 0,", EVALUATION),
    Fault("evaluation: parts of another operator", "robustness/evaluation.py", "\"predictions\": tensor_fingerprint([clean]), \"scores\": f\"{predictions.level:.4g}\",", "\"scores\": \"\",", EVALUATION),
    Fault("evaluation: finished parts are measured again", "robustness/task.py", "return stored[\"result\"] if stored is not None else store(path, key, measure())", "return store(path, key, measure())", EVALUATION),
    Fault("evaluation: the paper clips pixels", "robustness/evaluation.py", "bounds=None, generator=generator", "bounds=(0.0, 1.0), generator=generator", EVALUATION),
    Fault("evaluation: the paper's budget in pixels", "robustness/evaluation.py", "spread = task.classifier.spread.to(images)", "spread = torch.ones(1, 1, 1)", EVALUATION),
    Fault("evaluation: unpaired differences", "robustness/record.py", "if self.labels != other.labels or", "if False and", EVALUATION),
    Fault("sanity: gradients of zero pass", "robustness/sanity.py", "zero <= MOST_ZERO and not broken", "not broken", EVALUATION),
    Fault("sanity: budget 0 is not run", "robustness/sanity.py", "return _line(\"budget 0 equals clean\", not changed, text)", "return _line(\"budget 0 equals clean\", True, text)", EVALUATION),
    Fault("sanity: an unbounded attack may fail", "robustness/sanity.py", "share == 0, text)", "share <= 1, text)", EVALUATION),
    Fault("sanity: the twin is the model", "robustness/sanity.py", "for scores in (None, evidence.twin))", "for scores in (None, None))", EVALUATION),
    Fault("sanity: attacks are compared the wrong way", "robustness/sanity.py", "binom.sf(by_weak - 1, by_strong + by_weak, 0.5)", "binom.sf(by_strong - 1, by_strong + by_weak, 0.5)", SANITY),
    Fault("sanity: the largest budget is checked", "robustness/evaluation.py", "eps = min(record.budgets, key=lambda budget: abs(record.worst(budget).value - half))", "eps = max(record.budgets)", EVALUATION),
    Fault("batches: the classifier itself is divided", "robustness/classifier.py", "        other.batch_size = batch_size\n", "        self.batch_size = batch_size\n        other = self\n", BATCHES),
    Fault("batches: features of all points at once", "robustness/binarisation.py", "    for part in classifier.split(pixels):\n", "    for part in [pixels]:\n", BATCHES),
    Fault("batches: examples at once", "robustness/task.py", "zip(*(torch.split(x, task.batch_size) for x in (images, labels)), strict=True)", "[(images, labels)]", BATCHES),
    Fault("calibration: every prediction is right", "robustness/confidence.py", "(self.predicted == labels).cpu()", "(self.predicted >= 0).cpu()", CONFIDENCE),
    Fault("detection: other images are not checked", "robustness/evaluation.py", "        check_other_images(ood, images)\n", "        pass\n", CONFIDENCE),
    Fault("corruption error: of other corruptions", "robustness/record.py", "if self.corruptions.keys() != baseline.corruptions.keys():", "if False:", CONFIDENCE),
    Fault("corruption error: accuracies as errors", "robustness/record.py", "[1 - accuracy for accuracy in values]", "list(values)", CONFIDENCE),
    Fault("surrogate: the model itself changes", "robustness/classifier.py", "surrogate = copy.deepcopy(model)", "surrogate = model", SANITY),
    Fault("binarisation: the threshold is below the inner points", "robustness/binarisation.py", "threshold = highest + THRESHOLD * (reached - highest)", "threshold = highest - THRESHOLD * (reached - highest)", SANITY),
    Fault("libraries: global draws are lost", "robustness/library_attacks.py", "            np.random.set_state(numpy_state)\n", "            pass\n", SANITY),
    Fault("libraries: no projection", "robustness/library_attacks.py", "    return project(raw.detach(), images, eps)", "    return raw.detach()", SANITY),
    Fault("intervals: half as wide", "robustness/results.py", "np.quantile(drawn, [0.025, 0.975])", "np.quantile(drawn, [0.25, 0.75])", SANITY),
)  # fmt: skip
