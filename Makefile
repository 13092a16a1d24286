# Every target makes the virtual environment it needs, once. On another Python: make test PYTHON=python3.12
# Without a GPU: make test TORCH_INDEX=URL, the index of CPU builds that PyTorch's page "Get Started" shows

PYTHON ?= python3
VENV ?= .venv
# An index for torch alone, beside the usual one, which has what torch depends on in the tested versions.
TORCH_INDEX ?=
BIN = $(VENV)/bin
THREADS ?= 1
WORKERS ?= 2
MINUTES ?= 120
PYTEST_FLAGS ?= -n $(WORKERS) --durations=15 -q
# Build requirements are held to the tested versions too.
export PIP_CONSTRAINT = $(abspath constraints.txt)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PIP = $(BIN)/python -m pip install --quiet
KERNEL = src/tsallis/ops/cpu
CSRC = $(wildcard $(KERNEL)/csrc/*.cpp $(KERNEL)/csrc/*.h)
# What an installation compiles, and what with.
BUILD = hatch_build.py $(CSRC) $(wildcard $(KERNEL)/*.py)
RUNTIME = $(shell $(CXX) -print-file-name=$(1))

.PHONY: help results demo test test-slow test-fast test-eager test-oldest test-wheel test-mutants coverage soak kernel sanitize lint format tools bench test-gpu bench-gpu docs clean

help:
	@echo "make demo        train on embedded English verbs and show answers with their proof (some two minutes)"
	@echo "make test        the tests, but for the slow ones (some 7 minutes on two cores)"
	@echo "make test-slow   the slow ones (some 45 minutes; TSALLIS_PART=1/3: the first third of them)"
	@echo "make test-fast   what to run while one works: no kernels for GPUs, no commands, no other processes (2 minutes)"
	@echo "make test-eager  those of the maps and models, with PyTorch's operations instead of the compiled kernel"
	@echo "make kernel      compile the CPU kernel in place (installing does so too, where a C++ compiler is)"
	@echo "make test-oldest those of models of Hugging Face, with the oldest Transformers that is supported"
	@echo "make test-wheel  those of the core, against a wheel, with a Python of its own (PYTHON=.../bin/python)"
	@echo "make test-mutants the share of faults put into the code on purpose that tests notice"
	@echo "make coverage    the lines of the core that its tests run, and those that they don't"
	@echo "make soak        trainings with kills at random: nothing is lost, memory stays flat (MINUTES=120)"
	@echo "make sanitize    the kernel's tests, with GCC's address and undefined behaviour sanitizers"
	@echo "make lint        ruff, clang-format and mypy"
	@echo "make format      let ruff and clang-format correct what they can"
	@echo "make bench       maps, losses, attention and a whole output layer beside PyTorch's and those of PyPI entmax"
	@echo "make test-gpu    the tests of the kernels for GPUs, with a Python that has one (PYTHON=python3)"
	@echo "make bench-gpu   maps, losses, output layer and attention on a GPU beside PyTorch's and their peers'"
	@echo "make results     the tables and figures of README and docs, from the committed rows of benchmarks/results"
	@echo "make docs        the documentation, in docs/_build/html"
	@echo "make clean       remove what these targets made"
	@echo "On Linux torch brings gigabytes of CUDA packages. Without a GPU add TORCH_INDEX=URL: PyTorch's page"
	@echo "'Get Started' shows the URL if you choose 'CPU' there"

demo: $(VENV)/.toolkit
	$(BIN)/tsallis demo

# A file's tests run in one process, which prepares what they share once.
test: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) --dist loadfile -m "not slow"

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m slow

test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not process" \
		--ignore=tests/unit/ops/triton tests/unit tests/contract/test_maps.py tests/contract/test_losses.py

test-eager: $(VENV)/.dev
	TSALLIS_BACKEND=eager OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) tests/contract tests/unit

# It asks for older versions of what constraints.txt pins, so these lie in a folder of their own, ahead of the others.
test-oldest: $(VENV)/.dev
	PIP_CONSTRAINT= $(PIP) --upgrade --no-deps --target build/transformers-5.4 transformers==5.4.0 \
		huggingface-hub==1.5.0 tokenizers==0.22.2 httpx==0.28.1 httpcore==1.0.9
	PYTHONPATH=build/transformers-5.4 OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow or sampled" \
		tests/contract/test_huggingface.py tests/unit/huggingface

# A wheel of this platform, tried by a Python that has torch, numpy, pytest and hypothesis: PYTHON=.../bin/python.
test-wheel: $(VENV)/.dev
	rm -rf build/wheel && $(BIN)/python -m hatchling build -t wheel -d build/wheel
	$(PYTHON) -m pip install -q --no-deps --target build/wheel/installed build/wheel/*.whl
	cp -r tests pyproject.toml build/wheel
	cd build/wheel && export PYTHONPATH=installed:tests CXX=/nonexistent OMP_NUM_THREADS=$(THREADS) && \
		$(PYTHON) tests/wheel.py && $(PYTHON) -m pytest -q -p no:cacheprovider -m "not slow and not process" \
		tests/unit/functional tests/unit/nn $(addprefix tests/contract/test_,maps.py losses.py attention.py)

# 130 faults in PyTorch's operations and 70 in the searches: each as many as its part has of all that there are.
test-mutants: $(VENV)/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m mutation.score --count 130 --seconds 20 --workers $(WORKERS) ops/eager
	PYTHONPATH=tests OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m mutation.score --count 70 --seconds 20 --workers $(WORKERS) search

coverage: $(VENV)/.dev
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m coverage run -m pytest $(PYTEST_FLAGS) -m "not slow" tests/contract \
		$(addprefix tests/unit/,ops functional continuous nn test_distributions.py test_compat.py test_onnx.py)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --fail-under=95

soak: $(VENV)/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=$(THREADS) $(BIN)/python tests/soak.py --minutes $(MINUTES)

kernel:
	$(PYTHON) $(KERNEL)/build.py

# Python is not built with the sanitizer, so its runtime is preloaded, with the C++ runtime it must find at its start;
# what Python itself never frees would be reported as leaks. pytest leaves file 2 alone: a report ends the process.
SANITIZED = $(addprefix tests/unit/,$(addprefix ops/test_cpu_,kernel.py attention.py ranking.py beams.py screening.py) $(addprefix models/test_compiled_,transformer.py recurrence.py))
sanitize: $(VENV)/.dev
	CXX="$(CXX)" $(PYTHON) $(KERNEL)/build.py --sanitize --out build/sanitize/_kernel.so
	LD_PRELOAD="$(call RUNTIME,libasan.so) $(call RUNTIME,libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	TSALLIS_KERNEL_PATH=$(abspath build/sanitize/_kernel.so) OMP_NUM_THREADS=$(THREADS) \
	$(BIN)/python -m pytest -q --capture=sys -p no:cacheprovider $(SANITIZED)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CSRC)
	$(BIN)/mypy

# What the hooks of .pre-commit-config.yaml need.
tools: $(if $(and $(wildcard $(BIN)/ruff),$(wildcard $(BIN)/clang-format)),,$(VENV)/.dev)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC)

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/maps.py --losses --out benchmarks/results/maps-cpu.csv \
		--accuracy benchmarks/results/maps-accuracy-cpu.csv
	$(BIN)/python benchmarks/maps.py --maps --learned --out benchmarks/results/losses-cpu.csv
	$(BIN)/python benchmarks/maps.py --maps --learned --memory reused --out benchmarks/results/losses-reused-cpu.csv
	$(BIN)/python benchmarks/linear.py --out benchmarks/results/linear-cpu.csv
	$(BIN)/python benchmarks/attention.py --out benchmarks/results/attention-cpu.csv
	$(BIN)/python benchmarks/slopes.py --out benchmarks/results/slopes-cpu.csv
	$(BIN)/python benchmarks/screened.py --out benchmarks/results/screened-cpu.csv
	$(BIN)/python benchmarks/continuous.py --out benchmarks/results/continuous-cpu.csv
	$(BIN)/python benchmarks/decoding.py --out benchmarks/results/decoding-cpu.csv

# In the environment whose PyTorch and Triton use the GPU: nothing is installed.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -v --tb=short --durations=10 -p no:cacheprovider tests/unit/ops/triton

bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_maps.py --out benchmarks/results/gpu-maps.csv \
		--accuracy benchmarks/results/gpu-maps-accuracy.csv
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_linear.py --out benchmarks/results/gpu-linear.csv
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_attention.py --out benchmarks/results/gpu-attention.csv

results: $(VENV)/.dev
	$(BIN)/python benchmarks/render.py
	$(BIN)/python docs/figures/beside.py docs/figures/beside.svg
	$(BIN)/python docs/figures/times.py docs/figures/times.svg
	$(BIN)/python docs/figures/heads.py benchmarks/results docs/figures/paper-heads.svg

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# torch first: the other packages then find the pinned one and choose no build of their own.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) )torch
	touch $@

$(VENV)/.toolkit $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: $(VENV)/.torch pyproject.toml $(BUILD)
	$(PIP) --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build $(KERNEL)/_kernel.so* .mypy_cache .pytest_cache .ruff_cache .hypothesis
