# All set-up is here: `make demo` and `make test` work on a fresh machine with Python 3.11 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types imports tests test-matrix bench bench-verifiers bench-scaling bench-gpu endurance rank-verifiers laws laws-long divergence mutants docs docs-outputs demo-models clean

$(STAMP): pyproject.toml constraints.txt demo/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --editable ./demo --group dev
	touch $(STAMP)

demo: $(STAMP)  ## Decode with and without a draft, compare, and show what it pays
	$(BIN)/paceline demo

test: lint types imports tests  ## Everything that must hold before a change lands

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP)
	$(BIN)/lint-imports

tests: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

MATRIX ?= 5.17.0 5.23.0

test-matrix: $(STAMP)  ## What meets transformers, under its lowest and its newest supported version
	for version in $(MATRIX); do \
	  $(BIN)/python -m pip install --quiet --target build/transformers-$$version "transformers==$$version" && \
	  PYTHONPATH=build/transformers-$$version $(BIN)/python -m pytest -n auto --dist worksteal \
	    tests/text tests/models tests/api tests/bench || exit 1; \
	done

bench: $(STAMP)  ## Drafting against plain decoding and against transformers, on the embedded pair
	$(BIN)/paceline bench --peers --output build/bench.jsonl

bench-verifiers: $(STAMP)  ## What a step pays for each verification rule, by rows, vocabulary and draft
	OMP_NUM_THREADS=1 $(BIN)/python -m paceline.bench.rules --output docs/benchmarks/verifiers-cost.jsonl

bench-scaling: $(STAMP)  ## A step's time and memory by rows, nodes and context, and the time to the first token (about 10 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m paceline.bench.scaling --output docs/benchmarks/scaling.jsonl

bench-gpu: $(STAMP)  ## A target of 8 billion parameters made on a GPU: plain beside its bandwidth, drafted beside transformers
	$(BIN)/python -m paceline.bench.gpu --output docs/benchmarks/gpu.jsonl

endurance: $(STAMP)  ## Ten thousand steps, and whether memory grows (some minutes)
	$(BIN)/python -m paceline.bench.endurance

laws: $(STAMP)  ## Every law by enumeration, with a table of what was walked
	$(BIN)/python -m tests.laws

laws-long: $(STAMP)  ## Ten minutes of sampled texts of a tiny transformer against their exact joint law, fresh seeds
	$(BIN)/python -m tests.laws.long

divergence: $(STAMP)  ## How often drafting changes a text at near ties, per backend and precision
	$(BIN)/python -m paceline.diagnose.divergence_table

rank-verifiers: $(STAMP)  ## Which verification rule gains most, on the embedded pair (about 10 minutes; goes on after an interruption)
	$(BIN)/python -m paceline.bench.ranking --output docs/benchmarks/verifiers-embedded.jsonl

mutants: $(STAMP)  ## Break the shipped code in known ways and see which test notices
	$(BIN)/python -m tests.mutants

docs: $(STAMP)
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html

docs-outputs: $(STAMP)  ## Run every command that the documentation shows and put its real output there
	$(BIN)/python docs/outputs.py

demo-models: $(STAMP)  ## Train the embedded pair again (an hour or two on a CPU; resumable)
	$(BIN)/python -m paceline.train.demo_models build/demo-models

clean:
	rm -rf $(VENV) build docs/_build
