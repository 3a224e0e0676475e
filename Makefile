# Every target sets itself up: a virtual environment with the pinned dependencies in .venv.
PYTHON ?= python3
VENV := .venv
comma := ,
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
EXTRAS := flower,ray,data,report,lm,docs,dev
TORCH := $(shell sed -n 's/^torch==\([^ ;]*\).*/\1/p' constraints.txt)
# What torch's CUDA build requires, which brings it; the tests interpret and compile the GPU kernels without a GPU.
TRITON := 3.7.1
# The CPU build spares gigabytes of CUDA packages where there is no NVIDIA GPU.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The tests start hundreds of processes: none of them should translate the package again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --no-loadscope-reorder

export NO_MKDOCS_2_WARNING ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help run test test-weekly lint types format docs dist benchmarks pins clean

help:
	@echo "make run           train the private digits model (configs/digits.toml)"
	@echo "make test          lint, types and all tests that a change must pass: minutes"
	@echo "make test-weekly   fuzzing, deployments and statistics that take longer"
	@echo "make docs          the documentation as a site, build/site/index.html"
	@echo "make dist          wheel and source distribution in dist/"
	@echo "make lint / types / format / benchmarks / pins / clean"

# What running needs, of the pinned versions.
$(BASE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null 2>&1; then $(PIP) 'torch==$(TORCH)'; else \
	  $(PIP) 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || $(PIP) --retries 1 --index-url $(TORCH_CPU_INDEX) 'torch==$(TORCH)' 2>/dev/null \
	  || $(PIP) 'torch==$(TORCH)'; fi
	$(PIP) --constraint constraints.txt --editable '.[data,report]'
	touch $@

# The rest: Flower, Ray, language models, the documentation's and the tests' tools.
$(STAMP): $(BASE)
	$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && ! $(BIN)/python -c 'import triton' 2>/dev/null; then \
	  $(PIP) --no-deps 'triton==$(TRITON)' || echo "no Triton: tests of the GPU kernels are skipped"; fi
	touch $@

run: $(BASE)
	$(BIN)/fedmf simulate configs/digits.toml

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

# Types are checked beside the tests, which do not use both processors all the time.
test: lint
	@mkdir -p build; $(BIN)/pyright >build/types.txt 2>&1 & types=$$!; \
	$(PYTEST) -m "not weekly"; unit=$$?; wait $$types; types=$$?; cat build/types.txt; exit $$((unit + types))

test-weekly: $(STAMP)
	$(PYTEST) -m weekly

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

dist: $(STAMP)
	rm -rf dist && $(BIN)/hatchling build -d dist

# What the package promises of its speed, measured in minutes on this machine.
benchmarks: $(STAMP)
	for script in accounting design noise engine stream wrapped_round; do $(BIN)/python simulations/benchmarks/$$script.py || exit 1; done

# Versions stay unless UPGRADE=--upgrade is given. Torch itself brings NVIDIA's packages and Triton.
pins: $(STAMP)
	$(BIN)/uv pip compile pyproject.toml $(addprefix --extra ,$(subst $(comma), ,$(EXTRAS))) --universal --python-version 3.11 \
	  --no-header --no-annotate --quiet --output-file constraints.txt $(UPGRADE)
	sed -i.bak -E '/^(nvidia|triton|cuda)-?/d' constraints.txt && rm constraints.txt.bak

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
