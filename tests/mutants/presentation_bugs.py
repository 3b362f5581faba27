"""Bugs that the tests must find in records in Python, figures, inputs from files, and demonstrations."""

from tests.mutants.mutant import Mutant

HEADS, RECORD, NOTEBOOK, FIGURE = (
    "tests/test_heads.py",
    "tests/audit/test_record.py",
    "tests/report/test_notebook.py",
    "tests/cli/test_figure.py",
)
DEMOS = "lab/tests/demos/test_demos.py"
TABLES, MEDIA, INPUTS = "tests/data/test_tables.py", "tests/data/test_media.py", "tests/cli/test_inputs.py"

MUTANTS = (
    Mutant("weights: hidden keys get weight", "heads:softmax_weights", "scores if mask is None else scores.masked_fill(~mask, -torch.inf)", "scores", (HEADS,)),
    Mutant("weights: the soft cap is ignored", "heads:attention_scores", "scores if softcap is None else softcap * torch.tanh(scores / softcap)", "scores", (HEADS,)),
    Mutant("weights: sinks take no weight", "heads:softmax_weights", "torch.logaddexp(torch.logsumexp(scores, dim=-1, keepdim=True), sinks[:, None, None])", "torch.logsumexp(scores, dim=-1, keepdim=True)", (HEADS,)),
    Mutant("repr: a record prints its findings", "record:AuditRecord.__repr__", "len(self.findings)", "self.findings", (RECORD,)),
    Mutant("lookup: the layer of a record is its head", "record:AuditRecord.layer", "FindingTable(self.findings).layer", "FindingTable(self.findings).head", (RECORD,)),
    Mutant("notebook: cells are not escaped", "notebook:_row", "opened + cell", "opened + Markup(cell)", (NOTEBOOK,)),
    Mutant("notebook: meanings are not escaped", "notebook:notebook_html", "Markup('<p>{}</p>').format(means)", "Markup('<p>' + means + '</p>')", (NOTEBOOK,)),
    Mutant("figure: heads without evidence are coloured", "figure_command:_heatmap", "measured[at] if finding['verdict'] in JUDGED else math.nan", "measured[at]", (FIGURE,)),
    Mutant("figure: few heads fill the scale", "figure_command:_heatmap", "(float(np.nanmin(measured)), float(np.nanmax(measured)))", "(float(np.nanmin(judged)), float(np.nanmax(judged)))", (FIGURE,)),
    Mutant("figure: the null is the first control", "figure_command:_null", "f['controls'].get(f['deciding_control'])", "next(iter(f['controls'].values()))", (FIGURE,)),
    Mutant("figure: spectra are captured fully", "figure_command:_spectra", "axes.bar(range(1, len(part) + 1), part, color=COLOURS[0], label='captured by the values')", "axes.bar(range(1, len(part) + 1), bars, color=COLOURS[0], label='captured by the values')", (FIGURE,)),
    Mutant("figure: dollar signs are mathematics", "figure_command:_label", "clean(text).replace('$', '\\\\$')", "clean(text)", (FIGURE,)),
    Mutant("tables: a CSV without a column is prose", "tables:", "('.csv', '.tsv', '.jsonl', '.ndjson', '.parquet')", "('.tsv', '.jsonl', '.ndjson', '.parquet')", (TABLES,)),
    Mutant("tables: the second file of a dataset is not read", "tables:_dataset.batches", "for file in files: ...", "for file in files[:1]: ...", (TABLES,)),
    Mutant("tables: a dataset reads files outside its folder", "tables:_dataset", "Path(str(entry['filename'])).name", "str(entry['filename'])", (TABLES,)),
    Mutant("tables: numbers are text", "tables:read_column", "not isinstance(value, str | None)", "False", (TABLES,)),
    Mutant("sound: 24 bits are read from the wrong byte", "media:_read_wav", "(1, 0)", "(0, 1)", (MEDIA,)),
    Mutant("sound: not resampled", "media:read_audio", "own != rate", "False", (MEDIA,)),
    Mutant("sound: the left channel alone", "media:read_audio", "samples.mean(axis=1)", "samples[:, 0]", (MEDIA,)),
    Mutant("inputs: all files are read", "inputs:_of_files", "files[:request.inputs]", "files", (INPUTS,)),
    Mutant("inputs: the checksum is that of names", "inputs:_of_files", "f'{path.relative_to(folder).as_posix()} {sha256_of_file(path)}'", "f'{path.relative_to(folder).as_posix()}'", (INPUTS,)),
    Mutant("inputs: waveforms of one batch have different lengths", "processors:_processor.encode_audio", "{'padding': True}", "{}", (INPUTS,)),
    Mutant("inputs: samples of sound count as tokens", "passes:_count_tokens", "if not isinstance(ids, Tensor): return None\nmask = batch.get('attention_mask')", "mask = batch.get('attention_mask') if isinstance(batch, Mapping) else None\nif isinstance(mask, Tensor): return int(mask.sum())\nif not isinstance(ids, Tensor): return None", (INPUTS,)),
    Mutant("inputs: pixels from 0 to 255", "native:native_processor.encode", "torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255", "torch.from_numpy(pixels).permute(0, 3, 1, 2)", (INPUTS,)),
    Mutant("inputs: a processor may ask for any size", "folder_checks:check_processor", "number > MAX_INPUT_SIZES.get(name, number)", "False", (INPUTS,)),
    Mutant("demo: the Gram matrix is not centred", "kernel-pca.js", "value - means[i] - means[j] + mean", "value", (DEMOS,)),
    Mutant("demo: values are not divided by g", "kernel-pca.js", "(x - centre) / g[j]", "(x - centre)", (DEMOS,)),
    Mutant("demo: descent without the slope of the loss", "max-margin.js", "slope * weights[t] * excess", "-weights[t] * excess", (DEMOS,)),
    Mutant("demo: the longest solution of the machine", "max-margin.js", "dot(next, next) < dot(shortest, shortest)", "dot(next, next) > dot(shortest, shortest)", (DEMOS,)),
    Mutant("demo: the rate without the dimension", "coding-rate.js", "(2 * value) / (eps * eps)", "value / (eps * eps)", (DEMOS,)),
    Mutant("demo: the ellipse without the error", "coding-rate.js", "(i === j ? (state.eps * state.eps) / 2 : 0)", "0", (DEMOS,)),
    Mutant("demo: attention without the scale", "symmetry.js", "dot(query, key) / Math.SQRT2", "dot(query, key)", (DEMOS,)),
    Mutant("demo: the convolution is mirrored", "symmetry.js", "x[i + offset - 1]", "x[i - offset + 1]", (DEMOS,)),
    Mutant("demo: points do not move", "common.js", "    moved(point.x, point.y);", "    moved(event.clientX, event.clientY * 0);", (DEMOS,)),
    Mutant("demo: a style of its own is not in the policy", "demo:render_demo", "page_policy(script=script, style=style)", "page_policy(script=script, style='')", (DEMOS,)),
)  # fmt: skip
