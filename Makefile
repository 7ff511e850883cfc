# make demo: a fresh machine to a page of results; make test: everything that must hold before a change lands
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
space := $(subst ,, )

# one process per core, each with one thread unless a test asks for more
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

LAWS := tests/functional/test_laws.py
# modules whose signatures carry shapes (kernels are no Python to a type checker), and what checks them
SHAPED := $(shell grep -rl "jaxtyping import" src/bistoch/functional --include=*.py \
	| grep -v "/cpu/\|/kernels/" | sort)
SHAPED := $(subst $(space),$(comma),$(subst /,.,$(SHAPED:src/%.py=%))),beartype.beartype

.PHONY: demo test test-all lint shapes fuzz figures site dist clean

demo: $(VENV)/.installed
	$(BIN)/bistoch demo --out demo

test: lint shapes
	$(PYTEST) --ignore=$(LAWS) --durations=30

# the laws of kernels for GPUs, in Triton's interpreter, are slow ones; minutes each on a loaded machine
test-all: lint shapes
	$(PYTEST) --ignore=$(LAWS) --durations=30 -m "slow or not slow"
	$(PYTEST) --durations=30 --timeout=1200 -m slow $(LAWS)

# the laws, with every shape in a signature checked
shapes: $(VENV)/.installed
	$(PYTEST) --quiet --jaxtyping-packages=$(SHAPED) $(LAWS)

# random calls, legal and illegal, for so many minutes; another SEED makes others
MINUTES ?= 5
SEED ?= 0
fuzz: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

figures: $(VENV)/.installed
	$(BIN)/python docs/figures.py

# the docs with a search and the reference, in site/; no network is needed, to build it or to read it
site: $(VENV)/.installed
	PYTHONPATH=docs $(BIN)/python -m making.site

# wheel and sdist, in dist/
dist: $(VENV)/.installed
	$(BIN)/python -m build --no-isolation

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist build site
