"""Bugs in training: tasks, batches, processes, averages, signals, evaluation and recipe files."""

from fault import Fault

TASKS = ("tests/training/test_tasks.py",)
MEASURES = ("tests/training/test_measures.py",)
STOPPING = ("tests/training/test_stopping.py",)
FILES = ("tests/training/test_recipe_file.py",)
PROCESSES = ("tests/training/test_distributed.py",)
COMPILE = ("tests/training/test_compile.py",)
BFLOAT16 = ("tests/training/test_bfloat16.py",)
REPEATS = ("tests/data/test_batches.py", "tests/training/test_tasks.py")

TRAINING_FAULTS = (
    Fault("task: mixup keeps the labels", "training/tasks.py", "losses = share * losses + (1 - share) * other", "losses = losses", TASKS),
    Fault("task: mixup without the neighbour's smoothing", "training/tasks.py", "cross_entropy(logits, _exchange(targets), label_smoothing=self.smoothing, reduction", "cross_entropy(logits, _exchange(targets), reduction", TASKS),
    Fault("task: rows are mixed with any row", "training/tasks.py", "rows.view(-1, 2, *rows.shape[1:]).flip(1).reshape(rows.shape)", "rows.flip(0)", TASKS),
    Fault("task: cutmix counts the pixels before they are cut off", "training/tasks.py", "return mixed, 1 - replaced", "return mixed, share", TASKS),
    Fault("task: cutmix only", "training/tasks.py", "(mixup == 0 or coin < 0.5)", "True", TASKS),
    Fault("task: another distribution of shares", "training/tasks.py", "torch.full((2,), alpha, dtype=torch.float64)", "torch.full((2,), 1.0, dtype=torch.float64)", TASKS),
    Fault("task: ignored pixels count", "training/tasks.py", "ignore_index=IGNORED, reduction", "ignore_index=-1, reduction", TASKS),
    Fault("task: the mean over all pixels", "training/tasks.py", "(targets != IGNORED).sum(dim=(1, 2)).clamp(min=1)", "(targets >= 0).sum(dim=(1, 2)).clamp(min=1)", TASKS),
    Fault("batches: tokens are their own targets", "training/batches.py", "yield pieces[:, :-1], pieces[:, 1:]", "yield pieces[:, :-1], pieces[:, :-1]", TASKS),
    Fault("batches: text is always cut at the same places", "training/batches.py", "offset = int(torch.randint(self.context, (), generator=generator))", "offset = 0", TASKS),
    Fault("batches: augmentation is drawn for a process's rows", "training/batches.py", "batch = self.augment(as_pixels(self.images[chosen]), seeded_generator(self.seed, 2 * step + 1))\n            yield batch[rows]", "batch = self.augment(as_pixels(self.images[chosen[rows]]), seeded_generator(self.seed, 2 * step + 1))\n            yield batch", TASKS),
    Fault("batches: a later start begins at the first batch", "training/batches.py", "        places = torch.arange(self.context + 1)\n        for index in range(start, self.steps):", "        places = torch.arange(self.context + 1)\n        for index in range(self.steps):", TASKS),
    Fault("step: parts are added, not averaged", "training/loop.py", "loss = losses.mean() / len(parts)", "loss = losses.mean()", TASKS),
    Fault("step: Adam for AdamW", "training/loop.py", "torch.optim.AdamW if recipe.optimizer == \"adamw\" else torch.optim.Adam", "torch.optim.Adam", TASKS),
    Fault("step: always float32", "training/loop.py", "enabled=recipe.precision == \"bfloat16\"", "enabled=False", TASKS),
    Fault("average: the decay of the other side", "training/average.py", "self._weights, 1 - self.decay)", "self._weights, self.decay)", TASKS),
    Fault("average: the weights stay averaged", "training/average.py", "        try:\n            yield\n        finally:\n            self._exchange()\n", "        yield\n", TASKS),
    Fault("average: not used at the end", "training/loop.py", "            take_step.average.apply()\n", "            pass\n", ("tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Fault("average: not evaluated", "training/loop.py", "with take_step.average.applied() if take_step.average is not None else nullcontext():", "with nullcontext():", ("tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Fault("average: not in the checkpoint", "training/checkpoint.py", "    if state.average is not None:\n", "    if False:\n", ("tests/training/test_loop.py::test_the_average_is_evaluated_saved_and_returned",)),
    Fault("dropout: another mask after an interruption", "training/loop.py", "        torch.manual_seed(_dropout_seed(recipe.seed, step, self.processes))\n", "", ("tests/training/test_loop.py::test_dropout_is_a_function_of_seed_and_step",)),
    Fault("dropout: the same mask at every step", "training/loop.py", "_dropout_seed(recipe.seed, step, self.processes)", "_dropout_seed(recipe.seed, 0, self.processes)", ("tests/training/test_loop.py::test_dropout_is_a_function_of_seed_and_step",)),
    Fault("signals: the run goes on", "training/loop.py", "            if stopping:\n                stop.deliver()\n", "", STOPPING),
    Fault("signals: no checkpoint", "training/loop.py", "if ended or stopping or step % checkpoint_every == 0:", "if ended or step % checkpoint_every == 0:", STOPPING),
    Fault("signals: the second one waits too", "training/stopping.py", "            self.deliver()\n", "            pass\n", STOPPING),
    Fault("metrics: lines after the checkpoint stay", "training/metrics.py", "if _step(line) <= step]", "if _step(line) < float(\"inf\")]", STOPPING),
    Fault("processes: all take the first rows", "training/distributed.py", "slice(self.rank * share, (self.rank + 1) * share)", "slice(0, share)", PROCESSES),
    Fault("perplexity: tokens are predicted twice", "training/evaluation.py", "row[done - start :].sum()", "row.sum()", MEASURES),
    Fault("perplexity: the end of the text is left out", "training/evaluation.py", "        starts.append(len(tokens) - 1 - length)\n", "        pass\n", MEASURES),
    Fault("evaluation: in training mode", "training/evaluation.py", "    model.eval()\n", "", MEASURES),
    Fault("overlap: the union counts the intersection twice", "training/evaluation.py", "counts.sum(dim=0) + counts.sum(dim=1) - counts.diagonal())", "counts.sum(dim=0) + counts.sum(dim=1))", MEASURES),
    Fault("overlap: ignored pixels count", "training/evaluation.py", "counted = masks != ignored", "counted = masks >= 0", MEASURES),
    Fault("recipe file: unknown keys are ignored", "training/recipe_file.py", "        if key not in known:\n", "        if False:\n", FILES),
    Fault("recipe file: text for a number", "training/recipe_file.py", "type(value) not in accepted[type(default)]", "False", FILES),
    Fault("recipe file: one operator for all layers", "training/recipe_file.py", "        operators[int(number)] = layer_operators(entry, layers=1)[0]\n", "        pass\n", FILES),
    Fault("recipe file: no augmentation", "training/run.py", "augment=changes if file.data.shift or file.data.flip else None", "augment=None", FILES),
    Fault("recipe file: a run does not know its data", "training/run.py", "\"data\": {**settings, \"contents\": contents}", "\"data\": {\"contents\": contents}", FILES),
    Fault("repeats: copies have the same augmentation", "data/batches.py", "_seed(self._seed, ROW, self._epoch, index)", "_seed(self._seed, ROW, self._epoch, index % len(self._samples))", REPEATS),
    Fault("repeats: the same augmentation in every epoch", "data/batches.py", "_seed(self._seed, ROW, self._epoch, index)", "_seed(self._seed, ROW, 0, index)", REPEATS),
    Fault("repeats: copies are neighbours", "data/batches.py", "row % samples] + len(order) * (row // samples)", "row // repeats] + len(order) * (row % repeats)", REPEATS),
    Fault("repeats: copies are in different batches", "data/batches.py", "[:, row % samples] + len", "[(torch.arange(steps)[:, None] + row // samples) % steps, row % samples] + len", REPEATS),
    Fault("repeats: every image once", "data/batches.py", "math.ceil(batch_size / repeats)", "batch_size", REPEATS),
    Fault("repeats: every image in many batches", "data/batches.py", "order[: steps * samples].view(steps, samples)[:,", "order[:samples].expand(steps, samples)[:,", REPEATS),
    Fault("repeats: impossible numbers", "data/batches.py", "    if not 1 <= repeats <= batch_size:", "    if False:", REPEATS),
    Fault("repeats: ignored for images in memory", "training/run.py", "else None,\n        repeats=file.data.repeats,", "else None,", FILES),
    Fault("repeats: ignored for images in files", "training/run.py", "train=True),\n        repeats=file.data.repeats,", "train=True),", FILES),
    Fault("repeats: ignored for text", "training/run.py", "    if file.data.repeats != 1:", "    if False:", FILES),
    Fault("repeats: a run does not know them", "training/run.py", "if settings[\"repeats\"] == 1:", "if True:", FILES),
    Fault("compile: ignored", "training/loop.py", "torch.compile(self._losses) if recipe.compile else", "torch.compile(self._losses) if False else", COMPILE),
    Fault("compile: its names in the checkpoint", "training/loop.py", "State(model=model, optimizer", "State(model=torch.compile(model) if recipe.compile else model, optimizer", COMPILE),
    Fault("compile: draws are compiled too", "training/loop.py", "        return self.task.losses(self.model, *drawn)", "        return self.task.losses(self.model, *self.task.draw(drawn[0], drawn[1], seeded_generator(0, 0)))", COMPILE),
    Fault("bfloat16: the weights are converted", "training/loop.py", "        self.optimizer = _optimizer(model, recipe)", "        self.optimizer = _optimizer(model.bfloat16() if recipe.precision == 'bfloat16' else model, recipe)", BFLOAT16),
    Fault("bfloat16: an adaptive softmax in bfloat16", "models/language.py", "        x = x.to(adaptive.head.weight.dtype)\n", "        x = x.bfloat16()\n", BFLOAT16),
    Fault("bfloat16: the evaluation too", "training/loop.py", "                    results = task.evaluate(model)", "                    with torch.autocast('cpu', torch.bfloat16, enabled=recipe.precision == 'bfloat16'):\n                        results = task.evaluate(model)", BFLOAT16),
)  # fmt: skip
