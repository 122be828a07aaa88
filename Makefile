# joulecast: everything that needs doing, one word each. Needs make and Python 3.11 or newer.
#
#   make demo          install into .venv and predict Llama 3.1 8B on an H100
#   make test          run the tests
#   make lint          style, types, and who may import whom
#   make format        put the style right where a tool can
#   make bench         time the limits that the project holds itself to
#   make docs          build the documentation into site/
#   make docs-examples run the commands shown in the docs and put their output in place
#   make coefficients  fit the coefficients again from measured data (DATA=folder)
#   make accuracy      score the predictions again and write docs/accuracy.md (DATA=folder)
#   make constraints   pin today's newest versions in constraints.txt
#   make clean         remove all that these made

VENV ?= .venv
DATA ?= $(or $(JOULECAST_DATA),../shared/data)
WORKERS ?= auto
BIN := $(VENV)/bin

# Test workers and benchmarks are processes; more threads in each only get in each other's way.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export POLARS_MAX_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14 python; do \
	"$$p" -c '$(USABLE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

PACKAGING := pyproject.toml constraints.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: help demo test lint lint-style lint-types lint-arrows format bench docs docs-examples coefficients accuracy constraints clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "joulecast needs Python 3.11 or newer with venv and pip (on Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The build backend comes from constraints.txt too, so that nothing unpinned takes part in an install.
$(VENV)/.base: $(VENV)/.created $(PACKAGING)
	$(PIP_INSTALL) hatchling
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.%: $(VENV)/.base
	$(PIP_INSTALL) --no-build-isolation --editable '.[$*]'
	@touch $@

demo: $(VENV)/.base
	$(BIN)/joulecast predict meta-llama/Llama-3.1-8B --gpu h100 --batch 8 --prompt 2048 --generate 256

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Separate targets, so that `make -k lint` tells of everything at once.
lint: lint-style lint-types lint-arrows

lint-style: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

lint-types: $(VENV)/.lint $(VENV)/.test
	$(BIN)/mypy

lint-arrows: $(VENV)/.lint
	$(BIN)/lint-imports

format: $(VENV)/.lint
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.base
	$(BIN)/python benchmarks/run.py --install-size $(ARGS)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-examples: $(VENV)/.base
	$(BIN)/python tests/docs_examples.py --write

coefficients: $(VENV)/.test
	$(BIN)/python -m joulecast.calibration --data $(DATA) $(ARGS)

accuracy: $(VENV)/.dev
	$(BIN)/joulecast validate --data $(DATA) --write docs/accuracy.md --update-baseline $(ARGS)

constraints: $(VENV)/.created
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet --editable '.[dev]' hatchling
	build/pins/bin/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools > build/pins.txt
	{ sed '/^[^#]/,$$d' constraints.txt; cat build/pins.txt; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/pins build/pins.txt

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
