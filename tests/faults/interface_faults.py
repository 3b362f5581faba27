"""Bugs that the tests must find in the interfaces, capture, swap, the fidelity check and the traces of tensors."""

from fault import Fault

CALLS = ("tests/interfaces/test_calls.py",)
SEVERAL = ("tests/capture/test_several.py",)
RULE = ("tests/capture/test_stream_rule.py",)
NUMBERS = ("tests/swap/test_layer_numbers.py",)
LAYERS = ("tests/interfaces/test_layers.py",)
EVIDENCE = ("tests/interfaces/test_layers.py::test_the_fidelity_check_requires_every_measurement",)
FAMILIES = ("tests/interfaces/test_families.py",)
SDPA = ("tests/interfaces/test_sdpa.py", "tests/interfaces/test_calls.py")
TORCH = ("tests/interfaces/test_torch_mha.py", "tests/capture/test_several.py")
DESCRIBED = ("tests/interfaces/test_described.py", "tests/swap/test_swapped_models.py")
GRADIENTS = ("tests/capture/test_gradients.py",)
SWAP = ("tests/swap/test_swap.py", "tests/swap/test_heads.py")
CACHES = ("tests/swap/test_caches.py",)
ROWS = ("tests/swap/test_past_rows.py",)
HF = "interfaces/huggingface.py"
MHA = "interfaces/torch_mha.py"
MHA_CALL = "interfaces/torch_mha_call.py"

INTERFACE_FAULTS = (
    Fault("masks: causality aligned at the end", "interfaces/masks.py", "dtype=torch.bool, device=device).tril()", "dtype=torch.bool, device=device).tril(m - n)", CALLS),
    Fault("masks: bias dropped if there is a mask", "interfaces/masks.py", "return mask, rest if bool(rest.any()) else None", "return mask, None if mask is not None else rest if bool(rest.any()) else None", CALLS),
    Fault("masks: -10000 is a bias", "interfaces/masks.py", "HIDING = 1000.0", "HIDING = 1e6", LAYERS),
    Fault("sdpa: grouped values in another order", "interfaces/sdpa.py", "v.repeat_interleave(groups, dim=-3)", "v.repeat(1, groups, 1, 1)", CALLS),
    Fault("sdpa: the scale left out", "interfaces/sdpa.py", "if scale is None else float(scale)", "", CALLS),
    Fault("sdpa: causality left out", "interfaces/sdpa.py", 'if arguments.get("is_causal", False):', "if False:", SDPA),
    Fault("sdpa: the outermost module calls", "interfaces/sdpa.py", "            if isinstance(candidate, nn.Module) and id(candidate) in self.paths:\n                return", "            if candidate is self.module:\n                return", LAYERS),
    Fault("sdpa: a module that calls itself is recorded twice", "interfaces/sdpa.py", "if _is_active(self):  #", "if False:  #", CALLS),
    Fault("sdpa: fused_attn not restored", "interfaces/sdpa.py", '            self.module.__dict__["fused_attn"] = self.fused\n', "            pass\n", ("tests/swap/test_swapped_models.py", "tests/swap/test_swap.py")),
    Fault("hugging face: dropout in evaluation", HF, 'float(arguments.get("dropout", 0.0)) if module.training else 0.0', 'float(arguments.get("dropout", 0.0))', CALLS),
    Fault("hugging face: grouped keys in another order", HF, "k=k.repeat_interleave(groups, dim=1) if groups > 1 else k", "k=k.repeat(1, groups, 1, 1) if groups > 1 else k", CALLS),
    Fault("hugging face: causal without a mask in eager attention", HF, "return partial(_attend, function, function is not default)", "return partial(_attend, function, True)", ("tests/swap/test_swap.py",)),
    Fault("hugging face: the position bias left out", HF, "bias = position if bias is None else bias if position is None else bias + position", "pass", FAMILIES),
    Fault("hugging face: the soft cap left out", HF, 'softcap=arguments.get("softcap"),', "softcap=None,", FAMILIES),
    Fault("hugging face: sinks left out", HF, "sinks=None if sinks is None else sinks.reshape(-1),", "sinks=None,", FAMILIES),
    Fault("hugging face: a copy computes with the original's weights", HF, "self._bind(type(self.module).forward.__get__(self.module))", "self._bind(lambda *args, **kwargs: type(self.module).forward(self.module, *args, **kwargs))", ("tests/swap/test_swap.py",)),
    Fault("hugging face: masks of any shape", HF, "or added.ndim != 4):", "or False):", ("tests/swap/test_refusals.py",)),
    Fault("torch: kept off its fused path", MHA, "elif not self.replaces:\n            self._remove_hook()", "else:\n            self.hook = self.module.register_forward_pre_hook(_no_op).id", TORCH),
    Fault("torch: modes stay on around its encoder", MHA, "        with without_modes():\n            return proceed(*args, **kwargs)", "        return proceed(*args, **kwargs)", SEVERAL),
    Fault("torch: the slow path is not run", MHA, "if _CALLS.count == calls:", "if False:", TORCH),
    Fault("torch: maps of its projections not traced", MHA, "with with_suspended_modes():", "with without_modes():", SEVERAL),
    Fault("torch: padding left out", MHA_CALL, "terms.append(padding.view(b, 1, 1, m))", "pass", TORCH),
    Fault("torch: a second draw for dropout", MHA_CALL, "        if state is not None:\n", "        if False:\n", TORCH),
    Fault("torch: an output that does not fit is believed", MHA_CALL, "if float(difference) > 4 * tolerance", "if False and float(difference) > 4 * tolerance", ("tests/interfaces/test_torch_mha.py",)),
    Fault("described: the third of a fused map", "interfaces/described.py", "output.chunk(3, dim=-1)[self.third]", "output.chunk(3, dim=-1)[0]", FAMILIES),
    Fault("described: a layer that never reaches out", "interfaces/described.py", "if self.permanent and not run.handled:", "if False:", ("tests/swap/test_refusals.py",)),
    Fault("described: children keep their wrappers", "interfaces/described.py", "            unwrap_forward(child, wrapper)", "            pass", FAMILIES),
    Fault("native: the operator is not restored", "interfaces/native.py", '            self.module.__dict__["operator"] = self.operator', "            pass", ("tests/interfaces/test_native.py",)),
    Fault("native: one head's batch taken for heads", "interfaces/native.py", "folded=1 if isinstance(module, _classes(*_ONE_HEAD)) else None,", "folded=None,", SWAP),
    Fault("forward: copies keep temporary wrappers", "interfaces/forward.py", "[wrapper for wrapper in self.wrappers if wrapper.permanent]", "list(self.wrappers)", SEVERAL),
    Fault("forward: wrappers below stay", "interfaces/forward.py", "module.__dict__.setdefault(_REPLACED, []).append(forward)", "module.__dict__[_REPLACED] = [forward]", CALLS),
    Fault("attachment: copies keep temporary handlers", "interfaces/attachment.py", "[handler for handler in self.handlers if handler.permanent]}", "list(self.handlers)}", SEVERAL),
    Fault("attachment: a swap outside a capture", "interfaces/attachment.py", "insert(0 if handler.permanent else len(attachment.handlers), handler)", "append(handler)", CALLS),
    Fault("attachment: an untouched output loses the model's tensor", "interfaces/attachment.py", "if output is original.output and original.model_output is not None:", "if False:", ("tests/capture/test_several.py", "tests/capture/test_stream.py")),
    Fault("passes: calls of other threads count", "interfaces/passes.py", "return self._thread == threading.get_ident() and not self._paused", "return not self._paused", SEVERAL),
    Fault("passes: a measurement's attention counts", "interfaces/passes.py", "return self._thread == threading.get_ident() and not self._paused", "return self._thread == threading.get_ident()", (*SEVERAL, *GRADIENTS)),
    Fault("whole model: parts of layers count twice", "interfaces/whole_model.py", "parts = {id(part) for layer in layers for part in layer.module.modules()}", "parts: set[int] = set()", FAMILIES),
    Fault("order: children in order of registration", "interfaces/order.py", "yield from _names_in(method, kind, visited)", "pass", (*CALLS, *NUMBERS)),
    Fault("layouts: windows of an input are separate inputs", "interfaces/layouts.py", "if windowed and 0 < inputs < batch and batch % inputs == 0 else 1", "if windowed and 0 < inputs < batch else 1", CALLS),
    Fault("layouts: every batch is heads", "interfaces/layouts.py", "fold = heads > 1 and shape[0] % (heads * max(inputs, 1)) == 0", "fold = heads > 1 and shape[0] % heads == 0", LAYERS),
    Fault("expected: modules that other threads run are counted", "interfaces/expected.py", "if self._counts():", "if True:", SEVERAL),
    Fault("capture: one number for all calls of a module", "_capture/recording.py", "        self._calls[heads.name] += 1\n", "", LAYERS),
    Fault("capture: graphs are kept", "_capture/recording.py", "        q=heads.q.detach(),", "        q=heads.q,", GRADIENTS),
    Fault("capture: paths of the outer model", "_capture/recording.py", "return self.counter.paths.get(id(call.module), call.name)", "return call.name", SEVERAL),
    Fault("gradients: a zero gradient is one", "_capture/gradients.py", "depends = gradient is not None and bool(gradient.any())", "depends = gradient is not None", GRADIENTS),
    Fault("gradients: tensors written over are shown", "_capture/gradients.py", "if _versions(self.heads) != self.versions:", "if False:", GRADIENTS),
    Fault("swap: rows without keys", "_swap/operator.py", "return out if has_keys is None else torch.where(has_keys, out, 0)", "return out", CALLS),
    Fault("swap: plain functions get rows without keys", "_swap/operator.py", "mask = mask | ~has_keys", "pass", CALLS),
    Fault("swap: heads in the batch stay there", "_swap/operator.py", "if call.folded is not None and call.q.ndim > 2:", "if False:", SWAP),
    Fault("swap: windows taken for heads", "_swap/operator.py", "1 < heads == call.q.shape[1]:  #", "False:  #", SWAP),
    Fault("swap: earlier queries are the last ones", "_swap/operator.py", "_run(operator, needs, whole)[..., first:, :]", "_run(operator, needs, whole)[..., : stop - first, :]", CACHES),
    Fault("swap: rows of an overwritten cache", "_swap/past_rows.py", "k=k.clone()", "k=k", ROWS),
    Fault("swap: rows of other values", "_swap/past_rows.py", ", (self.v[..., :length, :], v[..., :length, :])]", "]", ROWS),
    Fault("swap: rows under another mask", "_swap/past_rows.py", "if bool(same_keys) and all", "if all", ROWS),
    Fault("swap: rows without gradients", "_swap/past_rows.py", "if torch.is_grad_enabled() or torch", "if torch", ROWS),
    Fault("swap: rows outlive the swap", "_swap/swaps.py", "            handler.past.clear()\n", "            pass\n", ROWS),
    Fault("swap: cross-attention accepted", "_swap/operator.py", "if call.cross or (n != m", "if (n != m", ("tests/swap/test_refusals.py",)),
    Fault("swap: numbers not compared with the pass", "_swap/layers.py", "if not choice.by_number or positions == (choice.index,) or not positions:", "if True:", NUMBERS),
    Fault("swap: a layer that never runs", "_swap/layers.py", "        if missed:\n", "        if False:\n", ("tests/swap/test_swapped_models.py",)),
    Fault("swap: an operator's child stays", "_swap/swaps.py", "            module._modules.pop(CHILD_NAME, None)\n", "", SWAP),
    Fault("swap: put over another swap", "_swap/swaps.py", "if isinstance(handler, OperatorHandler):", "if False:", SWAP),
    Fault("fidelity: changed outputs pass", "audit/fidelity.py", "if fidelity.output_difference != 0:", "if fidelity.output_difference > 1:", EVIDENCE),
    Fault("fidelity: attention that does not matter passes", "audit/fidelity.py", "if not fidelity.control_change > fidelity.swap_error:", "if False:", EVIDENCE),
    Fault("fidelity: NaN among outputs lost", "audit/fidelity.py", "return math.nan if any(math.isnan(value) for value in values) else max(values)", "return max(values)", ("tests/interfaces/test_layers.py::test_a_nan_among_outputs_fails_the_fidelity_check",)),
    Fault("fidelity: calls that were not replaced", "audit/fidelity.py", "if replaced_calls != len(fidelity.layers):", "if False:", EVIDENCE),
    Fault("output weight: sign of a difference lost", "_capture/output_maps.py", '* (-1 if "sub" in name else 1)', "", RULE),
    Fault("output weight: a gate as a constant", "_capture/output_maps.py", "if depends(nodes[1 - at]) or factor.numel()", "if factor.numel()", RULE),
    Fault("output weight: torch's projection is not transposed", "_capture/output_maps.py", "self._keep(projection).detach().mT", "self._keep(projection).detach()", ("tests/capture/test_stream.py",)),
    Fault("output weight: the projection of a replaced output", "_capture/recording.py", "projection=None if replaced else projection", "projection=projection", ("tests/capture/test_stream.py",)),
    Fault("output weight: features in another order", "_capture/output_maps.py", "weight.ndim == 2 and self._is_output(x):", "weight.ndim == 2:", RULE),
    Fault("residual stream: the normed sum as the sum", "_capture/blocks.py", '("total", "total")', '("total", between)', ("tests/capture/test_stream.py",)),
    Fault("fidelity: rows without keys count", "audit/fidelity.py", "difference = torch.where(heads.rows, difference, 0)", "pass", FAMILIES),
)  # fmt: skip
