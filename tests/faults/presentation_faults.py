"""Bugs that the tests must find in records in Python, figures, inputs from files, and demonstrations."""

from fault import Fault

HEADS, RECORD, NOTEBOOK, FIGURE = (
    "tests/test_heads.py", "tests/audit/test_record.py", "tests/report/test_notebook.py", "tests/cli/test_figure.py"
)  # fmt: skip
DEMOS = "tests/report/test_demos.py"
TABLES, MEDIA, INPUTS = "tests/data/test_tables.py", "tests/data/test_media.py", "tests/cli/test_inputs.py"

PRESENTATION_FAULTS = (
    Fault("weights: hidden keys get weight", "heads.py", "scores if mask is None else scores.masked_fill(~mask, -torch.inf)", "scores", (HEADS,)),
    Fault("weights: the soft cap is ignored", "heads.py", "scores if softcap is None else softcap * torch.tanh(scores / softcap)", "scores", (HEADS,)),
    Fault("weights: sinks take no weight", "heads.py", "total = torch.logaddexp(torch.logsumexp(scores, dim=-1, keepdim=True), sinks[:, None, None])", "total = torch.logsumexp(scores, dim=-1, keepdim=True)", (HEADS,)),
    Fault("repr: a record prints its findings", "audit/record.py", "findings={len(self.findings)}, theories", "findings={self.findings}, theories", (RECORD,)),
    Fault("lookup: the layer of a record is its head", "audit/record.py", "return FindingTable(self.findings).layer(number)", "return FindingTable(self.findings).head(number)", (RECORD,)),
    Fault("notebook: cells are not escaped", "report/notebook.py", "opened + cell + closed", "opened + Markup(cell) + closed", (NOTEBOOK,)),
    Fault("notebook: meanings are not escaped", "report/notebook.py", 'Markup("<p>{}</p>").format(means) if means', 'Markup("<p>" + means + "</p>") if means', (NOTEBOOK,)),
    Fault("figure: heads without evidence are coloured", "cli/figure_command.py", 'measured[at] if finding["verdict"] in JUDGED else math.nan', "measured[at]", (FIGURE,)),
    Fault("figure: few heads fill the scale", "cli/figure_command.py", "float(np.nanmin(measured)), float(np.nanmax(measured))", "float(np.nanmin(judged)), float(np.nanmax(judged))", (FIGURE,)),
    Fault("figure: the null is the first control", "cli/figure_command.py", 'f["controls"].get(f["deciding_control"])', 'next(iter(f["controls"].values()))', (FIGURE,)),
    Fault("figure: spectra are captured fully", "cli/figure_command.py", 'axes.bar(range(1, len(part) + 1), part,', 'axes.bar(range(1, len(part) + 1), bars,', (FIGURE,)),
    Fault("figure: dollar signs are mathematics", "cli/figure_command.py", '.replace("$", r"\\$")', "", (FIGURE,)),
    Fault("tables: a CSV without a column is prose", "data/tables.py", 'SUFFIXES = (".csv", ', "SUFFIXES = (", (TABLES,)),
    Fault("tables: the second file of a dataset is not read", "data/tables.py", "        for file in files:\n", "        for file in files[:1]:\n", (TABLES,)),
    Fault("tables: a dataset reads files outside its folder", "data/tables.py", 'folder / Path(str(entry["filename"])).name for', 'folder / str(entry["filename"]) for', (TABLES,)),
    Fault("tables: numbers are text", "data/tables.py", "        if not isinstance(value, str | None):\n", "        if False:\n", (TABLES,)),
    Fault("sound: 24 bits are read from the wrong byte", "data/media.py", "((0, 0), (1, 0))", "((0, 0), (0, 1))", (MEDIA,)),
    Fault("sound: not resampled", "data/media.py", "    if own != rate:\n", "    if False:\n", (MEDIA,)),
    Fault("sound: the left channel alone", "data/media.py", "mono = samples.mean(axis=1)", "mono = samples[:, 0]", (MEDIA,)),
    Fault("inputs: all files are read", "cli/inputs.py", "chosen = files[: request.inputs]", "chosen = files", (INPUTS,)),
    Fault("inputs: the checksum is that of names", "cli/inputs.py", "{path.relative_to(folder).as_posix()} {sha256_of_file(path)}", "{path.relative_to(folder).as_posix()}", (INPUTS,)),
    Fault("inputs: waveforms of one batch have different lengths", "models/processors.py", '{"padding": True}', "{}", (INPUTS,)),
    Fault("inputs: samples of sound count as tokens", "audit/model_runs.py", "    if not isinstance(ids, Tensor):\n        return None\n    mask = batch.get(\"attention_mask\")\n", "    mask = batch.get(\"attention_mask\") if isinstance(batch, Mapping) else None\n    if isinstance(mask, Tensor):\n        return int(mask.sum())\n    if not isinstance(ids, Tensor):\n        return None\n", (INPUTS,)),
    Fault("inputs: pixels from 0 to 255", "models/processors.py", ".permute(0, 3, 1, 2) / 255}", ".permute(0, 3, 1, 2)}", (INPUTS,)),
    Fault("inputs: a processor may ask for any size", "models/folder_checks.py", "if number > MAX_INPUT_SIZES.get(name, number):", "if False:", (INPUTS,)),
    Fault("demo: the Gram matrix is not centred", "report/demos/kernel-pca.js", "value - means[i] - means[j] + mean", "value", (DEMOS,)),
    Fault("demo: values are not divided by g", "report/demos/kernel-pca.js", "(x - centre) / g[j]", "(x - centre)", (DEMOS,)),
    Fault("demo: descent without the slope of the loss", "report/demos/max-margin.js", "slope * weights[t] * excess", "-weights[t] * excess", (DEMOS,)),
    Fault("demo: the longest solution of the machine", "report/demos/max-margin.js", "dot(next, next) < dot(shortest, shortest)", "dot(next, next) > dot(shortest, shortest)", (DEMOS,)),
    Fault("demo: the rate without the dimension", "report/demos/coding-rate.js", "(2 * value) / (eps * eps)", "value / (eps * eps)", (DEMOS,)),
    Fault("demo: the ellipse without the error", "report/demos/coding-rate.js", "(i === j ? (state.eps * state.eps) / 2 : 0)", "0", (DEMOS,)),
    Fault("demo: attention without the scale", "report/demos/symmetry.js", "dot(query, key) / Math.SQRT2", "dot(query, key)", (DEMOS,)),
    Fault("demo: the convolution is mirrored", "report/demos/symmetry.js", "x[i + offset - 1]", "x[i - offset + 1]", (DEMOS,)),
    Fault("demo: points do not move", "report/demos/common.js", "    moved(point.x, point.y);", "    moved(event.clientX, event.clientY * 0);", (DEMOS,)),
    Fault("demo: a style of its own is not in the policy", "report/demo.py", "policy=page_policy(script=script, style=style)", 'policy=page_policy(script=script, style="")', (DEMOS,)),
)  # fmt: skip
