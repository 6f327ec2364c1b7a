# Each target makes the virtual environment that it needs; nothing has to be installed before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test browser check docs paper bench mutants clean

demo: .venv-demo/ready
	.venv-demo/bin/python examples/demo.py build/demo

test: $(VENV)/ready browser
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Pages are tested in a browser, which root of a Debian machine can have.
browser:
	@command -v chromium > /dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "installing chromium with apt-get, for the tests of pages"; \
		{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq --yes install --no-install-recommends chromium; } > /dev/null 2>&1 || \
		echo "chromium could not be installed: tests of pages are skipped"; \
	else \
		echo "there is no chromium: tests of pages are skipped"; \
	fi

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/ready
	$(BIN)/sphinx-build -W --keep-going --doctree-dir build/doctrees docs build/docs

paper: .venv-demo/ready
	.venv-demo/bin/localpower reproduce

BUILD := pyproject.toml constraints.txt hatch_build.py src/localpower/worker/kernels.c

bench: $(VENV)/ready
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/gaps.py

mutants: $(VENV)/ready
	$(BIN)/python benchmarks/mutants.py

$(VENV)/ready: $(BUILD)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --editable '.[test,check]'
	touch $@

.venv-demo/ready: $(BUILD)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python $(PIP) --editable '.[sklearn,plot]'
	touch $@

clean:
	rm -f src/localpower/worker/libkernels.so
	rm -rf $(VENV) .venv-demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
