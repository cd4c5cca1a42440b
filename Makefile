PYTHON ?= python3.11
BIN := .venv/bin
SOURCES := vaswani_transformer recipes tests setup.py vaswani_command.py

# Older transformers that the package supports; `make test` runs on the newest.
MATRIX := 5.15.0 5.17.0
TESTS := tests
# One worker for each core. A worker that has run out of tests takes over half of another's; neighbours stay together,
# and with them the fixtures of their module.
PARALLEL := --numprocesses logical --dist worksteal
CORE := $(addprefix tests/test_,$(addsuffix .py,configuration_vaswani generation_config modeling_vaswani pipeline_vaswani push))

.PHONY: demo notebook notebook-outputs test test-system test-matrix test-core test-transformers test-clients test-browser trials fuzz check format tree

demo: .venv/installed  ## train on the embedded corpus, score, translate
	rm -rf runs/demo
	$(BIN)/python recipes/train_wmt.py --config recipes/configs/demo.yaml

notebook: .venv/notebook  ## open the paper in code
	$(BIN)/jupyter lab recipes/the_paper_in_code.ipynb

notebook-outputs: .venv/installed  ## run the paper in code from its source, and store what comes out
	$(BIN)/python tests/paper_notebook.py

test: .venv/installed  ## all tests but those with the mark `system`
	$(BIN)/python -m pytest $(PARALLEL) -m "not system"

test-system: .venv/installed  ## tests that start programs, kill, train or export to ONNX
	$(BIN)/python -m pytest $(PARALLEL) -m system

test-matrix: $(MATRIX:%=.venv/transformers-%)  ## all tests on older transformers
	for version in $(MATRIX); do \
		PYTHONPATH=$(CURDIR)/.venv/transformers-$$version $(BIN)/python -m pytest $(PARALLEL) $(TESTS) || exit 1; \
	done

test-core: TESTS := $(CORE)
test-core: test-matrix  ## of them the core: import, save, load, generate, pipeline, push

test-transformers: .venv/transformers-source/PKG-INFO  ## transformers' own tests of models, on this package's
	$(BIN)/python -m pytest -o addopts= -q -rs --disable-warnings --show-capture=no tests/transformers_suite.py

test-clients: runs/demo/model.safetensors  ## the package in PEFT, torchao, MLflow and others; needs the network for pip
	$(BIN)/python tests/clients/run.py $(CLIENTS)

runs/demo/model.safetensors:
	$(MAKE) demo

test-browser: .venv/node_modules  ## an exported model in transformers.js: translating in Chromium, its tokens in node
	TRANSFORMERS_JS=$(CURDIR)/$< $(BIN)/python -m pytest tests/test_onnx.py tests/test_stock_tokenizer.py -k "browser or node"

trials: .venv/installed  ## kill trainings and resume them: the final weights must not differ in a bit
	$(BIN)/python tests/kill_trials.py --processes 1 2 --kills 50
	$(BIN)/python tests/kill_trials.py --processes 1 2 3 5 8 --virtual_ranks 8 --kills 20

fuzz: .venv/installed  ## 1,000 mutated configurations, corpora, tokenizers and models: one line, or the right result
	FUZZ_CASES=200 $(BIN)/python -m pytest -q tests/test_fuzz.py

check: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy vaswani_transformer recipes

tree: .venv/installed  ## every file, with the first line of its docstring
	@$(BIN)/python tests/tree.py

format: .venv/installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.venv/installed: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv/notebook: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[notebook]"
	touch $@

.venv/node_modules: .venv/installed
	npm install --prefix .venv --no-save --ignore-scripts @huggingface/transformers@4.3.1

.venv/transformers-%: .venv/installed
	$(BIN)/pip install --quiet --target $@ transformers==$*

.venv/transformers-source/PKG-INFO: .venv/installed
	rm -rf $(@D) && mkdir $(@D)
	$(BIN)/pip freeze | grep ^transformers== | \
		xargs $(BIN)/pip download --quiet --no-deps --no-binary transformers --dest $(@D)
	tar -xzm --strip-components 1 -C $(@D) -f $(@D)/transformers-*.tar.gz
