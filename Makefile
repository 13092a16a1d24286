# Each target creates the virtual environment that it needs, once. For another Python: make test PYTHON=python3.12
# Without a GPU: make test TORCH_INDEX=URL. PyTorch's page "Get Started" shows the URL of the CPU builds.

PYTHON ?= python3
VENV ?= .venv
# An additional index, only for torch. The usual index has the tested versions of torch's dependencies.
TORCH_INDEX ?=
BIN = $(VENV)/bin
THREADS ?= 1
WORKERS ?= 2
MINUTES ?= 120
PYTEST_FLAGS ?= -n $(WORKERS) --durations=15 -q
# Builds use the tested versions of their requirements, too.
export PIP_CONSTRAINT = $(abspath constraints.txt)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PIP = $(BIN)/python -m pip install --quiet
KERNEL = src/tsallis/ops/cpu
CSRC = $(wildcard $(KERNEL)/csrc/*.cpp $(KERNEL)/csrc/*.h)
# The kernel's sources, and the scripts that compile them.
BUILD = hatch_build.py $(CSRC) $(wildcard $(KERNEL)/*.py)
RUNTIME = $(shell $(CXX) -print-file-name=$(1))

.PHONY: help results demo test test-slow test-fast test-eager test-oldest test-wheel test-mutants coverage soak kernel sanitize lint format tools bench test-gpu bench-gpu docs clean

help:
	@echo "make demo         train on embedded English verbs and print answers with proofs (about 2 minutes)"
	@echo "make test         run all tests except the slow ones (about 7 minutes on two cores)"
	@echo "make test-slow    run the slow tests (about 45 minutes; TSALLIS_PART=1/5: only the first fifth)"
	@echo "make test-fast    run the quick tests: no GPU kernels, commands or new processes (2 minutes)"
	@echo "make test-eager   run the tests of maps and models without the compiled kernel"
	@echo "make test-oldest  run the tests of Hugging Face models with the oldest supported Transformers"
	@echo "make test-wheel   build a wheel and test the library in it (PYTHON=.../bin/python)"
	@echo "make test-mutants insert faults into the code and print the share that tests detect"
	@echo "make coverage     print the lines of the library that its tests run or miss"
	@echo "make soak         kill training runs at random, and check that nothing is lost (MINUTES=120)"
	@echo "make kernel       compile the CPU kernel in place"
	@echo "make sanitize     run the kernel's tests with GCC's address and undefined behaviour sanitizers"
	@echo "make lint         run ruff, clang-format and mypy"
	@echo "make format       format the code with ruff and clang-format"
	@echo "make bench        compare maps, losses, attention and output layer with PyTorch and PyPI entmax"
	@echo "make test-gpu     run the tests of the GPU kernels, with a Python that has a GPU (PYTHON=python3)"
	@echo "make bench-gpu    run the benchmarks on a GPU"
	@echo "make results      write the tables and figures of README and docs from benchmarks/results"
	@echo "make docs         build the documentation in docs/_build/html"
	@echo "make clean        remove the files that these targets created"
	@echo "On Linux torch downloads gigabytes of CUDA packages. Without a GPU add TORCH_INDEX=URL: PyTorch's page"
	@echo "'Get Started' shows the URL if you choose 'CPU' there"

demo: $(VENV)/.toolkit
	$(BIN)/tsallis demo

# All tests of a file run in one process, so their shared fixtures run once.
test: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) --dist loadfile -m "not slow"

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m slow

test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not process" \
		--ignore=tests/unit/ops/triton tests/unit tests/contract/test_maps.py tests/contract/test_losses.py

test-eager: $(VENV)/.dev
	TSALLIS_BACKEND=eager OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) tests/contract tests/unit

# Transformers 5.4 needs older versions than constraints.txt pins. PYTHONPATH puts their folder before the others.
test-oldest: $(VENV)/.dev
	PIP_CONSTRAINT= $(PIP) --upgrade --no-deps --target build/transformers-5.4 transformers==5.4.0 \
		huggingface-hub==1.5.0 tokenizers==0.22.2 httpx==0.28.1 httpcore==1.0.9
	PYTHONPATH=build/transformers-5.4 OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow or sampled" \
		tests/contract/test_huggingface.py tests/unit/huggingface

# Test a wheel for this platform with a Python that has torch, numpy, pytest and hypothesis: PYTHON=.../bin/python.
test-wheel: $(VENV)/.dev
	rm -rf build/wheel && $(BIN)/python -m hatchling build -t wheel -d build/wheel
	$(PYTHON) -m pip install -q --no-deps --target build/wheel/installed build/wheel/*.whl
	cp -r tests pyproject.toml build/wheel
	cd build/wheel && export PYTHONPATH=installed:tests CXX=/nonexistent OMP_NUM_THREADS=$(THREADS) && \
		$(PYTHON) tests/wheel.py && $(PYTHON) -m pytest -q -p no:cacheprovider -m "not slow and not process" \
		tests/unit/functional tests/unit/nn $(addprefix tests/contract/test_,maps.py losses.py attention.py)

# 130 faults in ops/eager and 70 in search, in proportion to the number of possible faults in each.
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

# Preload the sanitizer's runtime, because Python is built without it, and the C++ runtime, which it needs at start.
# Don't detect leaks: Python never frees some memory. A report ends the process, so pytest must not capture file 2.
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

# The tools of the hooks in .pre-commit-config.yaml.
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

# Use an environment with PyTorch and Triton for the GPU; nothing is installed.
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
	$(BIN)/python docs/figures/sweeps.py benchmarks/results/runs docs/figures/paper-sweeps.svg
	$(BIN)/python docs/figures/heads.py benchmarks/results docs/figures/paper-heads.svg

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# Install torch first, so that pip does not install another build for the other packages.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) )torch
	touch $@

$(VENV)/.toolkit $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: $(VENV)/.torch pyproject.toml $(BUILD)
	$(PIP) --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build $(KERNEL)/_kernel.so* $(KERNEL)/_no_kernel.txt runs/demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
