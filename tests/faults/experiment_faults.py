"""Planted bugs in the experiments: cache, runs, estimates, tables and attention maps."""

from fault import Fault

HERE = "tests/experiments"
MAPS, PETS, LAYERS = (f"{HERE}/crate/test_{name}.py" for name in ("attention_maps", "pets", "training"))
CACHE, RUNS, EXPERIMENT, ESTIMATES, TABLES = (
    f"{HERE}/test_{name}.py" for name in ("cache", "training_runs", "experiment", "estimates", "tables")
)
ATTENTION_MAPS, PETS_FILE = "experiments/crate/attention_maps.py", "experiments/crate/pets.py"
LOSS_FILE, PAPER_LOSS = "experiments/paper/projection_loss.py", f"{HERE}/paper/test_projection_loss.py"
VECTORS_FILE, VECTORS = "experiments/paper/eigenvectors.py", f"{HERE}/paper/test_eigenvectors.py"
COST_FILE, PAPER_COST = "experiments/paper/cost.py", f"{HERE}/paper/test_cost.py"

EXPERIMENT_FAULTS = (
    Fault("maps: weights of another token", ATTENTION_MAPS, "heads.q[:, :, token, None, :]", "heads.q[:, :, 0, None, :]", (MAPS,)),
    Fault("maps: class token's weight on itself included", ATTENTION_MAPS, "weights[..., first:]", "weights[..., : y * x]", (MAPS,)),
    Fault("maps: mask ignored", ATTENTION_MAPS, "scores = scores.masked_fill(~visible, -torch.inf)", "pass", (MAPS,)),
    Fault("maps: one patch too few", ATTENTION_MAPS, "selected = (before < mass", "selected = (share < mass", (MAPS,)),
    Fault("maps: the smallest weights", ATTENTION_MAPS, "descending=True, stable=True", "descending=False, stable=True", (MAPS,)),
    Fault("maps: patches mirrored", ATTENTION_MAPS, "repeat_interleave(size[0] // y, dim=-2)", "repeat_interleave(size[0] // y, dim=-2).flip(-1)", (MAPS,)),
    Fault("maps: borders counted", ATTENTION_MAPS, "keep = torch.ones_like(truth) if counted is None else counted", "keep = torch.ones_like(truth)", (MAPS,)),
    Fault("maps: background left out", ATTENTION_MAPS, "share(~predicted, ~truth)", "share(predicted, truth)", (MAPS,)),
    Fault("maps: the worst head", ATTENTION_MAPS, "argmax())", "argmin())", (MAPS,)),
    Fault("pets: species read as breeds", "data/listed_images.py", "int(fields[2]) - 1", "int(fields[1]) - 1", (PETS,)),
    Fault("pets: border counted as animal", PETS_FILE, "objects=masks == ANIMAL", "objects=masks != BACKGROUND", (PETS,)),
    Fault("pets: names outside the folder accepted", "data/listed_images.py", "or not plain:", "or False:", (PETS,)),
    Fault("pets: any mask values accepted", PETS_FILE, "values.ndim != 2 or not bool", "values.ndim != 2 and not bool", (PETS,)),
    Fault("segmentation: best head on the images of its score", "experiments/crate/segmentation.py", "chosen = best_head(heads[::2])", "chosen = best_head(heads[1::2])", (f"{HERE}/crate/test_segmentation.py",)),
    Fault("layers: cached for any images", "experiments/crate/training.py", "images.test_images[:inputs])\n        # An audit", "images.test_images[:1])\n        # An audit", (LAYERS,)),
    Fault("models: torchvision not made importable", "experiments/models/preparing.py", "    ensure_torchvision()  #", "    #", (f"{HERE}/models/test_preparing.py",)),
    Fault("projection loss: random values are the model's own", LOSS_FILE, "_of_values(space, queries, random_map_values(heads, draws=draws, seed=seed))", "own", (PAPER_LOSS,)),
    Fault("projection loss: terms added", LOSS_FILE, '"published_loss": total - output', '"published_loss": total + output', (PAPER_LOSS,)),
    Fault("projection loss: queries are keys", LOSS_FILE, "queries_in_space(space, heads.q.unsqueeze(-3))", "queries_in_space(space, heads.k.unsqueeze(-3))", (PAPER_LOSS,)),
    Fault("projection loss: not measured before training", LOSS_FILE, "[measure(run.initial_model()), *run.log]", "[measure(run.model()), *run.log]", (PAPER_LOSS,)),
    Fault("captured heads: one head's map for all", "experiments/paper/captured_heads.py", "x.of_head(head).mT for head in range(count)", "x.of_head(0).mT for head in range(count)", (PAPER_LOSS,)),
    Fault("study: another model before training", "experiments/paper/study.py", "generator=torch.Generator().manual_seed(self.seed)", "generator=torch.Generator().manual_seed(0)", (PAPER_LOSS,)),
    Fault("eigenvectors: least squares as the printed inverse", "theories/kernel_pca/published.py", "unit_columns(inverse.double() @ w)", "unit_columns(w - w.mean(dim=-2, keepdim=True))", (VECTORS,)),
    Fault("eigenvectors: exactly singular accepted", "theories/kernel_pca/published.py", "if bool(failed):", "if False:", (VECTORS,)),
    Fault("eigenvectors: the model's keys as random ones", VECTORS_FILE, "_of_values(random_space, heads.v)", "_of_values(space, heads.v)", (VECTORS,)),
    Fault("eigenvectors: the model's values as random ones", VECTORS_FILE, "_of_values(space, random_map_values(heads, draws=1, seed=seed)[0])", "_of_values(space, heads.v)", (VECTORS,)),
    Fault("eigenvectors: the trained model as before training", VECTORS_FILE, "measure_gammas(run.initial_model(), images", "measure_gammas(run.model(), images", (VECTORS,)),
    Fault("memory: freed tensors stay counted", "experiments/paper/peak_memory.py", "self.now -= size", "pass", (PAPER_COST,)),
    Fault("memory: tensors changed in place counted", "experiments/paper/peak_memory.py", "and id(leaf.untyped_storage()) not in inputs", "", (PAPER_COST,)),
    Fault("cost: forward passes in training mode", COST_FILE, "_build(settings).eval()", "_build(settings)", (PAPER_COST,)),
    Fault("cost: ratios to softmax only", COST_FILE, "_ratio(costs.forward, variant, REVIEWED_TO)", "_ratio(costs.forward, variant, BASELINE)", (PAPER_COST,)),
    Fault("cost: one operator for all variants", COST_FILE, 'layer_operators(settings["attention"], layers=layers)', 'layer_operators("softmax", layers=layers)', (PAPER_COST,)),
    Fault("run: no measure after epochs", "training/run.py", "{**evaluate(model), **after_epoch(model)}", "evaluate(model)", ("tests/training/test_recipe_file.py",)),
    Fault("run: training images as held out", "training/run.py", "read_images(data).test_images[:count]", "read_images(data).train_images[:count]", ("tests/training/test_recipe_file.py",)),
    Fault("cache: key ignored", "stored_json.py", 'if "result" in stored and stored.get("key") == _plain(key)', 'if "result" in stored', (CACHE,)),
    Fault("cache: code ignored", "experiments/cache.py", "code_fingerprint(package) for package in packages", "0 for package in packages", (CACHE,)),
    Fault("cache: damage without a notice", "stored_json.py", 'notice(f"{path} is damaged or has no checksum; measuring again")', "pass", (CACHE,)),
    Fault("cache: fingerprint without dtype", "storage.py", "str((tuple(tensor.shape), tensor.dtype))", "str(tuple(tensor.shape))", (CACHE,)),
    Fault("checksum: not compared", "stored_json.py", "content.pop(CHECKSUM) != _checksum(content)", "not content.pop(CHECKSUM)", ("tests/test_stored_json.py", CACHE)),
    Fault("runs: one seed for all", "experiments/training_runs.py", "generator = torch.Generator().manual_seed(recipe.seed)", "generator = torch.Generator().manual_seed(0)", (RUNS,)),
    Fault("runs: images not identified", "experiments/training_runs.py", '"contents": images.fingerprint(), **(describe or {})', "**(describe or {})", (RUNS,)),
    Fault("runs: any accuracy", "experiments/training_runs.py", "if not 0 <= right <= images:", "if False:", (RUNS,)),
    Fault("runs: warm-up longer than training", "experiments/training_runs.py", "warmup = min(self.recipe.warmup, epochs / 4)", "warmup = self.recipe.warmup", (RUNS,)),
    Fault("robustness: any count", "experiments/robustness/runs.py", "if not 0 <= self.clean <= self.images or any", "if False and any", (f"{HERE}/robustness/test_report.py",)),
    Fault("estimates: unpaired seeds", "experiments/estimates.py", "ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())", "a - b for a, b in zip(ours.values(), theirs.values())", (ESTIMATES,)),
    Fault("estimates: unadjusted", "experiments/estimates.py", "adjusted = false_discovery_rate(np.array(", "adjusted = (np.array(", (ESTIMATES,)),
    Fault("tables: bars as they are", "experiments/tables.py", 'cell.replace("|", "\\\\|")', "cell", (EXPERIMENT,)),
    Fault("tables: low ranks dropped first", "experiments/tables.py", "if field.rank <= most]", "if field.rank >= most]", (TABLES,)),
    Fault("experiment: damage as a result", "experiments/experiment.py", 'headline=f"{path.name} is damaged; run the experiment again", day="unknown"', 'headline="", day=""', (EXPERIMENT,)),
    Fault("experiment: a path in the command", "experiments/experiment.py", "request.data.name or '.'", "request.data", (EXPERIMENT,)),
    Fault("figures: no fixed ids", "experiments/figures.py", '"svg.hashsalt": "clearhead",', '"svg.hashsalt": None,', (EXPERIMENT,)),
    Fault("figures: dated", "experiments/figures.py", '"svg": {"Date": None}', '"svg": {}', (EXPERIMENT,)),
)  # fmt: skip
