PYTHON ?= python3.11
BIN := .venv/bin
SOURCES := vaswani_transformer recipes tests setup.py

.PHONY: demo test check format

demo: .venv/installed  ## train on the embedded corpus, score, translate
	rm -rf runs/demo
	$(BIN)/python recipes/train_wmt.py --config recipes/configs/demo.yaml

test: .venv/installed
	$(BIN)/python -m pytest

check: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy vaswani_transformer recipes

format: .venv/installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.venv/installed: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
