PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # every process that a test starts would compile the package again
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help quickstart cpu package test test-light explore test-recipes check format benchmark mutants fuzz browser clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

quickstart: .venv/core ## compare the paper's methods on photographs that are in the package; two minutes
	$(BIN)/surefoot run quickstart

# In memory, where there is enough of it: the tests write ten thousand files, and many wait until they are on the disk.
IN_MEMORY = $(shell df -k --output=avail /dev/shm 2> /dev/null | awk 'NR == 2 && $$1 > 4000000 {print "/dev/shm"}')

test: .venv/dev browser ## run all tests
	OMP_NUM_THREADS=1 PYTEST_DEBUG_TEMPROOT=$(IN_MEMORY) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# What works without torch: all of these folders but three files, which are about tensors and networks.
LIGHT = $(foreach part,calibrators evaluation metrics predictions,tests/$(part) src/surefoot/$(part)) tests/streaming \
	$(foreach file,calibrators/test_deployed calibrators/test_registered predictions/test_arrays,--ignore=tests/$(file).py) \
	$(foreach part,groups monitor sets thresholds,tests/deploy/test_$(part).py) \
	$(foreach part,light plots readme,tests/test_$(part).py)

test-light: .venv-light/installed ## run the tests of predictions and calibrations where torch is not installed
	OMP_NUM_THREADS=1 .venv-light/bin/python -m pytest -n 2 --dist loadfile $(LIGHT)

test-recipes: .venv-recipes/installed .venv-timm/installed ## run every example with the real package; none is skipped
	SUREFOOT_ALL_PACKAGES=1 OMP_NUM_THREADS=1 .venv-recipes/bin/python -m pytest tests/test_examples.py tests/predictions/test_frames.py -k 'not timm'
	SUREFOOT_ALL_PACKAGES=1 OMP_NUM_THREADS=1 .venv-timm/bin/python -m pytest tests/test_examples.py -k timm

explore: .venv/dev ## look for new counterexamples to the property tests, other ones each time
	HYPOTHESIS_PROFILE=explore OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m hypothesis

check: .venv/dev ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev ## put the formatting right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: .venv/dev .venv-peers/installed ## time whole commands, then fits and metrics against the peers; ARGS="--other ../older"
	$(BIN)/python benchmarks/commands.py --out benchmarks/results/commands.md $(ARGS)
	$(BIN)/python benchmarks/peers.py

.PHONY: docs
docs: .venv/docs ## build the documentation as a site, in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

mutants: .venv/dev ## change the source a little, 60 times, and see whether the tests notice; ARGS="--area store --seed 3"
	$(BIN)/python benchmarks/mutants.py $(ARGS)

fuzz: .venv/dev ## every reader and command with valid, damaged and hostile inputs; CASES=100000 SEED=1
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.driver --cases $(or $(CASES),10000) --seed $(or $(SEED),0) --workers 2
	$(BIN)/python -m tests.fuzz.serving --requests $(or $(REQUESTS),2000) --seed $(or $(SEED),0)

package: .venv/dev ## build the wheel and the sdist, try both in clean environments; ARGS="--python python3.13 --extra serve"
	$(BIN)/python -m tests.package $(ARGS)

cpu: ## install everything into .venv with torch for CPUs, without CUDA
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) uv
	$(BIN)/uv pip install --python $(BIN)/python --torch-backend=cpu -c constraints.txt -e '.[dev]'
	@touch .venv/dev .venv/core

browser: # Debian's Chromium, where we may install it; the browser tests say so if there is none
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
		&& echo "installing chromium" && apt-get update -qq > /dev/null \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; } \
		|| echo "no Chromium here and none could be installed: the browser tests will be skipped"

.venv/core: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[torch]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	@touch $@ .venv/core

.venv/docs: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[docs]'
	@touch $@ .venv/core

.venv-peers/installed: benchmarks/peers.txt constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -r benchmarks/peers.txt
	@touch $@

.venv-light/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-light
	.venv-light/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[sklearn]' \
		pytest pytest-xdist hypothesis pandas mapie
	@touch $@

.venv-recipes/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-recipes
	.venv-recipes/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[dev,recipes]'
	@touch $@

# torchvision works only with the build of torch that is next to it on the index: === leaves out builds like 2.13.0+cpu
.venv-timm/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt \
		"$$(sed -n 's/^torch==/torch===/p' constraints.txt)" -e '.[backbones]' pytest hypothesis
	@touch $@

clean: ## remove environments and caches; the networks in runs/ stay
	rm -rf site .venv $(wildcard .venv-*) .mypy_cache .ruff_cache .pytest_cache .hypothesis
