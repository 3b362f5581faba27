"""Bugs of shards, checkpoints and devices."""

from fault import Fault

SHARDS = "tests/audit/test_shards.py"
MERGED = (f"{SHARDS}::test_merged_shards_equal_the_plain_audit",)
RESUMED = (f"{SHARDS}::test_an_audit_that_is_interrupted_at_every_few_batches_equals_the_plain_audit",)
REFUSED = (f"{SHARDS}::test_shards_that_are_missing_unfinished_or_of_another_audit_are_named",)
ENGINE = ("tests/audit/test_engine.py",)
DEVICES = ("tests/audit/test_devices.py",)
WORKERS = ("tests/audit/test_workers.py",)
TRANSFER = ("tests/audit/test_transfer.py",)
COMMANDS = ("tests/as_shipped/test_shard_commands.py",)

SCALE_FAULTS = (
    Fault("shards: inputs are numbered from zero in each", "audit/part_runs.py", "                    first=span.first,\n", "", MERGED),
    Fault("shards: no batches before the first group", "audit/parts.py", "while before > needed:", "while False:", (SHARDS,)),
    Fault("shards: the group before is not needed", "audit/engine.py", "return max(start // size - 1, 0) * size", "return start // size * size", ENGINE),
    Fault("shards: groups of another shard are measured again", "audit/engine.py", "if complete and last.number > layer.start:", "if complete:", ENGINE),
    Fault("shards: groups with unusable inputs are measured", "audit/engine.py", "complete = len(layer.waiting) == size", "complete = True", ENGINE),
    Fault("shards: a batch is in no shard", "audit/parts.py", "total * self.number // self.count)", "total * self.number // self.count - 1)", (SHARDS,)),
    Fault("shards: inputs before the shard are measured again", "audit/workers.py", "if lead and measurement.theory.grouping is None:", "if False:", MERGED),
    Fault("shards: baselines are not merged", "audit/finishing.py", "            mine.merge(run)\n", "            mine.merge(run) if run.baseline is None else None\n", MERGED),
    Fault("shards: the whole model in the last shard", "audit/part_runs.py", "if part.shard.number == 1:  #", "if part.shard.number == part.shard.count:  #", MERGED),
    Fault("shards: other audits are merged", "audit/shards.py", "        if different:\n            raise", "        if False:\n            raise", (SHARDS,)),
    Fault("shards: other settings are merged", "audit/parts.py", "if self.settings.get(key) != other.settings.get(key)", "if False", (SHARDS,)),
    Fault("shards: other data are merged", "audit/parts.py", "if not self.manifest.data or not other.manifest.data:", "if True:", (SHARDS,)),
    Fault("shards: unfinished ones are merged", "audit/shards.py", "if not part.complete]", "if False]", REFUSED),
    Fault("shards: missing ones are not named", "audit/shards.py", "    if missing:\n", "    if False:\n", REFUSED),
    Fault("shards: batches that change are accepted", "audit/part_runs.py", "elif run.batches and checksum.hexdigest() != self._scanned.checksums[run.batches - 1]:", "elif False:", (f"{SHARDS}::test_batches_that_cannot_be_divided_are_refused",)),
    Fault("shards: Slurm arrays start at one", "audit/shards.py", "number += 1 - least", "number += 0", (f"{SHARDS}::test_a_launcher_gives_the_shard",)),
    Fault("shards: ranks start at one", "audit/shards.py", "        number += 1\n", "", (f"{SHARDS}::test_a_launcher_gives_the_shard",)),
    Fault("checkpoint: the first batch is measured again", "audit/part_runs.py", "span_of(part.sizes, max(run.batches, of_shard.start), end, run.theories)", "span_of(part.sizes, of_shard.start, end, run.theories)", RESUMED),
    Fault("checkpoint: the audit always starts again", "audit/part_runs.py", "_same_audit(checkpoint.read(setup.notice), part, setup.notice) or part", "_same_audit(checkpoint.read(setup.notice), part, setup.notice) and part or part", (f"{SHARDS}::test_a_checkpoint_of_another_audit_is_reported_and_not_used",)),
    Fault("checkpoint: another audit goes on", "audit/part_runs.py", "    different = saved.differences(part)\n", "    different = []\n", (f"{SHARDS}::test_a_checkpoint_of_another_audit_is_reported_and_not_used",)),
    Fault("checkpoint: other inputs go on", "audit/scanned_batches.py", "if number == count and checksum.hexdigest() != expected:", "if False:", (f"{SHARDS}::test_a_checkpoint_of_another_audit_is_reported_and_not_used",)),
    Fault("checkpoint: other inputs after the last batch", "audit/scanned_batches.py", "if part.shard.count == 1 and scan(batches).checksum != part.manifest.data:", "if False:", (f"{SHARDS}::test_a_checkpoint_of_another_audit_is_reported_and_not_used",)),
    Fault("checkpoint: the file stays", "audit/run.py", "    file.remove()\n", "", RESUMED),
    Fault("checkpoint: SIGTERM is an interrupt", "cli/failure.py", "self.exit_code = 128 + number", "self.exit_code = 130", ("tests/as_shipped/test_failure.py",)),
    Fault("checkpoint: the line does not say what caused it", "cli/failure.py", "f'ended by {cause}' if terminated else 'interrupted'", "'interrupted'", ("tests/as_shipped/test_interrupts.py",)),
    Fault("workers: a layer's calls go to several", "audit/workers.py", "return layer % len(self._workers)", "return id(object()) // 16 % len(self._workers)", WORKERS),
    Fault("workers: sums of the checkpoint are lost", "audit/workers.py", "if self._owner(entry[\"layer\"]) == number", "if False", WORKERS),
    Fault("workers: sums of one worker are lost", "audit/workers.py", "for state in states for entry in state[\"layers\"]), key", "for state in states[:1] for entry in state[\"layers\"]), key", WORKERS),
    Fault("workers: only the last run is collected", "audit/workers.py", "for index, run in enumerate(self._runs):", "for index, run in list(enumerate(self._runs))[-1:]:", WORKERS),
    Fault("workers: inputs are numbered from zero", "audit/workers.py", "first=first, lead=lead) for s in states", "first=0, lead=0) for s in states", WORKERS),
    Fault("workers: calls wait without bound", "audit/workers.py", "while self._is_full() or self.connection.poll():", "while self.connection.poll():", WORKERS),
    Fault("workers: a killed one is not noticed", "audit/workers.py", "        except (EOFError, OSError):\n", "        except ZeroDivisionError:\n", WORKERS),
    Fault("workers: processes stay", "audit/workers.py", "        self._process.kill()\n        self._process.join()\n", "", WORKERS),
    Fault("workers: strides are lost", "audit/transfer.py", "whole.as_strided(shape, stride,", "whole.as_strided(shape, torch.empty(shape).stride(),", TRANSFER),
    Fault("workers: the first range of a memory is used", "audit/transfer.py", "spans[bisect_right(spans, start, key=lambda span: span[0]) - 1]", "spans[0]", TRANSFER),
    Fault("workers: ranges that overlap are sent twice", "audit/transfer.py", "if united and start <= united[-1][1]:", "if False:", TRANSFER),
    Fault("workers: descriptors stay open", "audit/transfer.py", "            os.close(descriptors[0])\n", "            pass\n", TRANSFER),
    Fault("workers: the worker's error is not read", "audit/workers.py", "        if isinstance(answer, BaseException):\n            raise answer\n", "", WORKERS),
    Fault("workers: memory with tensors on it is used again", "audit/transfer.py", "if not self._received[number].in_use}", "}", TRANSFER),
    Fault("workers: small memory is used for more", "audit/transfer.py", "for number in self._free if self._own[number].size >= size]", "for number in self._free]", TRANSFER),
    Fault("workers: memory is never used again", "audit/transfer.py", "        self._free |= released\n", "", TRANSFER),
    Fault("workers: dropped memory stays", "audit/transfer.py", "            del self._received[number]\n", "            pass\n", TRANSFER),
    Fault("workers: what predictions were made of is sent", "audit/engine.py", "                if last:\n", "                if False:\n", WORKERS),
    Fault("workers: the baseline leaves cores to idle workers", "audit/part_runs.py", "if self._workers is not None and own:", "if self._workers is not None:", WORKERS),
    Fault("whole model: other columns in every run", "theories/symmetry/whole_model.py", "torch.randperm(width, generator=torch.Generator().manual_seed(seed))", "torch.randperm(width)", ("tests/audit/test_whole_model.py",)),
    Fault("whole model: all columns are held", "theories/symmetry/whole_model.py", "return output[..., columns.to(output.device)]", "return output", ("tests/audit/test_whole_model.py",)),
    Fault("workers: places in memory are lost", "audit/transfer.py", "(start - start % ALIGNMENT, end)", "(start, end)", TRANSFER),
    Fault("workers: predictions wait for the main process", "audit/part_runs.py", "            self._workers.predict()\n", "            pass\n", WORKERS),
    Fault("workers: the model takes their cores", "audit/part_runs.py", "max(1, threads // 2)", "threads", WORKERS),
    Fault("memory: small processes return it", "numerics/memory.py", "held.heap + held.mapped > SMALL_PROCESS", "True", ("tests/numerics/test_memory.py",)),
    Fault("memory: returned however little", "numerics/memory.py", "held.freed > MOST_KEPT", "held.freed > 0", ("tests/numerics/test_memory.py",)),
    Fault("predictions: of fewer groups", "audit/layers.py", "self.predictions.groups == self.groups", "True", ("tests/theories/max_margin/test_predictions.py",)),
    Fault("check: tensors of tokens are cut like inputs", "audit/model_runs.py", "count not in shape[1:]", "True", ("tests/audit/test_run.py",)),
    Fault("check: other numbers of rows are cut", "audit/model_runs.py", "shape and shape[0] == count and", "shape and", ("tests/audit/test_run.py",)),
    Fault("sums: rows are kept twice as long", "audit/rows.py", "GROWTH = 1.25", "GROWTH = 4", ENGINE),
    Fault("sums: tuples become lists", "audit/state_file.py", "return tuple(unpack(value[_TUPLE]))", "return unpack(value[_TUPLE])", MERGED),
    Fault("devices: batches follow weights that are not in memory", "interfaces/placement.py", "if not p.is_meta), torch.device", "), torch.device", DEVICES),
    Fault("devices: offloaded weights have no checksum", "interfaces/placement.py", "yield name, hook.weights_map[key]", "yield name, value", DEVICES),
    Fault("devices: FSDP frees the weights of maps", "_capture/linear_maps.py", "if linear_map is None or not self.copies:", "if True:", DEVICES),
    Fault("devices: FSDP frees the weights of projections", "_capture/output_maps.py", "Tensor.clone if copies else Tensor.detach", "Tensor.detach", DEVICES),
    Fault("devices: FSDP frees the weights of norms", "_capture/residual.py", "keep = Tensor.clone if self._copies else Tensor.detach", "keep = Tensor.detach", DEVICES),
    Fault("devices: divided heads are measured", "_capture/recording.py", "            refuse_divided_heads(call.module, self.name_of(call), call.q, call.k, call.v)\n", "", DEVICES),
    Fault("devices: the measuring code is compiled", "interfaces/placement.py", 'if "torch._dynamo" in sys.modules else nullcontext()', "if False else nullcontext()", DEVICES),
    Fault("devices: every theory moves the tensors", "audit/model_runs.py", "self._observe(heads.to(self._device), ", "self._observe(heads, ", DEVICES),
    Fault("devices: a tensor is moved for each field", "heads.py", "if numbers not in moved:", "if True:", DEVICES),
)  # fmt: skip
