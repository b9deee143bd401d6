# Everything runs in .venv, which is built on first use from requirements.lock (every file checked by its hash).
# The machine needs Python 3.11 or newer and make. Another Python: make PYTHON=python3.13 …

PYTHON ?= python3
HOLDFAST_CHAOS_KILLS ?= 50

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
DEPS := .venv/.dependencies
READY := .venv/.holdfast

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help
help: ## show this list
	@echo "Holdfast: durable jobs that keep their promises. Start with: make demo"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(READY) ## watch several hundred jobs survive a killed worker (under 40 s)
	@$(BIN)/holdfast demo

.PHONY: examples
examples: $(READY) ## run the examples: documents, daily summaries, an order with undo
	@for name in document_pipeline daily_summaries order_with_undo; do \
		echo "examples: $$name"; $(BIN)/python examples/$$name.py || exit 1; echo; \
	done

.PHONY: test
test: ## all that must pass before a change goes in: lint, types, arch, unit
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) arch
	@$(MAKE) unit

.PHONY: lint
lint: $(READY) ## ruff: rules and formatting
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "The files above are not formatted; run: make fmt" >&2; exit 1; }

.PHONY: types
types: $(READY) ## mypy, strict
	@echo "types: mypy"
	@$(BIN)/mypy --no-error-summary

.PHONY: arch
arch: $(READY) ## import-linter: which layer may import which
	@echo "arch: import-linter"
	@$(BIN)/lint-imports --no-logo > .venv/arch.log 2>&1 || { cat .venv/arch.log; exit 1; }

AWS_SUITES := $(foreach suite,conformance races machine,tests/$(suite)/test_dynamodb.py tests/$(suite)/test_contract.py)
# Both layouts are among the tests, as far as there is time for them.
AWS_QUICK := $(patsubst %,tests/aws/test_%.py,doors lambda messages reader_000 reader_002 table)
AWS_LONG := $(filter-out $(AWS_QUICK),$(wildcard tests/aws/test_*.py)) $(AWS_SUITES)

.PHONY: unit
unit: $(READY) ## pytest, three tests at once, without the long runs: chaos, mutants, browser, and most of aws
	@echo "unit: pytest"
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not aws" --ignore=tests/chaos --ignore=tests/mutants --ignore=tests/browser $(AWS_LONG:%=--ignore=%)

.PHONY: again
again: $(READY) ## the tests that failed last, once more, one at a time
	@echo "again: pytest"
	@$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

.PHONY: aws
aws: $(READY) ## the suites of the stores on AWS, on an emulator that is installed in .venv-aws
	@echo "aws: pytest"
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/aws $(AWS_SUITES); stores=$$?; \
		$(BIN)/python -m pytest -q -n 2 --dist worksteal -m aws tests/seeds tests/runtime && exit $$stores

.PHONY: aws-second
aws-second: $(READY) ## the same suites on a second pair of emulators, which needs Node: dynoxide and local-aws-sqs
	@echo "aws-second: pytest"
	@$(BIN)/python -m tests.aws.second $(BIN)/python -m pytest -q -n 2 --dist worksteal $(AWS_SUITES)

POSTGRES_SUITES := $(foreach suite,conformance races machine,tests/$(suite)/test_postgres.py) \
	$(patsubst %,tests/stores/test_postgres_%.py,bell calls claims gate lanes marks plans reckoning sql steps storing transactions traps ways workflows)

.PHONY: postgres-versions
postgres-versions: $(READY) ## the suites of the PostgreSQL store on 14 to 17, for most of which it needs Node
	@$(BIN)/python -m tests.versions $(BIN)/python -m pytest -q -n 2 --dist worksteal $(POSTGRES_SUITES)

.PHONY: browser
browser: $(READY) ## the dashboard in Chromium, with screenshots of every page in .artifacts/screenshots
	@echo "browser: pytest"
	@$(BIN)/python -m pytest -q tests/browser

.PHONY: fmt
fmt: $(READY) ## format, and mend what ruff can mend
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: bench
bench: $(READY) ## speed and memory on SQLite and PostgreSQL, as ratios against the raw floor
	@$(BIN)/python -m bench

.PHONY: bench-peers
bench-peers: $(READY) ## ours beside the peers on PostgreSQL; installs them in .venv-peers
	@$(BIN)/python -m bench --peers

.PHONY: mutants
mutants: $(READY) ## plant known bugs one by one; each must make a test fail
	@$(BIN)/python tests/mutants/run.py

.PHONY: chaos
chaos: export HOLDFAST_CHAOS_KILLS := $(HOLDFAST_CHAOS_KILLS)
chaos: $(READY) ## kill -9 workers at any moment, HOLDFAST_CHAOS_KILLS=50 times
	@echo "chaos: $(HOLDFAST_CHAOS_KILLS) kills"
	@$(BIN)/python -m pytest -q --timeout 3600 tests/chaos

.PHONY: lock
lock: ## choose the newest allowed dependencies anew and write requirements.lock
	@$(call check_python)
	@echo "lock: resolving"
	@rm -rf .venv-lock
	@$(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip --disable-pip-version-check -qq install uv
	@.venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --upgrade \
		--no-header --annotation-style line --group dev --output-file .venv-lock/requirements pyproject.toml > /dev/null
	@{ echo "# Written by \`make lock\` from pyproject.toml; not edited by hand."; cat .venv-lock/requirements; } > requirements.lock
	@rm -rf .venv-lock

.PHONY: build
build: $(READY) ## the wheel and the source archive, in dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist

.PHONY: clean
clean: ## remove all that was built, .venv too
	@rm -rf .venv .venv-aws .venv-lock .venv-peers .venv-postgres .artifacts build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Holdfast needs Python 3.11 or newer and '$(PYTHON)' is not that; name one with: make PYTHON=python3.11" >&2; exit 1; }
endef

$(DEPS): requirements.lock
	@$(call check_python)
	@echo "setup: installing the locked dependencies into .venv"
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

$(READY): $(DEPS) pyproject.toml
	@echo "setup: installing holdfast (editable)"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@
