# Every target sets itself up: a virtual environment with the pinned dependencies in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
TORCH := $(shell sed -n 's/^torch==\([^ ;]*\).*/\1/p' constraints.txt)
# What torch's CUDA build requires, which brings it; the tests interpret and compile the GPU kernels without a GPU.
TRITON := 3.7.1
# The CPU build spares gigabytes of CUDA packages where there is no NVIDIA GPU.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

export NO_MKDOCS_2_WARNING ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help run test test-long quick seconds lint types unit format docs notebooks papers versions apps newest dist trails man publish announce workflows tables pins benchmarks clean

help:
	@echo "make run    train the private digits model (configs/digits.toml)"
	@echo "make test   lint, types and the tests that promises rest on: minutes"
	@echo "make test-long / make quick ROOM=streaming   all other tests / seconds of a room and of what imports it"
	@echo "make papers every table and figure of the papers, in their quick form"
	@echo "make versions   what touches Flower, under each version of it that serves"
	@echo "make apps   apps of Flower's repository, made private by three lines: downloads, half an hour"
	@echo "make docs   the documentation as a site, build/site/index.html"
	@echo "make benchmarks / notebooks / dist / trails / man / newest / workflows / tables / pins / format / lint / types / unit / clean"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null 2>&1; then $(PIP) 'torch==$(TORCH)'; else \
	  $(PIP) 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || $(PIP) --retries 1 --index-url $(TORCH_CPU_INDEX) 'torch==$(TORCH)' 2>/dev/null \
	  || $(PIP) 'torch==$(TORCH)'; fi
	$(PIP) --require-hashes --requirement constraints.txt
	$(PIP) --no-deps --editable .
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && ! $(BIN)/python -c 'import triton' 2>/dev/null; then \
	  $(PIP) --no-deps 'triton==$(TRITON)' || echo "no Triton: tests of the GPU kernels are skipped"; fi
	touch $@

# What the first round would wait for: bytecode, which pip does not make of an editable package, and machine code.
$(COMPILED): $(STAMP)
	$(BIN)/python -m compileall -q fedmf
	$(BIN)/fedmf compile configs/digits.toml
	touch $@

run: $(COMPILED)
	$(BIN)/fedmf simulate configs/digits.toml

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

# The tests start hundreds of processes: none of them should translate the package again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
unit: $(STAMP)
	$(PYTEST) -n 3 --no-loadscope-reorder -m "not long"

# Types are checked beside the tests, which do not use both processors all the time; what is wrong with them
# is said after the tests.
test: lint
	@mkdir -p build; $(BIN)/pyright >build/types.txt 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory unit; unit=$$?; wait $$types; types=$$?; cat build/types.txt; exit $$((unit + types))

# Exhaustive strides, long statistics, further deployments, examples and tools: tests/long.toml.
test-long: $(STAMP)
	$(PYTEST) -n 3 --no-loadscope-reorder -m long

# The tests of a room of the package, then those nearest to it of rooms that import it, quickest first.
ROOM ?= noise
quick: $(STAMP)
	$(PYTEST) -n 2 -m "not long and not deployment" $$($(BIN)/python -m tests.support.quick $(ROOM))

# What each test takes, for make quick: on an idle machine.
seconds: $(STAMP)
	$(PYTEST) -n 2 -m "not long and not deployment" -p tests.support.seconds tests

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

# The outputs that docs/notebooks are committed with.
notebooks: $(STAMP)
	$(BIN)/python -m tests.support.notebooks

# What can be measured in minutes, kept under the commit and drawn over commits: docs/results/benchmarks.md.
benchmarks: $(STAMP)
	$(BIN)/python simulations/benchmarks/over_commits.py

# Wheel and sdist in dist/ with digests, bill of materials and manual page, tried in clean environments with the newest
# and the oldest dependencies: make dist PYTHONS="3.11 3.12 3.13 3.14".
PYTHONS ?= 3.11
dist: export UV_TORCH_BACKEND ?= cpu
dist: $(STAMP)
	$(BIN)/python -m tests.support.release.distribution $(PYTHONS)

# The trails of docs/trails as a reader walks them: from the wheel, in fresh environments, on other rows; with ROOT=DIRECTORY
# in a tree that has Python alone: debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm DIRECTORY
trails: $(STAMP)
	$(BIN)/python -m tests.support.release.trails $(if $(ROOT),--root $(ROOT))

# What dist/ holds goes to the index, in the name of a workflow that the index knows; then beside the tag.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
UV_PIN := $(shell sed -n 's/^uv==\([^ ;]*\).*/\1/p' constraints.txt)
publish:
	cd dist && sha256sum --check --strict SHA256SUMS
	pipx run --spec 'uv==$(UV_PIN)' uv publish --trusted-publishing always dist/*.whl dist/*.tar.gz

announce:
	gh release create 'v$(VERSION)' dist/* --verify-tag --title 'fedmf $(VERSION)' --notes-file 'docs/release-notes/$(VERSION).md'

# Workflows, templates and the rest of .github, by their schemas and for what they would let others do.
workflows: $(STAMP)
	$(BIN)/uv tool run zizmor --offline --pedantic .github
	$(BIN)/uv tool run check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/uv tool run check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/uv tool run check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

man: $(STAMP)
	@mkdir -p build
	$(BIN)/python -m tests.support.release.manual >build/fedmf.1

# The keys in pyproject.toml and docs/configuration.md, from the values themselves.
tables: $(STAMP)
	$(BIN)/python -m fedmf.runs.tables.reference

# Every table and figure of the papers and of ours, in minutes: a verdict each; 1 if one is stale.
papers: $(STAMP)
	$(BIN)/fedmf reproduce all --quick

# make versions VERSIONS="1.41.0 nightly"
VERSIONS ?=
versions: $(STAMP)
	$(BIN)/python simulations/flower/versions.py $(VERSIONS)

# The tests of a promise with the newest dependencies that pyproject.toml allows, in an environment of their own.
newest: $(STAMP)
	$(BIN)/uv venv --quiet --clear build/newest
	$(BIN)/uv pip install --quiet --python build/newest --torch-backend cpu --upgrade --editable '.[flower,ray,data,report,lm,docs,tensorboard,dev]'
	build/newest/bin/python -m pytest -n 3 --no-loadscope-reorder -m "not long"

# Where Flower's repository is, and where environments are kept: make apps APPS="--repository /path --environments /path".
APPS ?=
apps: $(STAMP)
	$(BIN)/python simulations/apps/gallery.py $(APPS)

# constraints.txt, with digests, and the list of licences; versions stay unless uv is told --upgrade.
PINS := --extra flower --extra ray --extra data --extra report --extra lm --extra docs --extra tensorboard --extra dev --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate $(foreach name,triton cuda-bindings cuda-pathfinder cuda-toolkit \
  $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse \
  cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx),--no-emit-package $(name))
pins: $(STAMP)
	$(BIN)/uv pip compile pyproject.toml $(PINS) --quiet --output-file constraints.txt $(UPGRADE)
	$(BIN)/python -m tests.support.licences

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
