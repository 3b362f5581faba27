"""Bugs that the nearest tests once missed: of shards, the engine, attacks, trainings and calibrations."""

from tests.mutants.mutant import Mutant

SHARDS = ("tests/audit/test_merging.py", "tests/audit/test_wrong_state.py", "tests/audit/test_shards.py")
REQUIREMENTS = ("tests/audit/test_requirements.py",)
GROUPS = ("tests/theories/max_margin/test_groups.py",)
WORKERS = ("tests/audit/test_merging.py",)
ATTACKS = ("lab/tests/robustness/test_attacks.py",)
SANITY = ("lab/tests/robustness/test_sanity.py",)
EVALUATION = ("lab/tests/robustness/test_evaluation.py",)
LOOP = ("lab/tests/training/test_loop.py",)
CALIBRATION = ("tests/calibration/test_runs.py",)

MUTANTS = (
    Mutant("missed: every shard measures the baseline", "measuring:measure_part", "sum(scanned.sizes[:own_batches.start]) < BASELINE_INPUTS", "True", SHARDS),
    Mutant("missed: every shard measures the whole model", "measuring:measure_part", "shard.number == 1", "True", SHARDS),
    Mutant("missed: control inputs are not compared", "part:Part.differences", "name != 'workers'", "name not in ('workers', 'control_inputs')", SHARDS),
    Mutant("missed: losses are not compared", "part:Part.differences", "name != 'workers'", "name not in ('workers', 'loss')", SHARDS),
    Mutant("missed: tokens are lost in a merge", "part:Pass.merge", "self.tokens += other.tokens", "pass", SHARDS),
    Mutant("missed: shards in the order of their names", "shards:merge_parts", "part.shard.number", "part.shard.file_name", SHARDS),
    Mutant("missed: other machines are refused", "part:Part.differences", "dataclasses.replace(other.manifest, machine=self.manifest.machine)", "other.manifest", SHARDS),
    Mutant("missed: a requirement at its boundary", "results:_with_requirements", "values[needed.statistic, finding.layer, finding.head] < needed.at_least", "values[needed.statistic, finding.layer, finding.head] <= needed.at_least", REQUIREMENTS),
    Mutant("missed: a requirement is ignored", "results:_with_requirements", "not values[needed.statistic, finding.layer, finding.head] < needed.at_least", "True", REQUIREMENTS),
    Mutant("missed: groups have the random numbers of inputs", "groups:Groups._end_group", "Random(last.seed, last.layer, OF_GROUPS, group.number)", "Random(last.seed, last.layer, group.number)", GROUPS),
    Mutant("missed: one worker for all layers", "workers:Workers._owner", "layer % len(self._workers)", "0", WORKERS),
    Mutant("missed: sums of any format", "state_file:read_state", "metadata.get('format') != FORMAT", "False", SHARDS),
    Mutant("missed: SPSA without correcting its averages", "attacks:spsa", "first / (1 - 0.9 ** step) / ((second / (1 - 0.999 ** step)).sqrt() + 1e-08)", "first / (second.sqrt() + 1e-08)", ATTACKS),
    Mutant("missed: PGD takes smaller steps", "attacks:pgd", "2.5 * eps / steps", "1.5 * eps / steps", ATTACKS),
    Mutant("missed: a tie counts as fooled", "attacks:pgd", "margin(scores, x, of_near) >= 0", "margin(scores, x, of_near) > 0", ATTACKS),
    Mutant("missed: one attack stands for all of its kind", "sanity:Evidence.right_by_results", "(predicted == self.all_labels[:count].cpu()).all(dim=0)", "(predicted == self.all_labels[:count].cpu())[0]", SANITY),
    Mutant("missed: budget zero passes on a change", "sanity:budget_zero", "not changed", "changed < len(right)", EVALUATION),
    Mutant("missed: parts of another protocol", "evaluation:_evaluate", "{'version': __version__, 'torch': torch.__version__, 'weights': weights, 'images': pictures, 'seed': task.seed, 'batch_size': task.batch_size, 'protocol': task.protocol, 'predictions': tensor_fingerprint([clean]), 'scores': f'{predictions.level:.4g}'}", "{'version': __version__, 'torch': torch.__version__, 'weights': weights, 'images': pictures, 'seed': task.seed, 'batch_size': task.batch_size, 'predictions': tensor_fingerprint([clean]), 'scores': f'{predictions.level:.4g}'}", EVALUATION),
    Mutant("missed: the paper's protocol attacks labels", "evaluation:_attack_batch", "method(scores, inputs, clean, eps=eps, bounds=None, generator=generator)", "method(scores, inputs, labels, eps=eps, bounds=None, generator=generator)", EVALUATION),
    Mutant("missed: a baseline of other images", "record:Robustness.with_baseline", "self._require_same_images(baseline)", "pass", EVALUATION),
    Mutant("missed: a training that goes on loses its seconds", "loop:train", "time.perf_counter() - start.seconds", "time.perf_counter()", LOOP),
    Mutant("missed: a calibration of another version goes on", "runs:_begin", "(stored.settings, stored.version) != (empty.settings, empty.version)", "stored.settings != empty.settings", CALIBRATION),
)  # fmt: skip
