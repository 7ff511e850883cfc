# make demo: a fresh machine to a page of results; make test: everything that must hold before a change lands
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
space := $(subst ,, )

# modules whose signatures carry shapes, and what checks them
SHAPED := $(subst $(space),$(comma),$(addprefix bistoch.functional.,softmax hard anneal gumbel \
	orthogonal quantum square circuit unitary wasserstein mixing sink rowwise _rowmaps \
	lowrank sliced.api sliced.reference \
	monarch elastic_monarch delta causal.api causal.decode causal.pose causal.reference \
	pose problem elastic.api elastic.reference)),beartype.beartype

.PHONY: demo test test-all lint shapes fuzz figures clean

demo: $(VENV)/.installed
	$(BIN)/bistoch demo --out demo

test: lint shapes
	$(BIN)/pytest

test-all: lint shapes
	$(BIN)/pytest -m "slow or not slow"

# the laws once more, with every shape in a signature checked; compilers do not see through the checks
shapes: $(VENV)/.installed
	$(BIN)/pytest --quiet --jaxtyping-packages=$(SHAPED) -k "not compile" tests/functional/test_laws.py

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

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist
