"""Which modules are not imported where nothing needs them: they take longer than all else. Measures no time."""

import json
import subprocess
import sys

import pytest

from tests.api.checkpoints import pair

TORCH = ("torch", "numpy", "transformers", "tokenizers", "huggingface_hub", "pydantic")
COMPILER = ("torch._dynamo", "torch._inductor", "sympy", "torch.distributed.tensor", "torch.onnx")
PEERS = ("scipy", "pandas", "matplotlib", "datasets", "torchao", "llguidance", "networkx", "optuna")
MODELLING = ("transformers.modeling_utils", "transformers.generation", "transformers.models", "transformers.quantizers")
OF_MODELS = (*COMPILER, *PEERS, *MODELLING)
SAYS = "\nimport json, sys; print(json.dumps([name for name in sys.argv[1].split(',') if name in sys.modules]))"
RUN = "from paceline.cli import run; assert run({}) == {}"


def imported(program, names):
    """Those of ``names`` that are imported after ``program``."""
    words = [sys.executable, "-c", program + SAYS, ",".join(names)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_is_looked_for_has_these_names():
    program = "import torch._dynamo, torch.distributed.tensor, transformers.modeling_utils, transformers.generation"
    assert {*COMPILER, "scipy", "transformers", *MODELLING[:3]} - {"torch.onnx"} <= set(
        imported(program, (*TORCH, *OF_MODELS))
    )


def test_the_package_and_its_names_load_nothing():
    assert imported("import paceline; dir(paceline); paceline.__all__", (*TORCH, *OF_MODELS)) == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "generate --help",
        "batch run --help",
        "batch run in.jsonl out.jsonl --model /nowhere",
        "chat --help",
        "generate --model /nowhere x",
        "generate --model TARGET --draft ./nowhere x",
        "inspect /nowhere",
        "chat /nowhere",
        "demo --target /nowhere --draft /nowhere",
        "bench --target ./nowhere",
        "roofline --model ./nowhere",
        "serve --help",
        "serve ./nowhere",
    ],
)
def test_help_and_a_mistyped_path_load_no_torch(words):
    code = 0 if "--help" in words else 2
    words = [str(pair().target) if word == "TARGET" else word for word in words.split()]
    assert imported(RUN.format(words, code), (*TORCH, *OF_MODELS)) == []


def test_a_native_pair_generates_without_what_it_does_not_need():
    words = ["generate", "--model", pair().target, "--draft", pair().draft, "--max-tokens", 4, "import"]
    assert imported(RUN.format([str(word) for word in words], 0), OF_MODELS) == []


def test_the_embedded_pair_and_its_heads_load_without_what_they_do_not_need():
    program = (
        "import paceline\n"
        "target, draft = (paceline.load(path) for path in paceline.embedded_pair())\n"
        "[paceline.build_drafter(path, target=target) for path in (draft, *paceline.embedded_heads())]"
    )
    assert imported(program, OF_MODELS) == []


@pytest.mark.slow
def test_only_a_quantized_model_needs_torchao():
    pytest.importorskip("torchao")
    program = f"import paceline; paceline.load({str(pair().target)!r}, quantization='int8')"
    assert "torchao" in imported(program, OF_MODELS)
