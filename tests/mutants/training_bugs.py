"""Bugs in training: tasks, batches, processes, averages, signals, evaluation and recipe files."""

from tests.mutants.mutant import Mutant

TASKS = ("lab/tests/training/test_tasks.py",)
MEASURES = ("lab/tests/training/test_measures.py",)
STOPPING = ("lab/tests/training/test_stopping.py",)
FILES = ("lab/tests/training/test_recipe_file.py",)
PROCESSES = ("lab/tests/training/test_distributed.py",)
COMPILE = ("lab/tests/training/test_compile.py",)
BFLOAT16 = ("lab/tests/training/test_bfloat16.py",)
REPEATS = ("lab/tests/data/test_batches.py", "lab/tests/training/test_tasks.py")

MUTANTS = (
    Mutant("task: mixup keeps the labels", "tasks:Classification.losses", "share * losses + (1 - share) * other", "losses", TASKS),
    Mutant("task: mixup without the neighbour's smoothing", "tasks:Classification.losses", "cross_entropy(logits, _exchange(targets), label_smoothing=self.smoothing, reduction='none')", "cross_entropy(logits, _exchange(targets), reduction='none')", TASKS),
    Mutant("task: rows are mixed with any row", "tasks:_exchange", "rows.view(-1, 2, *rows.shape[1:]).flip(1).reshape(rows.shape)", "rows.flip(0)", TASKS),
    Mutant("task: cutmix counts the pixels before they are cut off", "tasks:mix_neighbours", "1 - replaced", "share", TASKS),
    Mutant("task: cutmix only", "tasks:mix_neighbours", "mixup == 0 or coin < 0.5", "True", TASKS),
    Mutant("task: another distribution of shares", "tasks:_draw_beta", "torch.full((2,), alpha, dtype=torch.float64)", "torch.full((2,), 1.0, dtype=torch.float64)", TASKS),
    Mutant("task: ignored pixels count", "tasks:Segmentation.losses", "nll_loss(logs, targets, ignore_index=IGNORED, reduction='none')", "nll_loss(logs, targets, ignore_index=-1, reduction='none')", TASKS),
    Mutant("task: the mean over all pixels", "tasks:Segmentation.losses", "targets != IGNORED", "targets >= 0", TASKS),
    Mutant("batches: tokens are their own targets", "batches:TokenBatches.epoch", "pieces[:, 1:]", "pieces[:, :-1]", TASKS),
    Mutant("batches: text is always cut at the same places", "batches:TokenBatches.epoch", "int(torch.randint(self.context, (), generator=generator))", "0", TASKS),
    Mutant("batches: augmentation is drawn for a process's rows", "batches:TensorBatches.epoch", "batch = self.augment(as_pixels(self.images[chosen]), seeded_generator(self.seed, 2 * step + 1)); yield (batch[rows], self.targets[chosen[rows]])", "batch = self.augment(as_pixels(self.images[chosen[rows]]), seeded_generator(self.seed, 2 * step + 1)); yield (batch, self.targets[chosen[rows]])", TASKS),
    Mutant("batches: a later start begins at the first batch", "batches:TokenBatches.epoch", "range(start, self.steps)", "range(self.steps)", TASKS),
    Mutant("step: parts are added, not averaged", "loop:Stepper.__call__", "losses.mean() / len(parts)", "losses.mean()", TASKS),
    Mutant("step: Adam for AdamW", "loop:_optimizer", "torch.optim.AdamW if recipe.optimizer == 'adamw' else torch.optim.Adam", "torch.optim.Adam", TASKS),
    Mutant("step: always float32", "loop:Stepper.__call__", "recipe.precision == 'bfloat16'", "False", TASKS),
    Mutant("average: the decay of the other side", "checkpoint:WeightAverage.update", "1 - self.decay", "self.decay", TASKS),
    Mutant("average: the weights stay averaged", "checkpoint:WeightAverage.applied", "try:\n    yield\nfinally:\n    self._exchange()", "yield", TASKS),
    Mutant("average: not used at the end", "loop:train", "take_step.average.apply()", "pass", ("lab/tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Mutant("average: not evaluated", "loop:train", "take_step.average.applied() if take_step.average is not None else nullcontext()", "nullcontext()", ("lab/tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Mutant("average: not in the checkpoint", "checkpoint:_tensors", "state.average is not None", "False", ("lab/tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Mutant("dropout: another mask after an interruption", "loop:Stepper.__call__", "torch.manual_seed(_dropout_seed(recipe.seed, step, self.processes))", "", ("lab/tests/training/test_loop.py::test_dropout_is_a_function_of_seed_and_step",)),
    Mutant("dropout: the same mask at every step", "loop:Stepper.__call__", "_dropout_seed(recipe.seed, step, self.processes)", "_dropout_seed(recipe.seed, 0, self.processes)", ("lab/tests/training/test_loop.py::test_dropout_is_a_function_of_seed_and_step",)),
    Mutant("signals: the run goes on", "loop:train", "if stopping: stop.deliver()", "", STOPPING),
    Mutant("signals: no checkpoint", "loop:train", "ended or stopping or step % checkpoint_every == 0", "ended or step % checkpoint_every == 0", STOPPING),
    Mutant("signals: the second one waits too", "training.loop:StopRequest._handle", "self.deliver()", "pass", STOPPING),
    Mutant("metrics: lines after the checkpoint stay", "metrics:Metrics.__init__", "_step(line) <= step", "_step(line) < float('inf')", STOPPING),
    Mutant("processes: all take the first rows", "distributed:Processes.rows", "slice(self.rank * share, (self.rank + 1) * share)", "slice(0, share)", PROCESSES),
    Mutant("perplexity: tokens are predicted twice", "evaluation:measure_perplexity", "row[done - start:]", "row", MEASURES),
    Mutant("perplexity: the end of the text is left out", "evaluation:measure_perplexity", "starts.append(len(tokens) - 1 - length)", "pass", MEASURES),
    Mutant("evaluation: in training mode", "evaluation:evaluating", "model.eval()", "", MEASURES),
    Mutant("overlap: the union counts the intersection twice", "evaluation:Overlap.by_class", "counts.sum(dim=0) + counts.sum(dim=1) - counts.diagonal()", "counts.sum(dim=0) + counts.sum(dim=1)", MEASURES),
    Mutant("overlap: ignored pixels count", "evaluation:measure_overlap", "masks != ignored", "masks >= 0", MEASURES),
    Mutant("recipe file: unknown keys are ignored", "recipe_file:_check_keys", "key not in known", "False", FILES),
    Mutant("recipe file: text for a number", "records:_number_or_text", "not isinstance(value, accepted)", "False", FILES),
    Mutant("recipe file: one operator for all layers", "recipe_file:layer_operators", "operators[int(number)] = layer_operators(entry, layers=1)[0]", "pass", FILES),
    Mutant("recipe file: no augmentation", "run:_images_in_memory", "changes if file.data.shift or file.data.flip else None", "None", FILES),
    Mutant("recipe file: a run does not know its data", "run:_describe", "{**settings, 'contents': contents}", "{'contents': contents}", FILES),
    Mutant("repeats: copies have the same augmentation", "batches:_Rows._row", "_seed(self._seed, ROW, self._epoch, index)", "_seed(self._seed, ROW, self._epoch, index % len(self._samples))", REPEATS),
    Mutant("repeats: the same augmentation in every epoch", "batches:_Rows._row", "self._epoch", "0", REPEATS),
    Mutant("repeats: copies are neighbours", "batches:batch_rows", "order[:steps * samples].view(steps, samples)[:, row % samples] + len(order) * (row // samples)", "order[:steps * samples].view(steps, samples)[:, row // repeats] + len(order) * (row % repeats)", REPEATS),
    Mutant("repeats: copies are in different batches", "batches:batch_rows", "order[:steps * samples].view(steps, samples)[:, row % samples]", "order[:steps * samples].view(steps, samples)[(torch.arange(steps)[:, None] + row // samples) % steps, row % samples]", REPEATS),
    Mutant("repeats: every image once", "batches:batch_rows", "math.ceil(batch_size / repeats)", "batch_size", REPEATS),
    Mutant("repeats: every image in many batches", "batches:batch_rows", "order[:steps * samples].view", "order[:samples].expand", REPEATS),
    Mutant("repeats: impossible numbers", "batches:check_repeats", "not 1 <= repeats <= batch_size", "False", REPEATS),
    Mutant("repeats: ignored for images in memory", "run:_images_in_memory", "TensorBatches(images.train_images, images.train_labels, batch_size=recipe.batch_size, seed=recipe.seed, augment=changes if file.data.shift or file.data.flip else None, repeats=file.data.repeats)", "TensorBatches(images.train_images, images.train_labels, batch_size=recipe.batch_size, seed=recipe.seed, augment=changes if file.data.shift or file.data.flip else None)", FILES),
    Mutant("repeats: ignored for images in files", "run:_samples", "SampleBatches(training, batch_size=recipe.batch_size, seed=recipe.seed, transform=image_transform(file.data.augmentation, size, train=True), repeats=file.data.repeats, **decoding)", "SampleBatches(training, batch_size=recipe.batch_size, seed=recipe.seed, transform=image_transform(file.data.augmentation, size, train=True), **decoding)", FILES),
    Mutant("repeats: ignored for text", "run:_language", "file.data.repeats != 1", "False", FILES),
    Mutant("repeats: a run does not know them", "run:_describe", "settings['repeats'] == 1", "True", FILES),
    Mutant("compile: ignored", "loop:Stepper.__init__", "recipe.compile", "False", COMPILE),
    Mutant("compile: its names in the checkpoint", "loop:train", "State(model=model, optimizer=take_step.optimizer, average=take_step.average, processes=processes)", "State(model=torch.compile(model) if recipe.compile else model, optimizer=take_step.optimizer, average=take_step.average, processes=processes)", COMPILE),
    Mutant("compile: draws are compiled too", "loop:_Losses.forward", "self.task.losses(self.model, *drawn)", "self.task.losses(self.model, *self.task.draw(drawn[0], drawn[1], seeded_generator(0, 0)))", COMPILE),
    Mutant("bfloat16: the weights are converted", "loop:Stepper.__init__", "_optimizer(model, recipe)", "_optimizer(model.bfloat16() if recipe.precision == 'bfloat16' else model, recipe)", BFLOAT16),
    Mutant("bfloat16: an adaptive softmax in bfloat16", "language:_adaptive_loss", "x.to(adaptive.head.weight.dtype)", "x.bfloat16()", BFLOAT16),
    Mutant("bfloat16: the evaluation too", "loop:train", "results = task.evaluate(model)", "with torch.autocast('cpu', torch.bfloat16, enabled=recipe.precision == 'bfloat16'): results = task.evaluate(model)", BFLOAT16),
)  # fmt: skip
