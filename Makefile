# make demo  runs the quickstart study; make test  runs the tests, make test-all  the slow ones too,
# make test-oldest  some of them with the oldest versions that pyproject.toml allows.
# All set up .venv first; make install  does no more than that; make docs  builds the documentation
# into site/.

PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest --dist worksteal -n

.PHONY: install demo test test-all test-oldest matrix soak lint docs clean

install: .venv/installed

demo: .venv/installed
	$(BIN)/maskfront run studies/quickstart.py

test: .venv/installed-test
	$(PYTEST) 2 -m "not slow"

# Three processes on two cores, as slow tests wait: for servers, a browser, a killed launch.
test-all: .venv/installed-test
	$(PYTEST) 3

# The built wheel in an environment of its own, from a folder without the checkout.
OLDEST = build/oldest
test-oldest:
	rm -rf build
	mkdir -p $(OLDEST)/elsewhere
	$(PYTHON) -m venv $(OLDEST)/venv
	$(OLDEST)/venv/bin/pip install $(PIP_FLAGS) --quiet -c constraints-oldest.txt torch
	$(OLDEST)/venv/bin/pip wheel --quiet --no-deps --wheel-dir $(OLDEST) .
	rm -rf maskfront.egg-info
	$(OLDEST)/venv/bin/pip install $(PIP_FLAGS) --quiet -c constraints-oldest.txt \
		"$$(echo $(OLDEST)/maskfront-*.whl)[onnx]" pytest pytest-timeout hypothesis
	cp -r tests pyproject.toml $(OLDEST)/elsewhere
	cd $(OLDEST)/elsewhere && ../venv/bin/python -m pytest -W default -m "not slow" \
		tests/objectives/delivery/test_deployed.py tests/objectives/students/bert/test_exporting.py \
		tests/objectives/text/test_roles.py tests/objectives/text/test_text_files.py \
		tests/orchestrator/test_study.py tests/orchestrator/command/test_run.py \
		tests/reports/page/test_page.py

# Each method beside each cost, precision and kind of answers; MATRIX=pairs for fewer.
matrix: .venv/installed-test
	MATRIX=$${MATRIX:-all} $(PYTEST) 2 tests/matrix

# Many more kills than the tests' own, with other dice each time; many more damaged runs.
soak: .venv/installed-test
	MUTATIONS=1000 $(BIN)/python -m pytest tests/reports/test_mutated_runs.py
	for seed in 1 2 3 4 5; do \
		CHAOS_KILLS=40 CHAOS_SEED=$$seed $(BIN)/python -m pytest tests/chaos --timeout 3600 || exit 1; \
	done

lint: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without --quiet, which hides warnings from --strict too.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# torch first and by itself, at the pinned version, so that no other package draws in another build.
.venv/installed: .venv/bin/python pyproject.toml constraints.txt requirements-demo.txt
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt torch
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --editable '.[onnx]'
	$(BIN)/pip install $(PIP_FLAGS) --no-deps -r requirements-demo.txt
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --editable '.[test,image]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv site build
