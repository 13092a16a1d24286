# Every target makes the virtual environment it needs, once. On another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
THREADS ?= 1
WORKERS ?= 2
PYTEST_FLAGS ?= -n $(WORKERS) --durations=15 -q
# Build requirements are held to the tested versions too.
export PIP_CONSTRAINT = $(abspath constraints.txt)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PIP = $(BIN)/python -m pip install --quiet

.PHONY: help demo test lint format bench docs clean

help:
	@echo "make demo    train on embedded English verbs and list complete sets of answers (a few minutes)"
	@echo "make test    the tests"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff correct what it can"
	@echo "make bench   the maps and losses beside PyTorch's and those of PyPI entmax"
	@echo "make docs    the documentation, in docs/_build/html"
	@echo "make clean   remove what these targets made"

demo: $(VENV)/.toolkit
	$(BIN)/tsallis demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/maps.py --out benchmarks/results/maps-cpu.csv

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# torch first: the other packages then find the pinned one and choose no build of their own.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.toolkit $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: $(VENV)/.torch pyproject.toml
	$(PIP) --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
