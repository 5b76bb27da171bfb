SHELL := /bin/bash
# The first Python that runs and is new enough.
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11; do \
	$$one -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SOURCES := $(shell grep -v '^\#' compiled_modules.txt)

.DEFAULT_GOAL := help
.PHONY: help setup build test check format clients spark bench run simulate mutation faults mutants wheel clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or later is needed (apt-get install python3 python3-venv)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet 'mypy[mypyc]>=2.4,<2.5' 'librt>=0.16,<0.17'
	TIDEMILL_BUILD=plain $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	touch $@

src/tidemill/_built.json: $(STAMP) $(SOURCES) compiled_modules.txt setup.py
	@echo "The data path is compiled: this takes some minutes."
	$(BIN)/python -W 'ignore:setup.py install is deprecated' setup.py --quiet build_ext --inplace --parallel 2

setup: $(STAMP) src/tidemill/_built.json ## makes .venv with tidemill and all that its work needs, and builds the compiled modules

build: src/tidemill/_built.json ## builds the compiled modules

run: setup ## does the main job on real data: broker, topics, Spark, Parquet, checks, report in ./demo/
	$(BIN)/python -m tidemill.pipeline.java
	$(BIN)/python -m tidemill.pipeline.demo

test: setup ## passes the tests
	$(BIN)/python tests/system_programs.py
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

clients: setup ## tries clients in Java, Go and JavaScript, and Kafka's own tools; brings them below build/clients
	export TIDEMILL_KAFKA_LIBS="$$($(BIN)/python bench/peers.py)" && $(BIN)/python -m pytest -q -m clients tests

simulate: setup ## tries SEEDS=5000 simulated clusters, resuming where it was stopped, and the matrices of damage; or SEED=7 KIND=cluster
ifdef SEED
	$(BIN)/python tests/simulation/simulate.py --seed $(SEED) --seeds $(or $(SEEDS),1) --kind $(or $(KIND),cluster)
else
	$(BIN)/python tests/simulation/simulate.py --campaign $(or $(SEEDS),5000)
	$(BIN)/python -m pytest -q -n 2 -m every tests
endif

mutants: setup ## plants faults in the source and counts the seeds until simulated clusters find each: SEEDS=300, FAULTS=names
	$(BIN)/python tests/mutants/mutant_run.py --seeds $(or $(SEEDS),300) --faults '$(FAULTS)' --page docs/mutants.md

mutation: setup ## puts small faults into the source and counts those that tests notice: SAMPLE=400, SEED=1
	nice -n 10 $(BIN)/python tests/mutation/mutation_run.py --sample $(or $(SAMPLE),400) --seed $(or $(SEED),1)

faults: setup ## kills, pauses, cuts off and fills up a cluster under load, cuts its power and empties its disks, and checks what clients saw: FAULTS=300, SEED=, KINDS=, PARTITIONS=, ANEW=1
	$(BIN)/python tests/faults/fault_run.py --faults $(or $(FAULTS),300) $(if $(SEED),--seed $(SEED)) --kinds '$(KINDS)' $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(ANEW),--anew)

spark: setup ## runs the tests of Spark with PySpark 4.0, 4.1 and 4.2, with 4.3 (which make test has) against Apache Kafka, beside Spark's own connector, and loads that are killed; takes 45 minutes
	$(BIN)/python tests/spark_matrix.py

check: setup ## lint, formatting, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup ## compares the broker with Apache Kafka (needs Maven and Java); ends with one table
	$(BIN)/python bench/compare.py

wheel: $(STAMP) ## builds a wheel in dist/
	$(BIN)/python -m build --wheel

format: $(STAMP) ## puts the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## removes what was built, not .venv
	rm -rf build dist src/*.egg-info src/tidemill/_built.json
	find src -name '*.so' -delete
