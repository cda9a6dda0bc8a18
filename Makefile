# make help lists every target. No target deletes runs/.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SWEEP ?= cpu_demo
PYTEST_ARGS ?=
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install dev sweep test ray catalog slow check golden ui report

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## make .venv and install sweeper with the tested versions

dev: $(VENV)/.installed-dev ## install what the tests and checks need as well

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[dev]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-ray: $(VENV)/.installed-dev
	$(INSTALL) --editable '.[ray]'
	touch $@

sweep: install ## run a small real sweep on the CPU: three families, fp32 and AMP, into runs/cpu_demo
	$(BIN)/python -m sweeper experiment=cpu_demo sweep=$(SWEEP)

test: check ## run the checks and the tests, but those of ray, catalog and slow, which take minutes more
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not ray and not catalog and not slow" $(PYTEST_ARGS)

ray: $(VENV)/.installed-ray ## run the tests against a real Ray
	$(BIN)/python -m pytest -m ray tests/sweep/test_ray.py

catalog: dev ## build every model of conf/model/ and run one forward of each
	$(BIN)/python -m pytest -n 2 -m catalog tests/config/test_catalog.py

slow: dev ## run the simulations of intervals, and all 50 kills of a sweep
	$(BIN)/python -m pytest -n 3 -m slow tests

check: dev ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: dev ## make the tables under tests/golden/ of stored records again, and docs/metrics.md; read what changed
	$(BIN)/python tests/support/archives.py
	$(BIN)/python tests/support/metric_docs.py

ui: install ## open the MLflow UI on what is in runs/
	$(BIN)/mlflow ui --backend-store-uri sqlite:///$(CURDIR)/runs/mlflow.db

report: install ## write and print the tables of a sweep again: make report SWEEP=name
	$(BIN)/python -m sweeper.report $(SWEEP)
