"""Bugs that the tests must find in the report and the command line: wrong columns, units, escapes and exit codes."""

from tests.mutants.mutant import Mutant

TERMINAL, HTML, DATA = (f"tests/report/test_{name}.py" for name in ("terminal", "html", "page_data"))
JSON, HEADLINES, CHART = (f"tests/report/test_{name}.py" for name in ("json_file", "headlines", "value_chart"))
COMMANDS, FAILURE = "tests/cli/test_commands.py", "tests/as_shipped/test_failure.py"
SHIPPED = "tests/as_shipped/test_command_line.py"
SUMMARY, FINDINGS, SHOWN, SHARDS = (
    "tests/report/test_terminal_summary.py",
    "tests/audit/test_findings.py",
    "tests/audit/test_shown_inputs.py",
    "tests/audit/test_shards.py",
)
VIEWS, SAME = "tests/report/test_browser_views.py", "tests/report/test_same_numbers.py"

MUTANTS = (
    Mutant("page: heads without evidence are coloured", "head_map:shade_of", "return WITHOUT_SCALE", "side = 1.0", (HTML,)),
    Mutant("page: the legend leaves out a verdict", "map.html.j2", "{% for verdict in verdicts %}", "{% for verdict in verdicts[1:] %}", (HTML,)),
    Mutant("page: the control that is shown is the closest", "page_data:_claim", "f.deciding_control.name", "f.closest_control.name", (SAME,)),
    Mutant("page: direction marks of tokens are kept", "page_data:visible_text", "' ' if c.isspace() else '�'", "' ' if c.isspace() else c", (VIEWS,)),
    Mutant("page: tokens become HTML", "attention.js", 'make("bdi", {}, input.tokens[position]));\n', 'make("bdi", {}));\n    button.firstChild.innerHTML = input.tokens[position];\n', (VIEWS,)),
    Mutant("page: weights of another head", "attention.js", "const start = head * rows * columns;", "const start = 0;", (VIEWS,)),
    Mutant("page: extremes in the wrong order", "page_data:_extremes", "-column", "column", (VIEWS,)),
    Mutant("page: the table sorts numbers as text", "head_table.js", "Number.isFinite(number) ? number :", "Number.isFinite(number) ? String(facts[column]) :", (VIEWS,)),
    Mutant("page: the address forgets the input", "view.js", '    if (data.inputs.length) parameters.set("input", view.input);\n', "", (VIEWS,)),
    Mutant("page: paper has one map", "report.css", "  .map[hidden] { display: block !important; }\n", "", (VIEWS,)),
    Mutant("page: paper loses the tables", "report.css", "  .js .findings { display: block; }\n", "", (VIEWS,)),
    Mutant("words: too little power counts as an answer", "wording:meaning", "kind is NoEvidence.TOO_LITTLE_POWER", "False", (HEADLINES,)),
    Mutant("terminal: no limit of lines", "terminal:print_summary", "(True, False)", "(True,)", (SUMMARY,)),
    Mutant("terminal: control characters of a model's name", "terminal:_audited_briefly", "clean(record.model)", "record.model", (SUMMARY,)),
    Mutant("findings: the control that decides is the easiest to exceed", "findings:Finding.deciding_control", "max(tested, key=lambda c: (_one_sided(c, (self.value - c.value) * side > 0), side * c.value))", "min(tested, key=lambda c: (_one_sided(c, (self.value - c.value) * side > 0), side * c.value))", (FINDINGS,)),
    Mutant("findings: a contradicted head is compared on the theory's side", "findings:Finding.deciding_control", "side = -side", "side = +side", (FINDINGS,)),
    Mutant("shown inputs: half characters are kept", "shown_inputs:_decoded", "str(text)[:most + 1].encode('utf-8', 'replace').decode('utf-8')", "str(text)[:most + 1]", (SHOWN,)),
    Mutant("shown inputs: keys in reverse order", "shown_inputs:_weights", "(..., keys)", "(..., keys.flip(0))", (SHOWN,)),
    Mutant("shown inputs: texts of later parts are lost", "part:Pass.merge", "self.texts += other.texts", "", (SHARDS,)),
    Mutant("pictures: the captured part of an axis ignores its variance", "measurement:_along_axes", "shares * along", "along", (SHOWN,)),
    Mutant("pictures: margins by the third token", "picture:margins", "first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)", "first, _, second = scores.topk(3, dim=-1).values.unbind(dim=-1)", (SHOWN,)),
    Mutant("json: p-values are not adjusted", "json_file:_finding", "finding.adjusted_p_value", "finding.p_value", (JSON,)),
    Mutant("json: the interval of the agreement is that of the value", "json_file:_finding", "finding.agreement_interval", "finding.interval", (JSON,)),
    Mutant("page: p-values are not adjusted in the table", "html:_facts", "finding.adjusted_p_value", "finding.p_value", (HTML,)),
    Mutant("page: p-values are not adjusted in the data", "page_data:_claim", "cell.finding.adjusted_p_value", "cell.finding.p_value", (DATA,)),
    Mutant("page: the interval of the agreement in the data is that of the value", "page_data:_claim", "high(f.agreement_interval)", "high(f.interval)", (DATA,)),
    Mutant("page: strings are not escaped", "html:page_template", "Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(lambda file: page_file(file, package)))", "Environment(autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(lambda file: page_file(file, package)))", (HTML,)),
    Mutant("page: the data can end its element", "page_data:page_data", "text.replace('<', '\\\\u003c')", "text", (DATA,)),
    Mutant("chart: the controls have the interval of the median", "charts:value_chart", "grid.control_range(name)", "summary.interval", (CHART,)),
    Mutant("counts: supported heads count twice", "grid:beyond_controls", "summary.verdicts.get(Verdict.SUPPORTED, 0)", "2 * summary.verdicts.get(Verdict.SUPPORTED, 0)", (TERMINAL,)),
    Mutant("counts: partly supported heads are not beyond the controls", "grid:beyond_controls", "summary.verdicts.get(Verdict.PARTLY_SUPPORTED, 0)", "0", (TERMINAL,)),
    Mutant("counts: theorems that were not checked fail", "theorems.table:theorems_as_json", "len(theorems) - hold - not_checked", "len(theorems) - hold", ("lab/tests/theorems/test_table.py",)),
    Mutant("headline: a share of all heads", "wording:_where", "summary.measured", "summary.heads", (HEADLINES,)),
    Mutant("headline: shares instead of percentages", "wording:in_prose", "100 * value", "value", (HEADLINES,)),
    Mutant("units: megabytes of 2^20 bytes", "memory:format_bytes", "size / 1000000.0", "size / 2 ** 20", (TERMINAL,)),
    Mutant("units: a minute of seconds is lost", "wording:duration", "seconds < 120", "seconds < 60", (TERMINAL,)),
    Mutant("terminal: the control has the range of the median", "terminal_tables:_control_interval", "_range(grid)", "grid.summary.interval", (TERMINAL,)),
    Mutant("terminal: control characters in tables", "columns:text_column", "clean(cell)", "cell", (TERMINAL,)),
    Mutant("terminal: control characters in headlines", "wording:headline", "clean(claim.theory if claim.role is Role.PRIMARY else f'{claim.theory} by {claim.statistic}')", "claim.theory if claim.role is Role.PRIMARY else f'{claim.theory} by {claim.statistic}'", (TERMINAL,)),
    Mutant("terminal: single precision has the tolerance of double", "theorems.table:_single", "theorem.tolerance_single", "theorem.tolerance", ("lab/tests/theorems/test_table.py",)),
    Mutant("terminal: the residual of the control is that of the theorem", "theorems.table:_columns", "t.control_residual", "t.residual", ("lab/tests/theorems/test_table.py",)),
    Mutant("command: exit code 0 for bad input", "failure:exit_code_of", "_print_line(str(error)); return 2", "_print_line(str(error)); return 0", (FAILURE,)),
    Mutant("command: exit code 0 for a defect", "failure:_report_defect", "return 1", "return 0", (FAILURE,)),
    Mutant("command: exit code 0 if a theorem does not hold", "commands:verify", "typer.Exit(1)", "typer.Exit(0)", (f"{SHIPPED}::test_verify_exits_with_one_if_a_theorem_fails",)),
    Mutant("command: a range of layers is its two ends", "options:layer_numbers", "range(first, last + 1)", "(first, last)", (COMMANDS,)),
    Mutant("command: all passages are read", "inputs:_of_text", "(default_passages() if source.passages is None else source.passages)[:request.inputs]", "default_passages() if source.passages is None else source.passages", (COMMANDS,)),
    Mutant("command: control characters of an experiment", "reproduce_command:print_outcome", "clean(remark)", "remark", (COMMANDS,)),
    Mutant("command: options that the experiment does not take", "reproduce_command:run_experiment", "if unknown: ...", "if False: ...", (COMMANDS,)),
    Mutant("summary: the calibration is not cited", "terminal:_print_all", "calibration_summary(record)", "''", ("tests/report/test_terminal_summary.py",)),
    Mutant("summary: power at one strength for both", "results:Calibration.counts", "self.detected(theory, 0.5)", "self.detected(theory, 1.0)", ("tests/report/test_terminal_summary.py",)),
)  # fmt: skip
