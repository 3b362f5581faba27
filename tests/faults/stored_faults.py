"""Bugs in stored files, training, attacks, loading of folders and the command line."""

from fault import Fault

STORAGE, LOOP = ("tests/test_storage.py",), "tests/training/test_loop.py"
RECIPE = ("tests/training/test_recipe.py",)
ATTACKS = ("tests/robustness/test_attacks.py",)
LOADING = "tests/models/test_loading.py"
NATIVE = ("tests/models/test_vit.py::test_damaged_folders_raise_a_one_line_error",)
FAILURE, CURRENT = ("tests/as_shipped/test_failure.py",), "tests/as_shipped/test_current_folder.py"
CHECKS, PATHS = "models/folder_checks.py", "cli/import_path.py"

STORED_FAULTS = (
    Fault("storage: tensors without their checksum", "storage.py", "if _sha256(content.replace(hashes[0], _NO_HASH.encode(), 1)) != hashes[0].decode():", "if False:", STORAGE),
    Fault("storage: lines without their checksum", "storage.py", "if content != lines + _hash_line(lines):", "if False:", STORAGE),
    Fault("storage: only the first file of a folder is checked", "storage.py", "        if not intact:\n            raise DamagedFileError(\n", "        return True\n        if not intact:\n            raise DamagedFileError(\n", STORAGE),
    Fault("storage: a file outside the folder is read", "storage.py", "if not (folder / name).resolve().is_relative_to(folder.resolve()):", "if False:", STORAGE),
    Fault("storage: a file is rewritten in place", "storage.py", "        temporary.replace(path)\n", "        path.write_bytes(content)\n        temporary.unlink()\n", STORAGE),
    Fault("storage: pipes are read", "storage.py", "if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):", "if False:", STORAGE),
    Fault("storage: a limit that is none", "storage.py", "if max_bytes is not None and len(content) > max_bytes:", "if False:", STORAGE),
    Fault("storage: a lock that is shared", "storage.py", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB", STORAGE),
    Fault("training: the checkpoint before is not kept", "training/checkpoint.py", "metadata=metadata, previous=_previous(path))", "metadata=metadata)", (f"{LOOP}::test_a_damaged_checkpoint_is_replaced_by_the_one_before_it",)),
    Fault("training: a damaged checkpoint replaces the one before", "training/checkpoint.py", "        _previous(path).replace(path)", "        pass", (f"{LOOP}::test_a_damaged_checkpoint_is_replaced_by_the_one_before_it",)),
    Fault("training: no lock", "training/loop.py", "lock_folder(folder) if processes.first else nullcontext()", "nullcontext()", (f"{LOOP}::test_two_trainings_do_not_share_a_folder",)),
    Fault("training: accuracies of any size", "training/loop.py", "not 0 <= value <= 1", "not 0 <= value", (f"{LOOP}::test_a_log_that_cannot_be_true_is_refused",)),
    Fault("training: an epoch may be missing", "training/loop.py", 'if entry.get("epoch") != number:', "if False:", (f"{LOOP}::test_a_log_that_cannot_be_true_is_refused",)),
    Fault("training: a lost log is not missed", "training/loop.py", "    if len(log) < epochs:\n", "    if False:\n", (f"{LOOP}::test_a_checkpoint_without_its_log_is_refused",)),
    Fault("training: epochs after the checkpoint stay in the log", "training/loop.py", "    if len(stored) > epochs:\n", "    if False:\n", (f"{LOOP}::test_what_is_logged_after_the_checkpoint_is_logged_again",)),
    Fault("recipe: decay on every weight", "training/loop.py", "\"params\": [p for p in parameters if p.ndim != 2], \"weight_decay\": 0.0", "\"params\": [p for p in parameters if p.ndim != 2], \"weight_decay\": recipe.weight_decay", RECIPE),
    Fault("recipe: frozen weights are trained", "training/loop.py", "[p for p in model.parameters() if p.requires_grad]", "[p.requires_grad_() for p in model.parameters()]", RECIPE),
    Fault("recipe: the same order in every epoch", "training/batches.py", "torch.randperm(len(self.images), generator=seeded_generator(self.seed, 2 * number))", "torch.randperm(len(self.images), generator=seeded_generator(self.seed, 0))", RECIPE),
    Fault("recipe: augmentation drawn as the order is", "training/batches.py", "seeded_generator(self.seed, 2 * step + 1)", "seeded_generator(self.seed, 2 * number)", RECIPE),
    Fault("recipe: the same augmentation at every step", "training/batches.py", "seeded_generator(self.seed, 2 * step + 1)", "seeded_generator(self.seed, 1)", RECIPE),
    Fault("recipe: gradients are not clipped", "training/loop.py", "        if recipe.clip:\n", "        if False:\n", RECIPE),
    Fault("recipe: labels are not smoothed", "training/tasks.py", "self.smoothing, self.mixup, self.cutmix = recipe.label_smoothing,", "self.smoothing, self.mixup, self.cutmix = 0.0,", RECIPE),
    Fault("recipe: the mode of the evaluation stays", "training/loop.py", "        self.model.train()\n", "", RECIPE),
    Fault("recipe: gradients add up", "training/loop.py", "        self.optimizer.zero_grad(set_to_none=True)\n", "", RECIPE),
    Fault("recipe: a constant learning rate", "training/loop.py", "            group[\"lr\"] = learning_rate\n", "            pass\n", RECIPE),
    Fault("recipe: no warmup", "training/loop.py", "int(recipe.warmup * batches.steps)", "0", RECIPE),
    Fault("recipe: the loss of the last step is logged", "training/loop.py", "\"loss\": loss_sum / batches.steps", "\"loss\": loss", RECIPE),
    Fault("recipe: images are drawn with repetition", "training/batches.py", "torch.randperm(len(self.images), generator=", "torch.randint(len(self.images), (len(self.images),), generator=", RECIPE),
    Fault("recipe: no step is taken", "training/loop.py", "        self.optimizer.step()\n", "", RECIPE),
    Fault("attacks: pixels outside the box", "robustness/attacks.py", "return nearest if bounds is None else nearest.clamp(*bounds)", "return nearest", ATTACKS),
    Fault("attacks: no projection on the budget", "robustness/attacks.py", "nearest = torch.minimum(torch.maximum(x, images - eps), images + eps)", "nearest = x", ATTACKS),
    Fault("attacks: steps down the loss", "robustness/attacks.py", "x + size * score_gradient(scores, x, of_near).sign()", "x - size * score_gradient(scores, x, of_near).sign()", ATTACKS),
    Fault("attacks: gradients without their sign", "robustness/attacks.py", "images + eps * score_gradient(scores, images, labels).sign()", "images + eps * score_gradient(scores, images, labels)", ATTACKS),
    Fault("attacks: the last restart is kept", "robustness/attacks.py", "left = left[margin(scores, x, of_near) >= 0]", "left = left", ATTACKS),
    Fault("attacks: random starts of their own", "robustness/attacks.py", "torch.rand(images.shape, generator=generator, dtype=images.dtype)", "torch.rand(images.shape, dtype=images.dtype)", ATTACKS),
    Fault("attacks: SPSA climbs the margin", "robustness/attacks.py", "project(x - learning_rate * scaled, images, eps, bounds)", "project(x + learning_rate * scaled, images, eps, bounds)", ATTACKS),
    Fault("attacks: SPSA without opposite corners", "robustness/attacks.py", "(margins[0] - margins[1])", "margins[0]", ATTACKS),
    Fault("attacks: the label is among its rivals", "robustness/attacks.py", "of_images.scatter(1, labels[:, None], -torch.inf)", "of_images", ATTACKS),
    Fault("attacks: normalised images are taken", "robustness/attacks.py", "if bounds is not None and images.numel() and not bool(((images >= bounds[0]) & (images <= bounds[1])).all()):", "if False:", ATTACKS),
    Fault("attacks: the mean is not subtracted", "robustness/classifier.py", "pixels if self._mean is None else pixels - self._mean.to(pixels)", "pixels", ATTACKS),
    Fault("attacks: the scale of the normalisation is ignored", "robustness/classifier.py", "inputs if self._std is None else inputs / self._std.to(pixels)", "inputs", ATTACKS),
    Fault("native: more layers than tensors", "models/native.py", "if isinstance(layers, int) and layers > tensors:", "if False:", NATIVE),
    Fault("folders: checksums are not compared", "models/huggingface.py", "    check_checksums(folder)\n", "", (f"{LOADING}::test_a_folder_with_checksums_is_checked",)),
    Fault("folders: sizes are not compared", "models/huggingface.py", "            check_size(folder, copy.deepcopy(config), weights, kind.from_config)\n", "", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[1001 layers]",)),
    Fault("folders: weights anywhere", CHECKS, "    for index in folder.glob(\"*.index.json\"):\n", "    for index in ():\n", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[weights above]",)),
    Fault("folders: weights of any dtype", CHECKS, "if dtype not in _FLOATING and", "if False and", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[int32]",)),
    Fault("folders: deep JSON", CHECKS, "if depth > MAX_DEPTH:", "if False:", (f"{LOADING}::test_a_hostile_folder_is_refused_in_one_line[rather deep JSON]",)),
    Fault("folders: any attention backend", CHECKS, "if not isinstance(backend, str | None) or backend not in SAFE_ATTENTION:", "if False:", (f"{LOADING}::test_an_attention_backend_named_by_a_file_is_refused",)),
    Fault("folders: text of any length", "models/encoding.py", "passage[: CHARACTERS_PER_TOKEN * limit]", "passage", (f"{LOADING}::test_long_passages_are_cut_before_they_are_tokenized",)),
    Fault("folders: replacements that expand", CHECKS, "if expansion > MAX_EXPANSION:", "if False:", (f"{LOADING}::test_a_hostile_tokenizer_is_refused_in_one_line[a replacement that expands]",)),
    Fault("command: the current folder is searched", "__main__.py", '    remove_from_import_path("")\n', '    import sys\n\n    sys.path.append("")\n', (f"{CURRENT}::test_no_module_of_the_current_folder_is_imported",)),
    Fault("command: code of the model's folder", PATHS, "if folder.is_dir() and current.is_relative_to(folder):", "if False:", (f"{CURRENT}::test_the_current_folder_comes_last_and_never_if_it_is_the_model",)),
    Fault("command: the current folder comes first", PATHS, "sys.path.append(str(current))", "sys.path.insert(0, str(current))", (f"{CURRENT}::test_the_current_folder_comes_last_and_never_if_it_is_the_model",)),
    Fault("command: a defect looks like an error of the input", "cli/failure.py", "except ClearheadError as error:", "except (ClearheadError, ValueError) as error:", FAILURE),
    Fault("command: control characters reach the terminal", "cli/failure.py", "char if char.isprintable() else", "char if True else", FAILURE),
    Fault("command: signals leave files", "cli/failure.py", "    _exit_on_signals()\n", "", FAILURE),
)  # fmt: skip
