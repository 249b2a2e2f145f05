# Two commands a newcomer needs: `make pretrain` and `make test`. Everything runs in .venv, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests start thousands of processes; without bytecode each of them would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: pretrain test test-all faults fuzz lint check docs clean

pretrain: $(VENV)/.user  ## a real pretraining on this machine, from nothing
	$(BIN)/orchestrator submit pretrain

test: $(VENV)/.dev  ## all tests but those marked slow
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-all: $(VENV)/.dev  ## all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

faults: $(VENV)/.dev  ## nine minutes of the campaign against faults, and its page docs/faults.md
	$(BIN)/python -m tests.faults.campaign --minutes 9
	$(BIN)/python -m tests.faults.campaign --page

fuzz: $(VENV)/.dev  ## nine minutes of fuzzing of the reader of files that was fuzzed least
	$(INSTALL) -e ".[fuzz]"
	$(BIN)/python -m tests.fuzz --minutes 9

lint: $(VENV)/.dev  ## style, types, import contracts, file length, prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/file_length.py
	$(BIN)/python tests/prose.py

check: lint test  ## what a change must pass
	$(BIN)/python -m pip check

docs: $(VENV)/.dev  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## removes the environment and what tools left
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev]"
	touch $@ $(VENV)/.user
