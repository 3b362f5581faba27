"""Bugs in stored files, training, attacks, loading of folders and the command line."""

from tests.mutants.mutant import Mutant

STORAGE, LOOP = ("tests/test_storage.py",), "lab/tests/training/test_loop.py"
RECIPE = ("lab/tests/training/test_recipe.py",)
ATTACKS = ("lab/tests/robustness/test_attacks.py",)
LOADING = "tests/loading/test_loading.py"
NATIVE = ("lab/tests/models/test_vit.py::test_damaged_folders_raise_a_one_line_error",)
FAILURE, CURRENT = ("tests/as_shipped/test_failure.py",), "tests/as_shipped/test_current_folder.py"

MUTANTS = (
    Mutant("storage: tensors without their checksum", "storage:read_tensors", "_sha256(content.replace(hashes[0], _NO_HASH.encode(), 1)) != hashes[0].decode()", "False", STORAGE),
    Mutant("storage: lines without their checksum", "storage:read_lines", "content != lines + _hash_line(lines)", "False", STORAGE),
    Mutant("storage: only the first file of a folder is checked", "storage:check_checksums", "if not intact: ...", "return True\nif not intact: ...", STORAGE),
    Mutant("storage: a file outside the folder is read", "storage:check_checksums", "not (folder / name).resolve().is_relative_to(folder.resolve())", "False", STORAGE),
    Mutant("storage: a file is rewritten in place", "storage:write_bytes", "temporary.replace(path)", "path.write_bytes(content); temporary.unlink()", STORAGE),
    Mutant("storage: pipes are read", "storage:open_file", "not stat.S_ISREG(status.st_mode)", "False", STORAGE),
    Mutant("storage: a limit that is none", "storage:read_bytes", "max_bytes is not None and len(content) > max_bytes", "False", STORAGE),
    Mutant("storage: a lock that is shared", "storage:_locked", "fcntl.LOCK_SH if shared else fcntl.LOCK_EX", "fcntl.LOCK_SH", STORAGE),
    Mutant("training: the checkpoint before is not kept", "checkpoint:save_checkpoint", "write_tensors(path, tensors, metadata=metadata, previous=_previous(path))", "write_tensors(path, tensors, metadata=metadata)", (f"{LOOP}::test_a_damaged_checkpoint_is_replaced_by_the_one_before_it",)),
    Mutant("training: a damaged checkpoint replaces the one before", "checkpoint:_read", "_previous(path).replace(path)", "pass", (f"{LOOP}::test_a_damaged_checkpoint_is_replaced_by_the_one_before_it",)),
    Mutant("training: no lock", "loop:train", "lock_folder(folder) if processes.first else nullcontext()", "nullcontext()", (f"{LOOP}::test_two_trainings_do_not_share_a_folder",)),
    Mutant("training: accuracies of any size", "loop:read_log", "0 <= value <= 1", "0 <= value", (f"{LOOP}::test_a_log_that_cannot_be_true_is_refused",)),
    Mutant("training: an epoch may be missing", "loop:read_log", "entry.get('epoch') != number", "False", (f"{LOOP}::test_a_log_that_cannot_be_true_is_refused",)),
    Mutant("training: a lost log is not missed", "loop:_log_until", "len(log) < epochs", "False", (f"{LOOP}::test_a_checkpoint_without_its_log_is_refused",)),
    Mutant("training: epochs after the checkpoint stay in the log", "loop:_log_until", "len(stored) > epochs", "False", (f"{LOOP}::test_what_is_logged_after_the_checkpoint_is_logged_again",)),
    Mutant("recipe: decay on every weight", "loop:_optimizer", "{'params': [p for p in parameters if p.ndim != 2], 'weight_decay': 0.0}", "{'params': [p for p in parameters if p.ndim != 2], 'weight_decay': recipe.weight_decay}", RECIPE),
    Mutant("recipe: frozen weights are trained", "loop:_optimizer", "[p for p in model.parameters() if p.requires_grad]", "[p.requires_grad_() for p in model.parameters()]", RECIPE),
    Mutant("recipe: the same order in every epoch", "batches:TensorBatches.epoch", "2 * number", "0", RECIPE),
    Mutant("recipe: augmentation drawn as the order is", "batches:TensorBatches.epoch", "2 * step + 1", "2 * number", RECIPE),
    Mutant("recipe: the same augmentation at every step", "batches:TensorBatches.epoch", "2 * step + 1", "1", RECIPE),
    Mutant("recipe: gradients are not clipped", "loop:Stepper.__call__", "if recipe.clip: ...", "if False: ...", RECIPE),
    Mutant("recipe: labels are not smoothed", "tasks:Classification.__init__", "recipe.label_smoothing", "0.0", RECIPE),
    Mutant("recipe: the mode of the evaluation stays", "loop:Stepper.__call__", "self.model.train()", "", RECIPE),
    Mutant("recipe: gradients add up", "loop:Stepper.__call__", "self.optimizer.zero_grad(set_to_none=True)", "", RECIPE),
    Mutant("recipe: a constant learning rate", "loop:Stepper.__call__", "group['lr'] = learning_rate", "pass", RECIPE),
    Mutant("recipe: no warmup", "loop:train", "int(recipe.warmup * batches.steps)", "0", RECIPE),
    Mutant("recipe: the loss of the last step is logged", "loop:train", "loss_sum / batches.steps", "loss", RECIPE),
    Mutant("recipe: images are drawn with repetition", "batches:TensorBatches.epoch", "torch.randperm(len(self.images), generator=seeded_generator(self.seed, 2 * number))", "torch.randint(len(self.images), (len(self.images),), generator=seeded_generator(self.seed, 2 * number))", RECIPE),
    Mutant("recipe: no step is taken", "loop:Stepper.__call__", "self.optimizer.step()", "", RECIPE),
    Mutant("attacks: pixels outside the box", "attacks:project", "nearest if bounds is None else nearest.clamp(*bounds)", "nearest", ATTACKS),
    Mutant("attacks: no projection on the budget", "attacks:project", "torch.minimum(torch.maximum(x, images - eps), images + eps)", "x", ATTACKS),
    Mutant("attacks: steps down the loss", "attacks:pgd", "x + size * score_gradient(scores, x, of_near).sign()", "x - size * score_gradient(scores, x, of_near).sign()", ATTACKS),
    Mutant("attacks: gradients without their sign", "attacks:fgsm", "score_gradient(scores, images, labels).sign()", "score_gradient(scores, images, labels)", ATTACKS),
    Mutant("attacks: the last restart is kept", "attacks:pgd", "left[margin(scores, x, of_near) >= 0]", "left", ATTACKS),
    Mutant("attacks: random starts of their own", "attacks:_uniform", "torch.rand(images.shape, generator=generator, dtype=images.dtype)", "torch.rand(images.shape, dtype=images.dtype)", ATTACKS),
    Mutant("attacks: SPSA climbs the margin", "attacks:spsa", "x - learning_rate * scaled", "x + learning_rate * scaled", ATTACKS),
    Mutant("attacks: SPSA without opposite corners", "attacks:spsa", "margins[0] - margins[1]", "margins[0]", ATTACKS),
    Mutant("attacks: the label is among its rivals", "attacks:margin", "of_images.scatter(1, labels[:, None], -torch.inf)", "of_images", ATTACKS),
    Mutant("attacks: normalised images are taken", "attacks:_check", "bounds is not None and images.numel() and (not bool(((images >= bounds[0]) & (images <= bounds[1])).all()))", "False", ATTACKS),
    Mutant("attacks: the mean is not subtracted", "classifier:PixelClassifier._scores", "pixels if self._mean is None else pixels - self._mean.to(pixels)", "pixels", ATTACKS),
    Mutant("attacks: the scale of the normalisation is ignored", "classifier:PixelClassifier._scores", "inputs if self._std is None else inputs / self._std.to(pixels)", "inputs", ATTACKS),
    Mutant("native: more layers than tensors", "native:_check_layers", "isinstance(layers, int) and layers > tensors", "False", NATIVE),
    Mutant("folders: checksums are not compared", "huggingface:load_huggingface", "check_checksums(folder)", "", (f"{LOADING}::test_a_folder_with_checksums_is_checked",)),
    Mutant("folders: sizes are not compared", "huggingface:load_huggingface", "check_size(folder, copy.deepcopy(config), weights, kind.from_config)", "", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[1001 layers]",)),
    Mutant("folders: weights anywhere", "folder_checks:check_folder", "folder.glob('*.index.json')", "()", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[weights above]",)),
    Mutant("folders: weights of any dtype", "folder_checks:read_weights", "dtype not in _FLOATING", "False", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[int32]",)),
    Mutant("folders: deep JSON", "storage:_parse", "depth > MAX_DEPTH", "False", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[rather deep JSON]",)),
    Mutant("folders: any attention backend", "folder_checks:_check_config", "not isinstance(backend, str | None) or backend not in SAFE_ATTENTION", "False", (f"{LOADING}::test_an_attention_backend_named_by_a_file_is_refused",)),
    Mutant("folders: text of any length", "encoding:make_encoder.encode", "passage[:CHARACTERS_PER_TOKEN * limit]", "passage", (f"{LOADING}::test_long_passages_are_cut_before_they_are_tokenized",)),
    Mutant("folders: replacements that expand", "folder_checks:check_tokenizer", "expansion > MAX_EXPANSION", "False", (f"{LOADING}::test_a_hostile_tokenizer_is_refused_in_one_line[a replacement that expands]",)),
    Mutant("command: the current folder is searched", "__main__:main", "remove_from_import_path('')", "import sys; sys.path.append('')", (f"{CURRENT}::test_no_module_of_the_current_folder_is_imported",)),
    Mutant("command: code of the model's folder", "import_path:allow_current_folder", "_is_data(current)", "False", (f"{CURRENT}::test_the_current_folder_comes_last_and_never_if_it_is_the_model",)),
    Mutant("command: the current folder comes first", "import_path:allow_current_folder", "sys.path.append(current)", "sys.path.insert(0, current)", (f"{CURRENT}::test_the_current_folder_comes_last_and_never_if_it_is_the_model",)),
    Mutant("command: a defect looks like an error of the input", "failure:exit_code_of", "ClearheadError", "(ClearheadError, ValueError)", FAILURE),
    Mutant("command: control characters reach the terminal", "failure:_print_line", "char.isprintable()", "True", FAILURE),
    Mutant("command: signals leave files", "failure:exit_code_of", "_exit_on_signals()", "", FAILURE),
)  # fmt: skip
