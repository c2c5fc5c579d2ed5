# Every target sets itself up: a virtual environment in .venv, the package and its tools. Needs Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint docs bench clean help

help: ## what there is
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

demo: $(READY) ## train, measure and track two small models on built-in pictures, some minutes after the set-up; ends with two pages
	$(BIN)/diffusionlens demo --out build/demo

test: $(READY) lint docs ## lint, types, import contracts, documents and all tests; about 25 minutes on two cores after the set-up
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

lint: $(READY) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

docs: $(READY) ## the documents and the Python reference as pages, warnings are errors
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

bench: $(READY) ## what `measure` costs against the bare forward pass, some minutes
	$(BIN)/diffusionlens bench measure

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Say make PYTHON=python3.12 ..."; exit 2; }
	@echo "Setting up $(VENV): a virtual environment with torch and the tools (once; some minutes, mostly download)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(READY)
