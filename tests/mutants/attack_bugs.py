"""Planted bugs of evaluations under attacks."""

from tests.mutants.mutant import Mutant

EVALUATION = ("lab/tests/robustness/test_evaluation.py",)
SANITY = ("lab/tests/robustness/test_sanity.py",)
BATCHES = ("lab/tests/robustness/test_batches.py",)
CONFIDENCE = ("lab/tests/robustness/test_confidence.py",)

MUTANTS = (
    Mutant("evaluation: misclassified images are attacked", "evaluation:_attack_batch", "clean == labels", "labels >= 0", EVALUATION),
    Mutant("evaluation: smaller budgets are forgotten", "record:Robustness._worst_right", "result.eps <= eps", "result.eps == eps", EVALUATION),
    Mutant("evaluation: one attack is the worst case", "record:Robustness._worst_right", "right[:len(reached)] &= reached", "right[:len(reached)] = reached", EVALUATION),
    Mutant("evaluation: labels out of range", "robustness.task:clean_predictions", "int(task.labels.min()) < 0 or int(task.labels.max()) >= classes", "False", EVALUATION),
    Mutant("evaluation: the mode is lost", "classifier:evaluated", "module.training = training", "pass", EVALUATION),
    Mutant("evaluation: parameters stay frozen", "classifier:evaluated", "parameter.requires_grad_(gradient)", "pass", EVALUATION),
    Mutant("evaluation: parts of another seed", "evaluation:_evaluate", "task.seed", "0", EVALUATION),
    Mutant("evaluation: parts of another operator", "evaluation:_evaluate", "{'version': __version__, 'torch': torch.__version__, 'weights': weights, 'images': pictures, 'seed': task.seed, 'batch_size': task.batch_size, 'protocol': task.protocol, 'predictions': tensor_fingerprint([clean]), 'scores': f'{predictions.level:.4g}'}", "{'version': __version__, 'torch': torch.__version__, 'weights': weights, 'images': pictures, 'seed': task.seed, 'batch_size': task.batch_size, 'protocol': task.protocol, 'scores': ''}", EVALUATION),
    Mutant("evaluation: finished parts are measured again", "task:Task.part", "stored['result'] if stored is not None else store(path, key, measure())", "store(path, key, measure())", EVALUATION),
    Mutant("evaluation: the paper clips pixels", "evaluation:_attack_batch", "method(scores, inputs, clean, eps=eps, bounds=None, generator=generator)", "method(scores, inputs, clean, eps=eps, bounds=(0.0, 1.0), generator=generator)", EVALUATION),
    Mutant("evaluation: the paper's budget in pixels", "evaluation:_attack_batch", "task.classifier.spread.to(images)", "torch.ones(1, 1, 1)", EVALUATION),
    Mutant("evaluation: unpaired differences", "record:Robustness._require_same_images", "self.labels != other.labels or self.settings.get('images') != other.settings.get('images')", "False and self.settings.get('images') != other.settings.get('images')", EVALUATION),
    Mutant("sanity: gradients of zero pass", "sanity:gradients", "zero <= MOST_ZERO and (not broken)", "not broken", EVALUATION),
    Mutant("sanity: budget 0 is not run", "sanity:budget_zero", "not changed", "True", EVALUATION),
    Mutant("sanity: an unbounded attack may fail", "sanity:unbounded", "share == 0", "share <= 1", EVALUATION),
    Mutant("sanity: the twin is the model", "sanity:transfer", "(None, evidence.twin)", "(None, None)", EVALUATION),
    Mutant("sanity: attacks are compared the wrong way", "sanity:is_weaker", "by_weak - 1", "by_strong - 1", SANITY),
    Mutant("sanity: the largest budget is checked", "evaluation:_evidence", "min(record.budgets, key=lambda budget: abs(record.worst(budget).value - half))", "max(record.budgets)", EVALUATION),
    Mutant("batches: the classifier itself is divided", "classifier:PixelClassifier.in_batches", "other.batch_size = batch_size", "self.batch_size = batch_size; other = self", BATCHES),
    Mutant("batches: features of all points at once", "binarisation:_features", "classifier.split(pixels)", "[pixels]", BATCHES),
    Mutant("batches: examples at once", "task:make_examples", "zip(*(torch.split(x, task.batch_size) for x in (images, labels)), strict=True)", "[(images, labels)]", BATCHES),
    Mutant("calibration: every prediction is right", "robustness.task:CleanPredictions.calibration_error", "self.predicted == labels", "self.predicted >= 0", CONFIDENCE),
    Mutant("detection: other images are not checked", "evaluation:attack", "check_other_images(ood, images)", "pass", CONFIDENCE),
    Mutant("corruption error: of other corruptions", "record:Robustness.corruption_errors", "self.corruptions.keys() != baseline.corruptions.keys()", "False", CONFIDENCE),
    Mutant("corruption error: accuracies as errors", "record:Robustness.corruption_errors", "[1 - accuracy for accuracy in values]", "list(values)", CONFIDENCE),
    Mutant("surrogate: the model itself changes", "classifier:one_step_surrogate", "copy.deepcopy(model)", "model", SANITY),
    Mutant("binarisation: the threshold is below the inner points", "binarisation:binarisation_test", "highest + THRESHOLD * (reached - highest)", "highest - THRESHOLD * (reached - highest)", SANITY),
    Mutant("libraries: global draws are lost", "library_attacks:_isolated", "np.random.set_state(numpy_state)", "pass", SANITY),
    Mutant("libraries: no projection", "library_attacks:_foolbox", "project(raw.detach(), images, eps)", "raw.detach()", SANITY),
    Mutant("intervals: half as wide", "results:bootstrap_mean", "[0.025, 0.975]", "[0.25, 0.75]", SANITY),
)  # fmt: skip
