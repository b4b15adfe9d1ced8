# Each target does what it needs of the set-up by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test clients ray lint format docs clean

setup: $(READY)

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e lab
	touch $@

demo: $(READY)
	$(BIN)/superpose-lab demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2

# Clients of the server that were written by others: their packages do not go with ours.
clients: $(READY)
	$(PYTHON) -m venv .clients/triton
	.clients/triton/bin/pip install --quiet "tritonclient[http,grpc]==2.73.0"
	$(PYTHON) -m venv .clients/kserve
	.clients/kserve/bin/pip install --quiet kserve==0.21.0
	$(PYTHON) -m venv .clients/openai
	.clients/openai/bin/pip install --quiet openai numpy
	$(PYTHON) -m venv .clients/schemathesis
	.clients/schemathesis/bin/pip install --quiet schemathesis
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m clients tests/serving

# The server on Ray, which brings two hundred megabytes of its own.
ray: $(READY)
	$(PYTHON) -m venv .clients/ray
	.clients/ray/bin/pip install --quiet -c constraints.txt torch
	.clients/ray/bin/pip install --quiet -c constraints.txt -e ".[ray]"
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m ray tests/serving

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d build/doctrees docs build/docs

clean:
	rm -rf $(VENV) .clients build dist
