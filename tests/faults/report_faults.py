"""Bugs that the tests must find in the report and the command line: wrong columns, units, escapes and exit codes."""

from fault import Fault

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

REPORT_FAULTS = (
    Fault("page: heads without evidence are coloured", "report/head_map.py", "    if side is None:\n        return WITHOUT_SCALE\n", "    if side is None:\n        side = 1.0\n", (HTML,)),
    Fault("page: the legend leaves out a verdict", "report/map.html.j2", "{% for verdict in verdicts %}", "{% for verdict in verdicts[1:] %}", (HTML,)),
    Fault("page: the control that is shown is the closest", "report/page_data.py", 'str(controls[f.deciding_control.name])', 'str(controls[f.closest_control.name])', (SAME,)),
    Fault("page: direction marks of tokens are kept", "report/page_inputs.py", 'else "�" for c in text', "else c for c in text", (VIEWS,)),
    Fault("page: tokens become HTML", "report/attention.js", 'make("bdi", {}, input.tokens[position]));\n', 'make("bdi", {}));\n    button.firstChild.innerHTML = input.tokens[position];\n', (VIEWS,)),
    Fault("page: weights of another head", "report/attention.js", "const start = head * rows * columns;", "const start = 0;", (VIEWS,)),
    Fault("page: extremes in the wrong order", "report/page_inputs.py", "np.argsort(-column, kind", "np.argsort(column, kind", (VIEWS,)),
    Fault("page: the table sorts numbers as text", "report/head_table.js", "Number.isFinite(number) ? number :", "Number.isFinite(number) ? String(facts[column]) :", (VIEWS,)),
    Fault("page: the address forgets the input", "report/view.js", '    if (data.inputs.length) parameters.set("input", view.input);\n', "", (VIEWS,)),
    Fault("page: paper has one map", "report/report.css", "  .map[hidden] { display: block !important; }\n", "", (VIEWS,)),
    Fault("page: paper loses the tables", "report/report.css", "  .js .findings { display: block; }\n", "", (VIEWS,)),
    Fault("words: too little power counts as an answer", "report/wording.py", "kind is NoEvidence.TOO_LITTLE_POWER:", "False:", (HEADLINES,)),
    Fault("terminal: no limit of lines", "report/terminal_summary.py", "for with_numbers in (True, False):", "for with_numbers in (True,):", (SUMMARY,)),
    Fault("terminal: control characters of a model's name", "report/terminal_summary.py", 'f"{clean(record.model)} on', 'f"{record.model} on', (SUMMARY,)),
    Fault("findings: the control that decides is the easiest to exceed", "audit/findings.py", "return max(tested, key=", "return min(tested, key=", (FINDINGS,)),
    Fault("findings: a contradicted head is compared on the theory's side", "audit/findings.py", "            side = -side\n", "            side = +side\n", (FINDINGS,)),
    Fault("shown inputs: half characters are kept", "audit/shown_inputs.py", '.encode("utf-8", "replace").decode("utf-8")', "", (SHOWN,)),
    Fault("shown inputs: keys in reverse order", "audit/shown_inputs.py", ")[..., keys]", ")[..., keys.flip(0)]", (SHOWN,)),
    Fault("shown inputs: texts of later parts are lost", "audit/parts.py", "        self.texts += other.texts\n", "", (SHARDS,)),
    Fault("pictures: the captured part of an axis ignores its variance", "theories/kernel_pca/measurement.py", "(shares * along)[:, :PICTURE_AXES]", "along[:, :PICTURE_AXES]", (SHOWN,)),
    Fault("pictures: margins by the third token", "theories/max_margin/on_heads/picture.py", "first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)", "first, _, second = scores.topk(3, dim=-1).values.unbind(dim=-1)", (SHOWN,)),
    Fault("json: p-values are not adjusted", "report/json_file.py", '"p_value_adjusted": plain(finding.adjusted_p_value)', '"p_value_adjusted": plain(finding.p_value)', (JSON,)),
    Fault("json: the interval of the agreement is that of the value", "report/json_file.py", '"agreement_interval": plain(finding.agreement_interval)', '"agreement_interval": plain(finding.interval)', (JSON,)),
    Fault("page: p-values are not adjusted in the table", "report/html.py", '"adjusted": number(finding.adjusted_p_value)', '"adjusted": number(finding.p_value)', (HTML,)),
    Fault("page: p-values are not adjusted in the data", "report/page_data.py", "number(cell.finding.adjusted_p_value)", "number(cell.finding.p_value)", (DATA,)),
    Fault("page: the interval of the agreement in the data is that of the value", "report/page_data.py", "high(f.agreement_interval)", "high(f.interval)", (DATA,)),
    Fault("page: strings are not escaped", "report/html.py", "autoescape=True", "autoescape=False", (HTML,)),
    Fault("page: the data can end its element", "report/page_data.py", '.replace("<", "\\\\u003c")', "", (DATA,)),
    Fault("chart: the controls have the interval of the median", "report/value_chart.py", '(("control", name, value, grid.control_range(name))', '(("control", name, value, summary.interval)', (CHART,)),
    Fault("counts: supported heads count twice", "report/grid.py", "return summary.verdicts.get(Verdict.SUPPORTED, 0) +", "return 2 * summary.verdicts.get(Verdict.SUPPORTED, 0) +", (TERMINAL,)),
    Fault("counts: partly supported heads are not beyond the controls", "report/grid.py", "+ summary.verdicts.get(Verdict.PARTLY_SUPPORTED, 0)", "+ 0", (TERMINAL,)),
    Fault("counts: theorems that were not checked fail", "report/wording.py", "{len(theorems) - hold - unchecked} do not hold", "{len(theorems) - hold} do not hold", (TERMINAL,)),
    Fault("headline: a share of all heads", "report/wording.py", "judged = summary.measured\n", "judged = summary.heads\n", (HEADLINES,)),
    Fault("headline: shares instead of percentages", "report/wording.py", "number(100 * value, digits=digits)", "number(value, digits=digits)", (HEADLINES,)),
    Fault("units: megabytes of 2^20 bytes", "numerics/memory.py", "{size / 1e6:.0f} MB", "{size / 2**20:.0f} MB", (TERMINAL,)),
    Fault("units: a minute of seconds is lost", "report/wording.py", "if seconds < 120:", "if seconds < 60:", (TERMINAL,)),
    Fault("terminal: the control has the range of the median", "report/claim_tables.py", "_with_interval(_control(grid.summary), _range(grid))", "_with_interval(_control(grid.summary), grid.summary.interval)", (TERMINAL,)),
    Fault("terminal: control characters in tables", "report/columns.py", "Text(clean(cell)) for cell in cells", "Text(cell) for cell in cells", (TERMINAL,)),
    Fault("terminal: control characters in headlines", "report/wording.py", "subject = clean(claim.theory if claim.role is Role.PRIMARY else", "subject = (claim.theory if claim.role is Role.PRIMARY else", (TERMINAL,)),
    Fault("terminal: single precision has the tolerance of double", "report/theorem_table.py", "({short(theorem.tolerance_single)})", "({short(theorem.tolerance)})", (TERMINAL,)),
    Fault("terminal: the residual of the control is that of the theorem", "report/theorem_table.py", '[short(t.control_residual) for t in theorems]', '[short(t.residual) for t in theorems]', (TERMINAL,)),
    Fault("command: exit code 0 for bad input", "cli/failure.py", "    except ClearheadError as error:\n        _print_line(str(error))\n        return 2", "    except ClearheadError as error:\n        _print_line(str(error))\n        return 0", (FAILURE,)),
    Fault("command: exit code 0 for a defect", "cli/failure.py", '"with the command and the lines above"\n    )\n    return 1', '"with the command and the lines above"\n    )\n    return 0', (FAILURE,)),
    Fault("command: exit code 0 if a theorem does not hold", "cli/main.py", "    if not print_checks(checks, as_json=json):\n        raise typer.Exit(1)", "    if not print_checks(checks, as_json=json):\n        raise typer.Exit(0)", (f"{SHIPPED}::test_verify_exits_with_one_if_a_theorem_fails",)),
    Fault("command: a range of layers is its two ends", "cli/audit_command.py", "layers.update(range(first, last + 1))", "layers.update((first, last))", (COMMANDS,)),
    Fault("command: all passages are read", "cli/inputs.py", "(default_passages() if source.passages is None else source.passages)[: request.inputs]", "(default_passages() if source.passages is None else source.passages)", (COMMANDS,)),
    Fault("command: control characters of an experiment", "cli/reproduce_command.py", "Text(clean(remark))", "Text(remark)", (COMMANDS,)),
    Fault("command: options that the experiment does not take", "cli/reproduce_command.py", "    if unknown:\n", "    if False:\n", (COMMANDS,)),
    Fault("summary: the calibration is not cited", "report/terminal_summary.py", "if calibration := calibration_summary(record):", "if calibration := '':", ("tests/report/test_terminal_summary.py",)),
    Fault("summary: power at one strength for both", "calibration/results.py", "return [self.detected(theory, 1.0), self.detected(theory, 0.5), *called]", "return [self.detected(theory, 1.0), self.detected(theory, 1.0), *called]", ("tests/report/test_terminal_summary.py",)),
)  # fmt: skip
