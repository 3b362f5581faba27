"""Planted bugs in the experiments: cache, runs, estimates and tables."""

from tests.mutants.mutant import Mutant

HERE = "lab/tests/experiments"
LAYERS, PETS = f"{HERE}/crate/test_training.py", "lab/tests/data/test_samples.py"
CACHE, RUNS, EXPERIMENT, ESTIMATES = (
    f"{HERE}/test_{name}.py" for name in ("cache", "training_runs", "experiment", "estimates")
)
FLOOR, STUDY = f"{HERE}/test_floor.py", f"{HERE}/kernel_pca/test_study.py"
TABLES = "tests/report/test_tables.py"
LOSS_FILE, PAPER_LOSS = "experiments/kernel_pca/projection_loss.py", f"{HERE}/kernel_pca/test_projection_loss.py"
VECTORS_FILE, VECTORS = "experiments/kernel_pca/eigenvectors.py", f"{HERE}/kernel_pca/test_eigenvectors.py"
COST_FILE, PAPER_COST = "experiments/kernel_pca/cost.py", f"{HERE}/kernel_pca/test_cost.py"

MUTANTS = (
    Mutant("pets: species read as breeds", "listed_images:read_pet_list", "int(fields[2])", "int(fields[1])", (PETS,)),
    Mutant("pets: names outside the folder accepted", "listed_images:read_pet_list", "not plain", "False", (PETS,)),
    Mutant("layers: cached for any images", "training:measure", "images.test_images[:inputs]", "images.test_images[:1]", (LAYERS,)),
    Mutant("models: torchvision not made importable", "preparing:_convert_gguf", "ensure_torchvision()", "", (f"{HERE}/models/test_preparing.py",)),
    Mutant("projection loss: random values are the model's own", "projection_loss:_of_layer", "_of_values(space, queries, random_map_values(heads, draws=draws, seed=seed))", "own", (PAPER_LOSS,)),
    Mutant("projection loss: terms added", "projection_loss:_of_values", "total - output", "total + output", (PAPER_LOSS,)),
    Mutant("projection loss: queries are keys", "projection_loss:_of_layer", "heads.q", "heads.k", (PAPER_LOSS,)),
    Mutant("projection loss: not measured before training", "projection_loss:_measure", "run.initial_model", "run.model", (PAPER_LOSS,)),
    Mutant("captured heads: one head's map for all", "captured_heads:random_map_values", "x.of_head(head)", "x.of_head(0)", (PAPER_LOSS,)),
    Mutant("projection loss: medians of means", "projection_loss:projection_losses", "layer[name].flatten()", "layer[name].mean()[None]", (PAPER_LOSS,)),
    Mutant("projection loss: one seed alone", "projection_loss:_range", "{min(values), max(values)}", "{max(values)}", (PAPER_LOSS,)),
    Mutant("study: another model before training", "study:StudyRun.initial_model", "self.seed", "0", (PAPER_LOSS,)),
    Mutant("eigenvectors: least squares as the printed inverse", "published:recovered_vectors", "inverse.double() @ w", "w - w.mean(dim=-2, keepdim=True)", (VECTORS,)),
    Mutant("eigenvectors: exactly singular accepted", "published:recovered_vectors", "bool(failed)", "False", (VECTORS,)),
    Mutant("eigenvectors: the model's keys as random ones", "eigenvectors:_of_layer", "_of_values(random_space, heads.v)", "_of_values(space, heads.v)", (VECTORS,)),
    Mutant("eigenvectors: the model's values as random ones", "eigenvectors:_of_layer", "random_map_values(heads, draws=1, seed=seed)[0]", "heads.v", (VECTORS,)),
    Mutant("eigenvectors: the trained model as before training", "eigenvectors:_measure", "run.initial_model", "run.model", (VECTORS,)),
    Mutant("memory: freed tensors stay counted", "measured_cost:_LiveBytes._count.forget", "self.now -= size", "pass", (PAPER_COST,)),
    Mutant("memory: tensors changed in place counted", "measured_cost:_LiveBytes.__torch_dispatch__", "isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs", "isinstance(leaf, Tensor)", (PAPER_COST,)),
    Mutant("cost: forward passes in training mode", "measured_cost:forward_seconds", "_build(settings).eval()", "_build(settings)", (PAPER_COST,)),
    Mutant("cost: ratios to softmax only", "cost:_table", "_ratio(costs.forward, variant, REVIEWED_TO)", "_ratio(costs.forward, variant, BASELINE)", (PAPER_COST,)),
    Mutant("cost: one operator for all variants", "cost:_model_settings", "settings['attention']", "'softmax'", (PAPER_COST,)),
    Mutant("run: no measure after epochs", "run:run_recipe", "{**evaluate(model), **after_epoch(model)}", "evaluate(model)", ("lab/tests/training/test_recipe_file.py",)),
    Mutant("run: training images as held out", "run:held_out_images", "read_images(data).test_images", "read_images(data).train_images", ("lab/tests/training/test_recipe_file.py",)),
    Mutant("cache: key ignored", "stored_json:load_cached", "'result' not in stored or stored.get('key') != _plain(key)", "'result' not in stored", (CACHE,)),
    Mutant("cache: code ignored", "cache:cached", "code_fingerprint(package)", "0", (CACHE,)),
    Mutant("cache: damage without a notice", "stored_json:load_cached", "notice(f'{path} is damaged or has no checksum; measuring again')", "pass", (CACHE,)),
    Mutant("cache: fingerprint without dtype", "storage:tensor_fingerprint", "(tuple(tensor.shape), tensor.dtype)", "tuple(tensor.shape)", (CACHE,)),
    Mutant("checksum: not compared", "stored_json:read_json", "content.pop(CHECKSUM) != _checksum(content)", "not content.pop(CHECKSUM)", ("tests/test_stored_json.py", CACHE)),
    Mutant("runs: one seed for all", "experiments.study:Study.recipe", "dataclasses.replace(file.recipe, seed=seed)", "file.recipe", (RUNS,)),
    Mutant("runs: images not identified", "training.run:_images_in_memory", "_describe(file, model, images.fingerprint())", "_describe(file, model, images.name)", (RUNS,)),
    Mutant("runs: any accuracy", "experiments.study:StudyRun.accuracy", "not 0 <= right <= images", "False", (RUNS,)),
    Mutant("runs: warm-up longer than training", "experiments.study:Study.recipe", "min(recipe.warmup, request.epochs / 4)", "recipe.warmup", (RUNS,)),
    Mutant("estimates: unpaired seeds", "estimates:differences", "(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))", "(a - b for a, b in zip(ours.values(), theirs.values()))", (ESTIMATES,)),
    Mutant("estimates: unadjusted", "estimates:differences", "false_discovery_rate(np.array([_p_value(by_seed) for *_, by_seed in paired]))", "np.array([_p_value(by_seed) for *_, by_seed in paired])", (ESTIMATES,)),
    Mutant("estimates: power of one side", "estimates:_detectable_errors", "1 - LEVEL / 2", "1 - LEVEL", (ESTIMATES,)),
    Mutant("estimates: the spread is known", "estimates:_detectable_errors", "np.sqrt(draws / freedom)", "1.0 + 0 * draws", (ESTIMATES,)),
    Mutant("estimates: a p-value without spread", "estimates:_difference", "adjusted if known else None", "adjusted", (ESTIMATES,)),
    Mutant("floor: the mean is enough", "floor:Floor._exceeded", "found.mean if found.interval is None else found.interval.low", "found.mean", (FLOOR,)),
    Mutant("floor: at the floor is above it", "floor:Floor._exceeded", "(found.mean if found.interval is None else found.interval.low) > sign * self.value", "(found.mean if found.interval is None else found.interval.low) >= sign * self.value", (FLOOR,)),
    Mutant("floor: higher is always better", "floor:Floor._exceeded", "-1 if self.lower_is_better else 1", "1", (FLOOR,)),
    Mutant("study: untrained variants are compared", "study:compared", "variant in trained and baseline in trained", "baseline in trained", (STUDY,)),
    Mutant("study: an untrained baseline is compared", "study:compared", "variant in trained and baseline in trained", "variant in trained", (STUDY,)),
    Mutant("study: an untrained variant has measures", "study:measured_table", "variant not in trained and name != floor.measure", "False", (STUDY,)),
    Mutant("study: an untrained variant is not named", "study:measured_table", "text if variant in trained else f'{text}, {DID_NOT_TRAIN}'", "text", (STUDY,)),
    Mutant("study: an interval without spread", "study:_difference_cell", "mean_of(item.estimate) if item.detectable is None else plus_minus(item.estimate)", "plus_minus(item.estimate)", (STUDY,)),
    Mutant("tables: bars as they are", "tables:as_markdown", "cell.replace('|', '\\\\|')", "cell", (EXPERIMENT,)),
    Mutant("tables: low ranks dropped first", "tables:as_columns", "field.rank <= most", "field.rank >= most", (TABLES,)),
    Mutant("experiment: damage as a result", "experiment:Experiment.last_run", "LastRun(headline=f'{path.name} is damaged; run the experiment again', day='unknown')", "LastRun(headline='', day='')", (EXPERIMENT,)),
    Mutant("experiment: a path in the command", "experiment:Experiment.command", "request.data.name or '.'", "request.data", (EXPERIMENT,)),
    Mutant("figures: no fixed ids", "figures:", "{'svg.hashsalt': 'clearhead', 'svg.fonttype': 'none', 'font.size': 9, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.color': '#e3e5e9', 'legend.frameon': False, 'legend.handlelength': 2.6}", "{'svg.hashsalt': None, 'svg.fonttype': 'none', 'font.size': 9, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.color': '#e3e5e9', 'legend.frameon': False, 'legend.handlelength': 2.6}", (EXPERIMENT,)),
    Mutant("figures: dated", "figures:_save", "{'Date': None}", "{}", (EXPERIMENT,)),
)  # fmt: skip
