# At least 3.11.
PYTHON ?= python3
# The environment, and the versions installed in it.
VENV ?= .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
SOURCES := vaswani_transformer recipes tests setup.py vaswani_command.py

# Older transformers that the package supports; `make test` runs on the newest.
MATRIX ?= 5.15.0 5.20.0
TESTS := tests
# One worker for each core. A worker that has run out of tests takes over half of another's; neighbours stay together,
# and with them the fixtures of their module.
PARALLEL := --numprocesses logical --dist worksteal
CORE := $(addprefix tests/test_,$(addsuffix .py,configuration_vaswani generation_config modeling_vaswani pipeline_vaswani push))
# Not the tests of runs that push, which take a minute and do not depend on transformers.
CORE += $(addprefix --deselect tests/test_push.py::test_, \
	resuming_a_finished_run_pushes_it_after_an_interruption_and_nothing_else_of_its_directory \
	what_cannot_be_pushed_is_refused_before_training what_contributing_publishes_is_pushed)

.PHONY: demo notebook notebook-outputs test test-system test-notebook test-matrix test-core test-newest test-oldest test-transformers test-clients test-browser trials check format reference tree

demo: $(VENV)/installed  ## train on the embedded corpus, score, translate
	rm -rf runs/demo
	$(BIN)/vaswani train --config demo

notebook: $(VENV)/notebook  ## open the paper in code
	$(BIN)/jupyter lab recipes/the_paper_in_code.ipynb

notebook-outputs: $(VENV)/notebook  ## run the paper in code, and store what comes out
	TQDM_DISABLE=1 PYTHONWARNINGS="ignore:IProgress not found" $(BIN)/jupyter nbconvert --to notebook --execute --inplace \
		--ExecutePreprocessor.record_timing=False recipes/the_paper_in_code.ipynb

test: $(VENV)/installed  ## all tests but those with the marks `system` and `notebook`
	$(BIN)/python -m pytest $(PARALLEL) -m "not system and not notebook"

test-system: $(VENV)/installed  ## tests that start programs, kill, train or export to ONNX
	$(BIN)/python -m pytest $(PARALLEL) -m system

test-notebook: $(VENV)/installed  ## run the paper in code, whose assertions check its answers
	$(BIN)/python -m pytest tests/test_paper_notebook.py

test-matrix: $(VENV)/installed $(MATRIX:%=$(VENV)/transformers-%)  ## all tests on older transformers
	for version in $(MATRIX); do \
		PYTHONPATH=$(CURDIR)/$(VENV)/transformers-$$version $(BIN)/python -m pytest $(PARALLEL) $(TESTS) || exit 1; \
	done

test-core: TESTS := $(CORE)
test-core: PARALLEL := --numprocesses logical --dist loadfile  # test_push.py, whose fixture trains, is half of the work
test-core: test-matrix  ## of them the core: import, save, load, generate, pipeline, push

test-newest:  ## quick tests, transformers' own and clients with the newest release of every dependency but torch
	rm -rf .venv/newest && mkdir -p .venv/newest
	grep ^torch== constraints.txt >.venv/newest/constraints.txt
	$(MAKE) --keep-going VENV=.venv/newest CONSTRAINTS=.venv/newest/constraints.txt test test-transformers test-clients

test-oldest:  ## quick tests with the lower bounds of setup.py
	rm -rf .venv/oldest && $(PYTHON) -m venv .venv/oldest
	.venv/oldest/bin/pip install --quiet uv
	.venv/oldest/bin/uv pip compile --quiet --resolution lowest-direct --extra dev setup.py >.venv/oldest/constraints.txt
	$(MAKE) VENV=.venv/oldest CONSTRAINTS=.venv/oldest/constraints.txt test

test-transformers: $(VENV)/transformers-source/PKG-INFO  ## transformers' own tests of models, on this package's
	$(BIN)/python -m pytest -o addopts= -q -rs --disable-warnings --show-capture=no tests/transformers_suite.py

test-clients: runs/demo/model.safetensors  ## the package in PEFT and torchao; needs the network for pip
	PIP_CONSTRAINT=$(CURDIR)/$(CONSTRAINTS) $(BIN)/python tests/clients/run.py $(CLIENTS)

runs/demo/model.safetensors:
	$(MAKE) demo

test-browser: .venv/node_modules  ## an exported model in transformers.js: translating in Chromium, its tokens in node
	TRANSFORMERS_JS=$(CURDIR)/$< $(BIN)/python -m pytest tests/test_onnx.py tests/test_stock_tokenizer.py -k "browser or node"

trials: $(VENV)/installed  ## kill trainings and resume them: the final weights must not differ in a bit
	$(BIN)/python tests/kill_trials.py --processes 1 2 --kills 50
	$(BIN)/python tests/kill_trials.py --processes 1 2 3 5 8 --virtual_ranks 8 --kills 20

check: $(VENV)/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy vaswani_transformer recipes

tree: $(VENV)/installed  ## every file, with the first line of its docstring
	@$(BIN)/python tests/tree.py

reference: $(VENV)/installed  ## recipes/reference: the help of each command, without the time that its imports take
	$(BIN)/python tests/reference.py

format: $(VENV)/installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit("make: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12"\
		if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: setup.py $(CONSTRAINTS) | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable ".[dev]"
	@# As pip would, but on all cores. Some files are for other Pythons, and cannot be compiled.
	@$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@

$(VENV)/notebook: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable ".[notebook]"
	touch $@

.venv/node_modules: $(VENV)/installed
	npm install --prefix .venv --no-save --ignore-scripts @huggingface/transformers@4.3.1

$(VENV)/transformers-%: | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --target $@ transformers==$*

$(VENV)/transformers-source/PKG-INFO: $(VENV)/installed
	rm -rf $(@D) && mkdir $(@D)
	$(BIN)/pip freeze | grep ^transformers== | \
		xargs $(BIN)/pip download --quiet --no-deps --no-binary transformers --dest $(@D)
	tar -xzm --strip-components 1 -C $(@D) -f $(@D)/transformers-*.tar.gz
