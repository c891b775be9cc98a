# All set-up is here: `make demo` and `make test` work on a fresh machine with Python 3.11 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What running needs is installed, and what developing needs.
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
# Few of transformers' models are imported, and no tests of packages: what is, is compiled then. A package may hold a file that
# is no valid Python.
COMPILE := $(BIN)/python -m compileall -q -j 0 -x 'site-packages/.*/tests?/|transformers/models/' $(VENV)/lib > /dev/null 2>&1 || true

.PHONY: page demo test lint types imports tests test-matrix bench bench-avx2 bench-verifiers bench-scaling bench-instruction-sets bench-options bench-controller bench-drafters bench-corrections bench-speech bench-semantic experiments small-targets experiment-exits experiment-joint experiment-blocks experiment-validation experiment-trees experiment-lengths bench-gpu endurance rank-verifiers distributions distributions-long divergence mutants slow fuzz instruction-sets wheel test-wheel docs docs-outputs demo-models demo-heads zoo zoo-train zoo-short clean clients bench-load

$(RUNS): pyproject.toml constraints.txt demo/pyproject.toml
	@echo "Installing Paceline, PyTorch and the embedded models into $(VENV): about a minute, and what is to be downloaded"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . --editable ./demo
	@touch $(RUNS)

$(STAMP): $(RUNS)
	@echo "Installing what tests and documentation need"
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@# Modules are compiled on all cores, and while others are being installed. Tests start Python hundreds of times, which
	@# reads source three times slower, and modules that warn as they are compiled would fail where warnings are errors.
	$(COMPILE) & $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . \
	  --editable ./demo --group dev && wait
	$(COMPILE)
	touch $(STAMP)

demo: $(RUNS)  ## Watch a prompt being drafted and verified, and see what drafting gains here
	@$(BIN)/paceline demo

test: lint imports  ## Everything that must hold before a change lands
	@$(MAKE) --no-print-directory -j 2 types tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP)
	$(BIN)/lint-imports

# Tests start Python hundreds of times, which would compile the package anew each time.
tests: export PYTHONDONTWRITEBYTECODE :=
tests: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

MATRIX ?= 5.17.0 5.23.0

test-matrix: $(STAMP)  ## What meets transformers, under its lowest and its newest supported version
	for version in $(MATRIX); do \
	  $(BIN)/python -m pip install --quiet --target build/transformers-$$version "transformers==$$version" && \
	  PYTHONPATH=build/transformers-$$version $(BIN)/python -m pytest -n auto --dist worksteal \
	    tests/text tests/models tests/api tests/bench || exit 1; \
	done

# The committed CPU report: the embedded pair, its target made larger, and both with a wide vocabulary.
PAIR := demo/src/paceline_demo
MODELS := build/bench
REPORTS := docs/benchmarks
ATTEMPTS := 4
INTERLEAVED := $(BIN)/paceline bench --together --drafter model --suite mixed --dtype bfloat16 --max-tokens 128 --attempts $(ATTEMPTS)
LARGE := --target $(MODELS)/target-200M --draft $(PAIR)/draft
WIDE := --target $(MODELS)/target-200M-32k --draft $(MODELS)/draft-32k
WITHOUT_LOOKUP := --peer-k transformers-lookup=none --peer-k vllm-lookup=none --peer-k llama.cpp-lookup=none
VLLM_ALONE := --peers --peer-k vllm=3,5 --peer-k transformers=none --peer-k llama.cpp=none $(WITHOUT_LOOKUP)
SAMPLED := --num-prompts 2 --k 3,5 --temperature 0,0.7 --top-p 0.95

$(MODELS)/%: | $(STAMP)
	rm -rf $@.part && mkdir -p $(MODELS)
	$(BIN)/python -m benchmarks inflate --model $(PAIR)/$(firstword $(subst -, ,$*)) --dtype bfloat16 \
	  --name paceline-demo-$(firstword $(subst -, ,$*)) $(addprefix --parameters ,$(filter %M,$(subst -, ,$*))) \
	  $(if $(findstring 32k,$*),--vocab 32000) --output $@.part
	mv $@.part $@

# A target that edits, for drafters that copy: its training resumes after an interruption (docs/training.md).
$(MODELS)/target-edit: | $(STAMP)
	$(BIN)/python demo/recipes/editing.py $(PAIR)/target build/edits
	rm -rf $@.part && mkdir -p $(MODELS)
	cp -r build/edits/export $@.part
	mv $@.part $@

# An encoder-decoder that corrects, for drafters that copy from what an encoder reads; its training resumes too.
$(MODELS)/target-correct: | $(STAMP)
	$(BIN)/python demo/recipes/correcting.py build/corrections
	rm -rf $@.part && mkdir -p $(MODELS)
	cp -r build/corrections/export $@.part
	mv $@.part $@

$(MODELS)/target-edit-200M: | $(MODELS)/target-edit
	rm -rf $@.part
	$(BIN)/python -m benchmarks inflate --model $(MODELS)/target-edit --dtype bfloat16 --name paceline-demo-target-edit \
	  --parameters 200M --output $@.part
	mv $@.part $@

bench: export VLLM_CPU_KVCACHE_SPACE ?= 1
bench: $(STAMP) $(MODELS)/target-200M $(MODELS)/target-200M-32k $(MODELS)/draft-32k  ## The committed CPU report, peers included (20 to 30 minutes, and peers' start-up; goes on after an interruption)
	$(INTERLEAVED) $(LARGE) --num-prompts 2 --k 1,3,5,6,7,8 --tree 8x5 --peers --peer-k vllm=3,5 --peer-k transformers=8 \
	  --peer-k transformers-assisted-confident=none --peer-k llama.cpp=8 --peer-k llama.cpp-draft-confident=none \
	  $(WITHOUT_LOOKUP) --output $(REPORTS)/cpu-batch1.jsonl
	$(INTERLEAVED) $(LARGE) --num-prompts 4 --batch 4 --k 1-5 $(VLLM_ALONE) --output $(REPORTS)/cpu-batch4.jsonl
	$(INTERLEAVED) $(LARGE) --num-prompts 8 --batch 8 --k 1-5 $(VLLM_ALONE) --output $(REPORTS)/cpu-batch8.jsonl
	$(INTERLEAVED) $(LARGE) $(SAMPLED) --output $(REPORTS)/cpu-sampled-4k.jsonl
	$(INTERLEAVED) $(WIDE) $(SAMPLED) --output $(REPORTS)/cpu-sampled-32k.jsonl

bench-avx2: $(STAMP) $(MODELS)/target-200M  ## The same at batch 1 with everything limited to AVX2, two threads; llama.cpp built for it (docs/benchmarks.md)
	$(INTERLEAVED) $(LARGE) --isa avx2 --threads 2 --num-prompts 2 --k 1,3,5,6 --peers --peer-k llama.cpp=2,3,5 \
	  --peer-k transformers=3,5 --peer-k transformers-assisted-confident=none --peer-k llama.cpp-draft-confident=none \
	  $(WITHOUT_LOOKUP) --output $(REPORTS)/cpu-avx2.jsonl

bench-verifiers: $(STAMP)  ## What a step pays for each verifier, by rows, vocabulary and draft
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks verifier-cost --output docs/benchmarks/verifiers-cost.jsonl

bench-scaling: $(STAMP)  ## A step's time and memory by rows, nodes and context, and the time to the first token (about 10 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks scaling --output docs/benchmarks/scaling.jsonl

bench-instruction-sets: $(STAMP)  ## t(n)/t(1) and the share of the read rate, by instruction set and precision (some minutes; goes on after an interruption)
	$(BIN)/python -m benchmarks instruction-sets --threads 2 --output $(REPORTS)/instruction-sets.jsonl

bench-options: $(STAMP) $(MODELS)/target-200M $(MODELS)/target-200M-32k $(MODELS)/draft-32k  ## What a step pays for each sampling option, by rows, draft and vocabulary (about 8 minutes; goes on after an interruption)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks sampling-cost $(LARGE) $(WIDE) --output $(REPORTS)/sampling-cost.jsonl

STUDIES := docs/experiments

experiments: $(STAMP) $(MODELS)/target-200M  ## What resuming from an exit saves, and what rows in lock-step lose (about 10 minutes; goes on after an interruption)
	$(BIN)/python -m benchmarks resume --target $(MODELS)/target-200M --output $(STUDIES)/resume.jsonl
	$(BIN)/python -m benchmarks batched --threads 1 --processor-time --repeats 8 --output $(STUDIES)/batched.jsonl

small-targets: $(STAMP)  ## Train the targets of the studies of heads, of 1, 3 and 7 million parameters (an hour of two cores; goes on after an interruption)
	$(BIN)/python -m benchmarks small-targets --output $(STUDIES)/small-targets.jsonl

experiment-exits: small-targets  ## Prophets beside early exits, by exit layer, blocks, recycled states and target (over an hour of two cores after it; goes on after an interruption)
	$(BIN)/python -m benchmarks exits-and-prophets --processor-time --output $(STUDIES)/exits-and-prophets.jsonl

experiment-joint: $(STAMP)  ## What training together with a head does to a target, and to the head (two to three hours of two cores; goes on after an interruption)
	$(BIN)/python -m benchmarks joint-training --output $(STUDIES)/joint-training.jsonl

experiment-blocks: $(STAMP)  ## Heads that draft token by token or a block at once, trained on own outputs or on text (an hour and a half of two cores; goes on after an interruption)
	$(BIN)/python demo/recipes/zoo.py --only --work build/zoo-short --num-prompts 3072
	$(BIN)/python -m benchmarks blocks-and-text --own build/zoo-short/own.npy --processor-time --output $(STUDIES)/blocks-and-text.jsonl

experiment-validation: zoo-short  ## Tokens per step in validation beside those in serving, for all heads of the zoo (some minutes after it)
	$(BIN)/python -m benchmarks validation --runs build/zoo-short --output $(STUDIES)/validation.jsonl

experiment-trees: zoo-train  ## Chains and trees of Medusa heads (some minutes)
	$(BIN)/python -m benchmarks head-trees --processor-time --output $(STUDIES)/head-trees.jsonl

experiment-lengths: $(STAMP) $(MODELS)/target-774M $(MODELS)/draft-124M  ## Draft lengths and output lengths with a pair of the sizes of GPT-2 (half an hour; goes on after an interruption)
	$(BIN)/python -m benchmarks lengths --target $(MODELS)/target-774M --draft $(MODELS)/draft-124M \
	  --num-prompts 2 --output $(STUDIES)/lengths.jsonl

STUDY := $(BIN)/python -m benchmarks controller --processor-time --k 1 --k 3 --k 5
AVX2 := PACELINE_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2

# $(1): its options; $(2): the report.
both_sets = $(STUDY) $(1) --output $(REPORTS)/$(2).jsonl && $(AVX2) $(STUDY) $(1) --output $(REPORTS)/$(2)-avx2.jsonl

bench-controller: export OMP_NUM_THREADS := 1
bench-controller: $(STAMP) $(MODELS)/target-200M  ## The controller beside fixed draft lengths, on the machine's best kernel and on AVX2's (three quarters of an hour; goes on after an interruption)
	$(call both_sets,--repeats 3,controller)
	$(call both_sets,--drafters useless --suites prose --temperatures 0 --batch 1 --batch 4 --batch 8 --max-tokens 256 \
	  --max-tokens 32 --repeats 3,controller-useless)
	$(call both_sets,--drafters ngram --suites copy --suites code --suites prose --temperatures 0 --batch 1 --batch 8 \
	  --repeats 3,controller-ngram)
	$(call both_sets,--target $(MODELS)/target-200M --draft $(PAIR)/draft --drafters model --drafters ngram --suites code \
	  --suites chat --temperatures 0 --batch 1 --batch 4 --max-tokens 48 --num-parts 2 --repeats 2,controller-200M)

DRAFTERS := $(BIN)/python -m benchmarks drafters --draft $(PAIR)/draft --processor-time --num-prompts 3 --repeats 2

bench-drafters: $(STAMP) $(MODELS)/target-200M $(MODELS)/target-edit-200M  ## All drafters on four suites, on the machine's best kernel and on AVX2's (about half an hour; goes on after an interruption)
	$(DRAFTERS) --target $(MODELS)/target-200M --output $(REPORTS)/drafters.jsonl
	$(DRAFTERS) --target $(MODELS)/target-edit-200M --suites edit --max-tokens 128 --output $(REPORTS)/drafters.jsonl
	$(AVX2) $(DRAFTERS) --target $(MODELS)/target-200M --output $(REPORTS)/drafters-avx2.jsonl
	$(AVX2) $(DRAFTERS) --target $(MODELS)/target-edit-200M --suites edit --max-tokens 128 --output $(REPORTS)/drafters-avx2.jsonl

bench-gpu: $(STAMP)  ## A target of 8 billion parameters made on a GPU: plain beside its bandwidth, drafted beside transformers
	$(BIN)/python -m benchmarks gpu --output docs/benchmarks/gpu.jsonl

# Whisper's layout at the size of its small one, and a draft of two of its decoder's layers, from models of a made-up speech.
SPEECH := build/speech

$(SPEECH)/target-51865: | $(STAMP)
	$(BIN)/python demo/recipes/dictating.py $(SPEECH)

$(MODELS)/whisper-%: | $(SPEECH)/target-51865
	rm -rf $@.part && mkdir -p $(MODELS)
	$(BIN)/python -m benchmarks inflate --model $(SPEECH)/$(if $(findstring draft,$*),draft,target)-51865 --dtype bfloat16 \
	  --name whisper-syllables --parameters $(if $(findstring draft,$*),104M,198M) --output $@.part
	mv $@.part $@

bench-speech: export OMP_NUM_THREADS := 1
bench-speech: $(STAMP) $(MODELS)/whisper-200M $(MODELS)/whisper-draft  ## Whisper's layout with a draft that shares its encoder, beside plain decoding and transformers (an hour; goes on after an interruption)
	$(BIN)/python -m benchmarks speech --target $(MODELS)/whisper-200M --draft $(MODELS)/whisper-draft \
	  --sounds $(SPEECH)/measured --max-tokens 96 --repeats 2 --processor-time --output $(REPORTS)/speech.jsonl

bench-corrections: export OMP_NUM_THREADS := 1
bench-corrections: $(STAMP) $(MODELS)/target-correct  ## Copies from what an encoder reads beside plain decoding, at batch 1 and 8 (some minutes; goes on after an interruption)
	$(BIN)/python -m benchmarks drafters --target $(MODELS)/target-correct --suites correct --dtype float32 \
	  --drafters copy --drafters suffix --drafters ngram --drafters auto --batch 1,8 --num-prompts 8 \
	  --max-tokens 128 --repeats 2 --processor-time --output $(REPORTS)/corrections.jsonl

bench-semantic: $(STAMP)  ## An early exit in a text-to-semantic model that is trained before (twenty minutes of one core)
	$(BIN)/python -m benchmarks semantic-data --out runs/semantic.jsonl
	OMP_NUM_THREADS=1 $(BIN)/paceline train examples/text_to_semantic.yaml
	$(BIN)/python -m benchmarks semantic --num-texts 16 --repeats 3 --processor-time --output $(REPORTS)/semantic.jsonl

endurance: $(STAMP)  ## Ten thousand steps, and whether memory grows (some minutes)
	$(BIN)/python -m benchmarks endurance

distributions: $(STAMP)  ## Output distributions of every verifier by enumeration, with a table of what was enumerated
	$(BIN)/python -m tests.distributions

distributions-long: $(STAMP)  ## A quarter of an hour of sampled outputs of a tiny transformer against their exact joint distribution, fresh seeds
	$(BIN)/python -m tests.distributions.long

divergence: $(STAMP)  ## How often drafting changes an output at near ties, per backend and precision
	$(BIN)/python -m benchmarks divergence

rank-verifiers: $(STAMP)  ## Which verifier gains most, on the embedded pair (about 10 minutes; goes on after an interruption)
	$(BIN)/python -m benchmarks verifier-ranking --output docs/benchmarks/verifiers-embedded.jsonl

mutants: $(STAMP)  ## Break the shipped code in known ways and see which test notices
	$(BIN)/python -m tests.mutants

slow: $(STAMP)  ## The slow tests that no other target runs, and the cases that each_value and one_in leave out
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow --ignore tests/packaging --ignore tests/mutants --ignore tests/serve/browser

page: $(STAMP)  ## The page of the server in Chromium (apt install chromium), its pictures compared; PACELINE_PICTURES=write makes those anew
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group page
	$(BIN)/python -m pytest -m slow tests/serve/browser

fuzz: $(STAMP)  ## Two thousand batches of made-up sampling options, each token judged, and ten thousand requests to the server; fresh every time (some minutes)
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.serve.fuzz

clients: $(STAMP)  ## Programs of others against `paceline serve`, each in a venv of its own under build/clients (downloads some GB)
	$(BIN)/python -m tests.clients

bench-load: $(STAMP) $(MODELS)/target-200M  ## Thirty-two clients for twenty minutes, every answer compared; rates beside the engine's and vLLM's (docs/benchmarks.md)
	$(BIN)/python -m benchmarks load --output $(REPORTS)/load.jsonl
	$(BIN)/python -m benchmarks load $(LARGE) --dtype bfloat16 --minutes 0 --output $(REPORTS)/load-200M.jsonl

wheel: $(STAMP)  ## The wheel of this platform, with the CPU kernel for every instruction set (about a minute)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

test-wheel: $(STAMP)  ## Build that wheel, install it where there is no compiler, and generate (some minutes)
	$(BIN)/python -m pytest -m slow tests/packaging

instruction-sets: $(STAMP)  ## The kernel on every instruction set: under emulation, and its whole suite on each that the processor has
	$(BIN)/python -m pytest tests/kernels/cpu/emulated
	sets=$$($(BIN)/python -c "from paceline.kernels.cpu.instruction_set import available_sets; print(*available_sets())") && \
	for isa in $$sets; do \
	  PACELINE_ISA=$$isa $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" \
	    --ignore tests/kernels/cpu/emulated tests/kernels/cpu || exit 1; \
	done

docs: $(STAMP)
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html

docs-outputs: $(STAMP)  ## Run the commands that the documentation shows and that have changed, and put their real output there (docs/outputs.py: all)
	$(BIN)/python docs/outputs.py --stale

demo-models: $(STAMP)  ## Train the embedded pair again (an hour or two on a CPU; resumable)
	$(BIN)/python demo/recipes/models.py build/demo-models

# Written to build/heads/early_exit/early_exit and build/heads/prophet/prophet, which the package has under
# demo/src/paceline_demo.
demo-heads: $(STAMP)  ## Train the heads of the embedded target again (half an hour on a core, and minutes on a GPU or hours; resumable)
	mkdir -p build/heads
	$(BIN)/paceline data regenerate demo/recipes/texts.yaml --model $(PAIR)/target --dtype bfloat16 --num-prompts 8192 \
	  --batch-size 64 --output build/heads/own.npy
	$(BIN)/paceline train demo/recipes/early_exit.yaml
	$(BIN)/paceline train demo/recipes/prophet.yaml

# Each head resumes from its last checkpoint; ZOO_OPTIONS="--only eagle3" trains one.
zoo-train: $(STAMP)  ## Train every kind of draft head for the embedded target, 40 minutes of one core each (hours; resumable)
	$(BIN)/python demo/recipes/zoo.py $(ZOO_OPTIONS)

zoo: zoo-train  ## Train them, measure each on held-out prompts, and print and draw what was found (docs/zoo.md)
	$(BIN)/python -m benchmarks heads --heads build/zoo --processor-time --output $(REPORTS)/zoo.jsonl
	$(BIN)/python -m benchmarks validation --runs build/zoo --output $(REPORTS)/zoo-validation.jsonl

zoo-short: $(STAMP)  ## All kinds of heads with 8 minutes of one core each, beside drafters without training (two hours of two cores)
	$(BIN)/python demo/recipes/zoo.py --work build/zoo-short --minutes 8 --num-prompts 3072
	$(BIN)/python -m benchmarks heads --heads build/zoo-short --processor-time --drafters ngram --drafters suffix \
	  --max-tokens 48 --repeats 2 $(foreach length,1 2 4,--depths $(length)) --output $(REPORTS)/zoo-short.jsonl

clean:
	rm -rf $(VENV) build docs/_build
