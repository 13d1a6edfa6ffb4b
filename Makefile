# Each target sets up what it needs. `make VENV=path` uses an environment that lies elsewhere.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PYTHONPATH := src

.PHONY: install demo test slow check format

install: $(VENV)/.installed

# Another clone's environment is used as it is: installing into it would point it at this clone.
ifeq ($(VENV),.venv)
$(VENV)/.installed: pyproject.toml constraints.txt
endif
$(VENV)/.installed:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/python -m fastmoco demo

# Files side by side, as many as there are cores, in the order of conftest.py; a test keeps to one thread.
test: install
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

slow: install
	$(BIN)/python -m pytest -m slow

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
