# make demo: a fresh machine to the main job; make test: everything that must hold before a change lands
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint figures clean

demo: $(VENV)/.installed
	$(BIN)/bistoch show --out plans.png

test: lint
	$(BIN)/pytest

test-all: lint
	$(BIN)/pytest -m "slow or not slow"

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
