"""Bugs that the tests must find in the interfaces, capture, swap, the fidelity check and the traces of tensors."""

from tests.mutants.mutant import Mutant

CALLS = ("tests/interfaces/test_calls.py",)
SEVERAL = ("tests/capture/test_several.py",)
RULE = ("tests/capture/test_stream_rule.py",)
NUMBERS = ("tests/swap/test_layer_numbers.py",)
LAYERS = ("tests/interfaces/test_layers.py",)
EVIDENCE = ("tests/interfaces/test_layers.py::test_the_fidelity_check_requires_every_measurement",)
FAMILIES = ("tests/interfaces/test_families.py",)
SDPA = ("tests/interfaces/test_sdpa.py", "tests/interfaces/test_calls.py")
TORCH = ("tests/interfaces/test_torch_mha.py", "tests/capture/test_several.py")
GRADIENTS = ("tests/capture/test_gradients.py",)
SWAP = ("tests/swap/test_swap.py", "tests/swap/test_heads.py")
CACHES = ("tests/swap/test_caches.py",)
ROWS = ("tests/swap/test_past_rows.py",)

MUTANTS = (
    Mutant("masks: causality aligned at the end", "masks:causal_mask", "torch.ones(1, 1, n, m, dtype=torch.bool, device=device).tril()", "torch.ones(1, 1, n, m, dtype=torch.bool, device=device).tril(m - n)", CALLS),
    Mutant("masks: bias dropped if there is a mask", "masks:split_mask", "rest if bool(rest.any()) else None", "None if mask is not None else rest if bool(rest.any()) else None", CALLS),
    Mutant("masks: -10000 is a bias", "call:", "HIDING = 1000.0", "HIDING = 1000000.0", LAYERS),
    Mutant("sdpa: grouped values in another order", "sdpa:read_call", "v.repeat_interleave(groups, dim=-3)", "v.repeat(1, groups, 1, 1)", CALLS),
    Mutant("sdpa: the scale left out", "sdpa:read_call", "q.shape[-1] ** (-0.5) if scale is None else float(scale)", "q.shape[-1] ** (-0.5)", CALLS),
    Mutant("sdpa: causality left out", "sdpa:read_call", "arguments.get('is_causal', False)", "False", SDPA),
    Mutant("sdpa: the outermost module calls", "sdpa:_ModelAttachment.caller", "isinstance(candidate, nn.Module) and id(candidate) in self.paths", "candidate is self.module", LAYERS),
    Mutant("sdpa: a module that calls itself is recorded twice", "sdpa:_SdpaAttachment.__call__", "_is_active(self)", "False", CALLS),
    Mutant("sdpa: fused_attn not restored", "sdpa:_SdpaAttachment.remove", "self.module.__dict__['fused_attn'] = self.fused", "pass", ("tests/swap/test_swapped_models.py", "tests/swap/test_swap.py")),
    Mutant("hugging face: dropout in evaluation", "huggingface:read_call", "float(arguments.get('dropout', 0.0)) if module.training else 0.0", "float(arguments.get('dropout', 0.0))", CALLS),
    Mutant("hugging face: grouped keys in another order", "huggingface:read_call", "k.repeat_interleave(groups, dim=1)", "k.repeat(1, groups, 1, 1)", CALLS),
    Mutant("hugging face: causal without a mask in eager attention", "huggingface:_Proxy.get_interface", "function is not default", "True", ("tests/swap/test_swap.py",)),
    Mutant("hugging face: the position bias left out", "huggingface:read_call", "bias = position if bias is None else bias if position is None else bias + position", "pass", FAMILIES),
    Mutant("hugging face: the soft cap left out", "huggingface:read_call", "arguments.get('softcap')", "None", FAMILIES),
    Mutant("hugging face: sinks left out", "huggingface:read_call", "None if sinks is None else sinks.reshape(-1)", "None", FAMILIES),
    Mutant("hugging face: a copy computes with the original's weights", "huggingface:_HuggingFaceAttachment.__setstate__", "type(self.module).forward.__get__(self.module)", "lambda *args, **kwargs: type(self.module).forward(self.module, *args, **kwargs)", ("tests/swap/test_swap.py",)),
    Mutant("hugging face: masks of any shape", "huggingface:read_call", "added.ndim != 4", "False", ("tests/swap/test_refusals.py",)),
    Mutant("torch: kept off its fused path", "torch_mha:_TorchAttachment.changed", "if not self.replaces: self._remove_hook()", "self.hook = self.module.register_forward_pre_hook(_no_op).id", TORCH),
    Mutant("torch: modes stay on around its encoder", "torch_mha:_Encoder.__call__", "with without_modes(): return proceed(*args, **kwargs)", "return proceed(*args, **kwargs)", SEVERAL),
    Mutant("torch: the slow path is not run", "torch_mha:_EncoderLayer.__call__", "_CALLS.count == calls", "False", TORCH),
    Mutant("torch: maps of its projections not traced", "torch_mha:_TorchAttachment.__call__", "with_suspended_modes()", "without_modes()", SEVERAL),
    Mutant("torch: padding left out", "torch_mha_call:TorchCall._added", "terms.append(padding.view(b, 1, 1, m))", "pass", TORCH),
    Mutant("torch: a second draw for dropout", "torch_mha_call:TorchCall.attention_output", "state is not None", "False", TORCH),
    Mutant("torch: an output that does not fit is believed", "torch_mha_call:TorchCall.check", "float(difference) > 4 * tolerance(output.dtype, terms=module.embed_dim) * (1 + float(expected.abs().amax()))", "False and float(difference) > 4 * tolerance(output.dtype, terms=module.embed_dim) * (1 + float(expected.abs().amax()))", ("tests/interfaces/test_torch_mha.py",)),
    Mutant("described: the third of a fused map", "described:_Child.__call__", "output.chunk(3, dim=-1)[self.third]", "output.chunk(3, dim=-1)[0]", FAMILIES),
    Mutant("described: a layer that never reaches out", "described:_DescribedAttachment.__call__", "self.permanent and (not run.handled)", "False", ("tests/swap/test_refusals.py",)),
    Mutant("described: children keep their wrappers", "described:_DescribedAttachment.remove", "unwrap_forward(child, wrapper)", "pass", FAMILIES),
    Mutant("native: the operator is not restored", "native:_NativeAttachment.remove", "self.module.__dict__['operator'] = self.operator", "pass", ("tests/interfaces/test_native.py",)),
    Mutant("native: one head's batch taken for heads", "native:_Operator.__call__", "1 if isinstance(module, _classes(*_ONE_HEAD)) else None", "None", SWAP),
    Mutant("forward: copies keep temporary wrappers", "forward:_WrappedForward.__getstate__", "[wrapper for wrapper in self.wrappers if wrapper.permanent]", "list(self.wrappers)", SEVERAL),
    Mutant("forward: wrappers below stay", "forward:wrap_forward", "module.__dict__.setdefault(_REPLACED, []).append(forward)", "module.__dict__[_REPLACED] = [forward]", CALLS),
    Mutant("attachment: copies keep temporary handlers", "attachment:Attachment.__getstate__", "[handler for handler in self.handlers if handler.permanent]", "list(self.handlers)", SEVERAL),
    Mutant("attachment: a swap outside a capture", "attachment:attach_to", "attachment.handlers.insert(0 if handler.permanent else len(attachment.handlers), handler)", "attachment.handlers.append(handler)", CALLS),
    Mutant("attachment: an untouched output loses the model's tensor", "attachment:_handled", "output is original.output and original.model_output is not None", "False", ("tests/capture/test_several.py", "tests/capture/test_stream.py")),
    Mutant("passes: calls of other threads count", "passes:Passes.listening", "not self._paused and any((passes is self for passes in _OPEN.passes))", "not self._paused", SEVERAL),
    Mutant("passes: a measurement's attention counts", "passes:Passes.listening", "not self._paused and any((passes is self for passes in _OPEN.passes))", "any((passes is self for passes in _OPEN.passes))", (*SEVERAL, *GRADIENTS)),
    Mutant("whole model: parts of layers count twice", "whole_model:attached", "parts = {id(part) for layer in layers for part in layer.module.modules()}", "parts: set[int] = set()", FAMILIES),
    Mutant("order: children in order of registration", "finding:_names_in", "yield from _names_in(method, kind, visited)", "pass", (*CALLS, *NUMBERS)),
    Mutant("layouts: windows of an input are separate inputs", "layouts:_windows", "windowed and 0 < inputs < batch and (batch % inputs == 0)", "windowed and 0 < inputs < batch", CALLS),
    Mutant("layouts: every batch is heads", "layouts:Layout.of", "heads * max(inputs, 1)", "heads", LAYERS),
    Mutant("expected: modules that other threads run are counted", "expected:ExpectedModules.note", "self._counts()", "True", SEVERAL),
    Mutant("capture: one number for all calls of a module", "recording:Capture.number", "self._calls[heads.name] += 1", "", LAYERS),
    Mutant("capture: graphs are kept", "recording:_detached", "heads.q.detach()", "heads.q", GRADIENTS),
    Mutant("capture: paths of the outer model", "recording:Capture.name_of", "self.counter.paths.get(id(call.module), call.name)", "call.name", SEVERAL),
    Mutant("gradients: a zero gradient is one", "gradients:_Waiting.with_gradient", "gradient is not None and bool(gradient.any())", "gradient is not None", GRADIENTS),
    Mutant("gradients: tensors written over are shown", "gradients:_Waiting.with_gradient", "_versions(self.heads) != self.versions", "False", GRADIENTS),
    Mutant("swap: rows without keys", "operator:_run", "out if has_keys is None else torch.where(has_keys, out, 0)", "out", CALLS),
    Mutant("swap: plain functions get rows without keys", "operator:_run", "mask = mask | ~has_keys", "pass", CALLS),
    Mutant("swap: heads in the batch stay there", "operator:apply_operator", "call.folded is not None and call.q.ndim > 2", "False", SWAP),
    Mutant("swap: windows taken for heads", "sdpa:read_call", "q.ndim == 5 and 1 < heads == q.shape[1]", "False", SWAP),
    Mutant("swap: earlier queries are the last ones", "operator:_run_last", "out[..., first:, :]", "out[..., :stop - first, :]", CACHES),
    Mutant("swap: rows of an overwritten cache", "operator:PastRows.extend", "k.clone()", "k", ROWS),
    Mutant("swap: rows of other values", "operator:_Stored.equal_length", "[(self.k[..., :length, :], k[..., :length, :]), (self.v[..., :length, :], v[..., :length, :])]", "[(self.k[..., :length, :], k[..., :length, :])]", ROWS),
    Mutant("swap: rows under another mask", "operator:_Stored.equal_length", "bool(same_keys) and all((torch.equal(a, b) for a, b in pairs))", "all((torch.equal(a, b) for a, b in pairs))", ROWS),
    Mutant("swap: rows without gradients", "operator:PastRows.extend", "torch.is_grad_enabled() or torch.compiler.is_compiling()", "torch.compiler.is_compiling()", ROWS),
    Mutant("swap: rows outlive the swap", "swaps:Swap._restore", "handler.past.clear()", "pass", ROWS),
    Mutant("swap: cross-attention accepted", "operator:_apply", "call.cross or (n != m and (not call.causal)) or n > m", "n != m and (not call.causal) or n > m", ("tests/swap/test_refusals.py",)),
    Mutant("swap: numbers not compared with the pass", "layers:FirstPass.check", "not choice.by_number or positions == (choice.index,) or (not positions)", "True", NUMBERS),
    Mutant("swap: a layer that never runs", "layers:FirstPass.check", "if missed: ...", "if False: ...", ("tests/swap/test_swapped_models.py",)),
    Mutant("swap: an operator's child stays", "swaps:Swap._restore", "module._modules.pop(CHILD_NAME, None)", "", SWAP),
    Mutant("swap: put over another swap", "swaps:_require_free", "isinstance(handler, OperatorHandler)", "False", SWAP),
    Mutant("fidelity: changed outputs pass", "fidelity:_require", "fidelity.output_difference != 0", "fidelity.output_difference > 1", EVIDENCE),
    Mutant("fidelity: attention that does not matter passes", "fidelity:_require", "not fidelity.control_change > fidelity.swap_error", "False", EVIDENCE),
    Mutant("fidelity: NaN among outputs lost", "fidelity:_largest", "math.nan if any((math.isnan(value) for value in values)) else max(values)", "max(values)", ("tests/interfaces/test_layers.py::test_a_nan_among_outputs_fails_the_fidelity_check",)),
    Mutant("fidelity: calls that were not replaced", "fidelity:_require", "replaced_calls != len(fidelity.layers)", "False", EVIDENCE),
    Mutant("output weight: sign of a difference lost", "output_maps:coefficient", "float(kwargs.get('alpha', 1)) * (-1 if 'sub' in name else 1)", "float(kwargs.get('alpha', 1))", RULE),
    Mutant("output weight: a gate as a constant", "output_maps:OutputMap._scale", "depends(nodes[1 - at]) or factor.numel() not in (1, *factor.shape[-1:])", "factor.numel() not in (1, *factor.shape[-1:])", RULE),
    Mutant("output weight: torch's projection is not transposed", "output_maps:OutputMap.__init__", "self._keep(projection).detach().mT", "self._keep(projection).detach()", ("tests/capture/test_stream.py",)),
    Mutant("output weight: the projection of a replaced output", "recording:Capture.block_call", "None if replaced else projection", "projection", ("tests/capture/test_stream.py",)),
    Mutant("output weight: features in another order", "output_maps:OutputMap._project", "nodes[at] in self._copies and weight.ndim == 2 and self._is_output(x)", "nodes[at] in self._copies and weight.ndim == 2", RULE),
    Mutant("residual stream: the normed sum as the sum", "blocks:Block.settle", "('total', 'total')", "('total', between)", ("tests/capture/test_stream.py",)),
    Mutant("fidelity: rows without keys count", "fidelity:recompute_error", "difference = torch.where(heads.rows, difference, 0)", "pass", FAMILIES),
)  # fmt: skip
