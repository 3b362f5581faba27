# make audit      install the instrument, audit the default model on the default text, write clearhead-report/
# make test       install the instrument and its laboratory (lab/), run every check
# make docs       install both, build the documentation site in build/site/index.html, without the network
# make test-cpus  run the tests of arithmetic as other processors round, under 40 minutes; not part of make test
# make sanitize   run the kernel on 10,000 random shapes under sanitizers, for each vector width
# make faults     attack what Clearhead reads, writes and computes, about 15 minutes: docs/faults.md; not part of make test
# make mutants    plant bugs one at a time and report which the tests miss, hours: docs/faults.md; not part of make test
# The first three work on a fresh machine with python3, pip and make. They install again only if a pyproject.toml or the
# kernel changes. A C++ compiler is used if available: see clearhead doctor.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2
# Each worker starts with a contiguous half of the tests, so that fixtures of a file are created once.
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
KERNEL := $(wildcard src/clearhead/kernels/*.cpp src/clearhead/kernels/*.h src/clearhead/kernels/*.hpp)
INSTALLED := pyproject.toml lab/pyproject.toml constraints.txt hatch_build.py src/clearhead/kernels/build.py $(KERNEL)
LIBRARY := src/clearhead/kernels/_symmetric.so
# pip hides the output of the build.
REPORT_KERNEL := test -e $(LIBRARY) || echo "without the compiled kernel: $(BIN)/python -m clearhead.kernels.build prints the reason"

export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: audit test docs test-cpus sanitize lint types contracts tests-typed tests-shipped tests-without-kernel tests-rounding browser clean faults mutants

audit: $(VENV)/.ready-to-audit
	@$(BIN)/clearhead audit $(ARGS)

test: lint types contracts browser docs tests-typed tests-shipped tests-without-kernel tests-rounding

# Warnings are errors: broken links, missing pages, docstrings that cannot be read.
docs: $(VENV)/.ready-for-docs
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

# Needs a compiler with sanitizers. `make test` runs a few hundred shapes.
sanitize: $(VENV)/.ready-to-test
	$(BIN)/python tests/kernels/sanitize.py $(ARGS)

# Prints counts, and a command to repeat each fault. `make test` runs a sample. PYTHONPATH may hold another source tree.
FAULTS := current_folder hostile_folders hostile_reports stored_damage degenerate_numbers interruptions shards \
  hostile_inputs wrong_records
faults: $(VENV)/.ready-to-test
	@for name in $(FAULTS); do echo "$$name"; PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/faults/$$name.py || exit 1; done

# Prints one line per bug. ARGS="--only judging: softmax", ARGS="--changed HEAD~3", ARGS="--sample 40 --log build/mutants.tsv".
mutants: $(VENV)/.ready-to-test
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/.ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-to-test
	$(BIN)/mypy

contracts: $(VENV)/.ready-to-test
	$(BIN)/lint-imports

# Checks shape annotations at run time, in the tests of annotated code. The next target tests what users run; it leaves
# out those tests of annotated code that run alike without annotations (conftest.py).
TYPED := $(addprefix tests/,numerics operators modules theories testing capture loading \
  test_annotations.py test_heads.py test_shapes.py) \
  $(addprefix lab/tests/,models robustness theorems experiments/svm experiments/crate)
tests-typed: $(VENV)/.ready-to-test
	CLEARHEAD_TYPECHECK=1 $(PYTEST) $(TYPED)

tests-shipped: $(VENV)/.ready-to-test
	CLEARHEAD_TYPED="$(TYPED)" $(PYTEST)

# Tolerances must hold on every processor: torch's loops, BLAS libraries and the kernel's variants round differently.
test-cpus: $(VENV)/.ready-to-test
	$(BIN)/python tests/cpus.py -n $(WORKERS) --dist worksteal $(ARGS)

# A sample of it. tests/audit/test_metamorphic.py compares the verdicts of whole audits.
tests-rounding: $(VENV)/.ready-to-test
	$(BIN)/python tests/cpus.py --rows 1 2 -n $(WORKERS) tests/numerics tests/audit/test_rounding.py \
	  tests/audit/test_judging.py tests/theories/kernel_pca tests/theories/max_margin/test_measurement.py

# Operators with a kernel must work without it.
tests-without-kernel: $(VENV)/.ready-to-test
	CLEARHEAD_KERNEL=off $(PYTEST) tests/kernels tests/modules tests/operators/test_symmetric.py \
	  tests/operators/test_symmetric_range.py tests/operators/test_pursuit.py tests/theories/kernel_pca/test_captured.py

# Installs Debian's Chromium if possible. Otherwise the browser tests are skipped with a reason.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    echo "installing Chromium for the browser tests"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      chromium chromium-driver >/dev/null; \
	  else echo "Chromium is missing and cannot be installed without root: the browser tests are skipped"; fi; }

$(VENV)/.created:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.ready-to-audit: $(INSTALLED) | $(VENV)/.created
	@echo "installing clearhead and the demo model"
	@$(INSTALL) --editable ".[demo]"
	@$(REPORT_KERNEL)
	@touch $@

$(VENV)/.ready-to-test: $(INSTALLED) | $(VENV)/.created
	@echo "installing clearhead and its laboratory with their test dependencies"
	@$(INSTALL) --editable ".[all]" --editable "./lab[all]" --group dev
	@$(INSTALL) --no-deps torchattacks  # its metadata pins old versions of packages that the tests do not use
	@$(REPORT_KERNEL)
	@$(BIN)/python -c "import torch; v = torch.__version__; assert v.split('+')[0] == '2.13.0', f'torch {v} was installed instead of the pinned version'"
	@touch $@

$(VENV)/.ready-for-docs: $(INSTALLED) | $(VENV)/.created
	@echo "installing clearhead with the tools for its documentation"
	@$(INSTALL) --editable . --editable ./lab --group docs
	@touch $@

clean:
	rm -rf $(VENV) build/site clearhead-report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache $(LIBRARY)*
