SHELL := /bin/bash
# The first usable Python of a supported version.
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11; do \
	$$one -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SOURCES := $(shell grep -v '^\#' compiled_modules.txt)

.DEFAULT_GOAL := help
.PHONY: help setup build test check format clients spark kills bench run simulate mutation faults mutants wheel clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or later is needed (apt-get install python3 python3-venv)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet 'mypy[mypyc]>=2.4,<2.5' 'librt>=0.16,<0.17'
	TIDEMILL_BUILD=plain $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	touch $@

src/tidemill/_built.json: $(STAMP) $(SOURCES) compiled_modules.txt setup.py
	@echo "Compiling the data path takes some minutes."
	$(BIN)/python -W 'ignore:setup.py install is deprecated' setup.py --quiet build_ext --inplace --parallel 2

setup: $(STAMP) src/tidemill/_built.json ## create .venv with Tidemill and its development dependencies, and build the compiled modules

build: src/tidemill/_built.json ## build the compiled modules

run: setup ## run the demo on real data: broker, topics, Spark, Parquet, checks, report in ./demo/
	$(BIN)/python -m tidemill.pipeline.java
	$(BIN)/python -m tidemill.pipeline.demo

test: setup ## run the tests
	$(BIN)/python tests/system_programs.py
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations=25 --durations-min=5

clients: setup ## test clients in Java, Go and JavaScript, and Kafka's own tools; downloads them to build/clients
	export TIDEMILL_KAFKA_LIBS="$$($(BIN)/python bench/peers.py)" && $(BIN)/python -m pytest -q -m clients tests

simulate: setup ## simulate SEEDS=5000 clusters, continuing an interrupted run, and test the matrices of damage; KIND=transactions; or SEED=7 KIND=cluster
ifdef SEED
	$(BIN)/python tests/simulation/simulate.py --seed $(SEED) --seeds $(or $(SEEDS),1) --kind $(or $(KIND),cluster)
else
	$(BIN)/python tests/simulation/simulate.py --campaign $(or $(SEEDS),5000) $(if $(KIND),--kind $(KIND))
	$(BIN)/python -m pytest -q -n 2 -m every tests
endif

mutants: setup ## planted faults: plant each in the source, and count the seeds until a simulated cluster finds it: SEEDS=300, FAULTS=names
	$(BIN)/python tests/mutants/mutant_run.py --seeds $(or $(SEEDS),300) --faults '$(FAULTS)' --page docs/mutants.md

mutation: setup ## random mutations: make a sample in the source, and count the mutations that tests detect: SAMPLE=400, SEED=1
	nice -n 10 $(BIN)/python tests/mutation/mutation_run.py --sample $(or $(SAMPLE),400) --seed $(or $(SEED),1)

faults: setup ## inject faults into a cluster under load and check the history of its clients: FAULTS=300, SEED=, KINDS=, PARTITIONS=, ANEW=1
	$(BIN)/python tests/faults/fault_run.py --faults $(or $(FAULTS),300) $(if $(SEED),--seed $(SEED)) --kinds '$(KINDS)' $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(ANEW),--anew)

kills: setup ## kill drivers, executors, workers and brokers at the requests of the exactly-once sink, and check its output: RUNS=300, SEED=1; KIND=mirror: while a mirror copies
	$(BIN)/python tests/pipeline/$(or $(KIND),sink)_kills.py --runs $(or $(RUNS),$(if $(KIND),20,300)) --seed $(or $(SEED),1)

spark: setup ## run the Spark tests with PySpark 4.0, 4.1 and 4.2, with 4.3 (the version of make test) against Apache Kafka, and with Spark's own connector, and test killed loads; takes 45 minutes
	$(BIN)/python tests/spark_matrix.py

check: setup ## check lint, formatting, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup ## compare the broker with Apache Kafka (needs Maven and Java); prints one table
	$(BIN)/python bench/compare.py

wheel: $(STAMP) ## build a wheel in dist/
	$(BIN)/python -m build --wheel

format: $(STAMP) ## fix lint and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove build results, not .venv
	rm -rf build dist src/*.egg-info src/tidemill/_built.json
	find src -name '*.so' -delete
