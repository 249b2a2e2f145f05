# A newcomer needs `make install`, `make pretrain` and `make test`. Everything runs in .venv, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A locked file is complete, so pip must not look for more. It refuses every file whose hash is not in the lock.
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps
INSTALL := $(PIP_INSTALL) -c constraints.txt --no-build-isolation
NEEDS_CUDA := import sys; from importlib.metadata import requires; \
	sys.exit(not any(name.startswith(("cuda-", "nvidia-")) for name in requires("torch") or ()))
# Tests start thousands of processes; without bytecode each of them would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install pretrain test test-long test-all faults fuzz lint check docs lock audit sbom clean azure-day gpu-day

install: $(VENV)/.user  ## the pinned packages and this project, in .venv

pretrain: $(VENV)/.user  ## a real pretraining on this machine, from nothing
	$(BIN)/orchestrator submit pretrain

test: $(VENV)/.dev  ## all tests but those marked long or slow
	$(BIN)/python -m pytest -m "not slow and not long" -n 2 --dist worksteal

test-long: $(VENV)/.dev  ## the tests marked long
	$(BIN)/python -m pytest -m "long and not slow" -n 2 --dist worksteal

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
	$(BIN)/python -m supply_chain.licences

check: lint test test-long  ## what a change must pass
	$(BIN)/python -m pip check

docs: $(VENV)/.dev  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(VENV)/.supply  ## requirements.lock and requirements-cuda.lock, after a change of pyproject.toml or constraints.txt
	$(BIN)/python -m supply_chain.lock

audit: $(VENV)/.supply  ## known vulnerabilities of the locked packages; says what could not be checked
	$(BIN)/python -m supply_chain.audit

sbom: $(VENV)/.dev  ## dist/sbom.json: the packages of a release with versions, hashes and licences (CycloneDX)
	$(BIN)/python -m supply_chain.sbom dist/sbom.json

azure-day: $(VENV)/.dev  ## checks of a real workspace of Azure ML: 45 minutes, a few dollars (docs/azure.md)
	$(BIN)/python -m benchmarks.azure_day

gpu-day: $(VENV)/.dev  ## checks and figures of a machine with GPUs: 25 minutes (docs/gpu.md)
	$(INSTALL) -e ".[dev,benchmarks]"
	$(BIN)/python -m benchmarks.gpu_day

clean:  ## removes the environment and what tools left
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# pip finds torch's CPU build only if it is configured with an index of it (README); else PyPI's CUDA build is installed.
$(VENV)/.user: pyproject.toml requirements.lock requirements-cpu.lock requirements-cuda.lock | $(VENV)/bin/python
	if ! $(LOCKED) -r requirements-cpu.lock 2>$(VENV)/torch-cpu.log; then \
		! grep -A 99 "DO NOT MATCH THE HASHES" $(VENV)/torch-cpu.log; fi
	$(LOCKED) -r requirements.lock
	if $(BIN)/python -c '$(NEEDS_CUDA)'; then $(LOCKED) -r requirements-cuda.lock; fi
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.user
	$(INSTALL) -e ".[dev]"
	touch $@

$(VENV)/.supply: pyproject.toml constraints.txt $(VENV)/.dev
	$(INSTALL) -e ".[dev,supply]"
	touch $@
