# The commands of this repository. `make run` serves the default model, `make test` is the whole check.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?=
SERVE_ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
TORCH := torch==2.13.0
MANIFESTS := platform_api/pyproject.toml core/pyproject.toml backends_cpu/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help install install-serve run test lint format docs bench wheels clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

install: $(VENV)/.installed ## create .venv and install everything, development tools included

install-serve: $(VENV)/.installed-serve ## create .venv and install only what serving needs

# torch goes first and by itself, so that nothing after it can pull another build
$(VENV)/.installed-serve: requirements.txt constraints-dev.txt $(MANIFESTS)
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) (the largest part; a CPU build is enough without an accelerator, see docs/install.md)"
	@$(PIP) install --quiet "$(TORCH)"
	@echo "installing inferplane and what it needs"
	@$(PIP) install --quiet -r requirements.txt
	@touch $@

$(VENV)/.installed: requirements-dev.txt $(VENV)/.installed-serve
	@echo "installing development tools"
	@$(PIP) install --quiet -r requirements-dev.txt
	@touch $@

run: install-serve ## serve the default model (or MODEL=...) on 127.0.0.1:8000 (or PORT=...)
	@exec $(BIN)/inferplane serve $(MODEL) --host $(HOST) --port $(PORT) $(SERVE_ARGS)

test: lint ## every check and the default tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: install ## ruff, mypy --strict and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

format: install ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

docs: install ## generate the configuration and contract pages and build the site into site/
	@$(BIN)/python docs/generate_config.py
	@$(BIN)/python docs/generate_contract.py
	@$(PIP) install --quiet -r docs/requirements.txt
	@$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: install ## throughput against transformers, and start-up time
	@$(BIN)/python benchmarks/offline.py
	@$(BIN)/python benchmarks/startup.py

wheels: install ## build every distribution into dist/
	@rm -rf dist
	@for member in $(patsubst %/pyproject.toml,%,$(MANIFESTS)); do \
		$(BIN)/python -m build --wheel --no-isolation --outdir dist $$member >/dev/null; done
	@ls -1 dist

clean: ## remove what was built; .venv and downloaded models stay
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
