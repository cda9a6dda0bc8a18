# make help lists every target. No target deletes runs/.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SWEEP ?= cpu_demo
PYTEST_ARGS ?=
PACKAGES ?=
SAMPLE ?=
SEED ?=
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install dev sweep test ray catalog slow mutation check golden ui report

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## make .venv and install sweeper with the tested versions

dev: $(VENV)/.installed-dev ## install sweeper and the packages for tests and checks

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@echo "Installing sweeper, torch and other packages, 2 GB in all, takes minutes."

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-mutation: $(VENV)/.installed-dev
	$(INSTALL) --editable '.[mutation]'
	touch $@

$(VENV)/.installed-scripts: $(VENV)/.installed-dev
	$(INSTALL) --editable '.[scripts]'
	touch $@

$(VENV)/.installed-ray: $(VENV)/.installed-dev
	$(INSTALL) --editable '.[ray]'
	touch $@

sweep: install ## run a small real sweep on the CPU: a CNN and a ViT in fp32; results in runs/cpu_demo
	@echo "A tiny CNN and a tiny ViT, measured until the answers are sure, in two to four minutes; on a busy machine it may take longer."
	@echo "Each is trained in eager, compiled (the longest phase), checked against fp64, and timed in both ways in turn."
	@echo "Inductor does not try out the vector instructions of this CPU in each trial, so compile times are some seconds short."
	TORCHINDUCTOR_VEC_ISA_OK=1 $(BIN)/python -m sweeper experiment=cpu_demo sweep=$(SWEEP)

test: check ## run the checks and all tests except make ray, make catalog and make slow, which take minutes more
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not ray and not catalog and not slow" $(PYTEST_ARGS)

ray: $(VENV)/.installed-ray ## run the tests against a real Ray
	$(BIN)/python -m pytest -m ray tests/sweep/test_ray.py

catalog: dev ## build every model of conf/model/ and run one forward pass of each
	$(BIN)/python -m pytest -n 2 -m catalog tests/config/test_catalog.py

slow: $(VENV)/.installed-scripts ## run the simulations of intervals, 200 kills of sweeps, interrupts at random moments, every failing file operation, and scripts with their libraries
	$(BIN)/python -m pytest -n 3 -m slow tests

mutation: $(VENV)/.installed-mutation ## run the tests on faults in our own code; hours, or minutes with SAMPLE=60 PACKAGES=core,rule
	$(BIN)/python benchmarks/strength_of_tests.py $(if $(PACKAGES),--packages $(PACKAGES)) \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

check: dev ## run lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: dev ## regenerate tests/golden/ from stored records, and docs/metrics.md, flags.md and formats.md; review what changed
	$(BIN)/python tests/support/archives.py
	$(BIN)/python tests/support/metric_docs.py
	$(BIN)/python tests/support/flag_docs.py
	$(BIN)/python tests/support/format_docs.py

ui: install ## open the MLflow UI on runs/
	$(BIN)/mlflow ui --backend-store-uri sqlite:///$(CURDIR)/runs/mlflow.db

report: install ## write and print the tables of a sweep again, e.g. make report SWEEP=name
	$(BIN)/python -m sweeper.report $(SWEEP)
