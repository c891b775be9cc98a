"""vLLM, where PACELINE_VLLM_PYTHON names an interpreter that has it, loads what is written for it.

Its texts are those of the target without a draft, and it accepts as much as Paceline does.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import paceline
from paceline.api.export import export_head
from paceline.api.loading import load
from paceline.bench.peers.vllm import VARIABLE
from paceline.draft_heads.files import save_head
from paceline.models.fingerprint import fingerprint
from tests import tiny
from tests.drafters import test_eagle, test_mtp
from tests.drafters.feature_heads import fitted

SIZES = dict(
    max_position_embeddings=256,
    hidden_size=128,
    intermediate_size=160,
    num_hidden_layers=1,
    vocab_size=256,
    num_attention_heads=4,
)
PROMPTS = [[7, 3, 5], [9, 2, 100, 40, 31], [60, 0, 7, 7], [200, 3]]
TOKENS, NUM_DRAFT = 240, 3
SCRIPT = Path(__file__).with_name("decode_with_vllm.py")
# Format, method of vLLM, and a head that guesses well.
HEADS = {
    "mtp_mimo": ("mtp", lambda target: test_mtp.echo(target, 0.3, zero_first=True)),
    "medusa_vllm": ("medusa", lambda target: fitted("medusa", target)),
    "eagle": ("eagle", lambda target: test_eagle.echo(target, 0.3, fc_bias=False)),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter that has vLLM"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The directory of a target whose next token depends on the newest alone."""
    model = tiny.llama(12, dtype=torch.float32, **SIZES)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        table = model.model.embed_tokens.weight
        table.div_(table.square().mean(-1, keepdim=True).sqrt()).mul_(0.2)
    folder = tmp_path_factory.mktemp("served") / "target"
    model.save_pretrained(folder)
    return folder


def served(folder, model, config):
    """The texts of vLLM, and the tokens accepted of each draft."""
    job = {"prompts": PROMPTS, "tokens": TOKENS, "length": 256, "model": str(model), "speculative_config": config}
    (folder / "job.json").write_text(json.dumps(job))
    command = [os.environ[VARIABLE], str(SCRIPT), str(folder / "job.json"), str(folder / "said.json")]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads((folder / "said.json").read_text())
    drafts = said["counts"].get("vllm:spec_decode_num_drafts", 0)
    return said["texts"], drafts and said["counts"]["vllm:spec_decode_num_accepted_tokens"] / drafts


@pytest.mark.parametrize("name", HEADS)
def test_vllm_accepts_what_is_accepted_here(name, target, tmp_path):
    method, make = HEADS[name]
    loaded = load(target, device="cpu", enforce_eager=True)
    save_head(make(loaded.lm), tmp_path / "own", target_name=loaded.name, fingerprint=fingerprint(loaded.lm))
    export_head(tmp_path / "own", tmp_path / "theirs", target=loaded, format=name, num_draft_tokens=NUM_DRAFT)
    params = paceline.SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    found = paceline.generate(loaded, PROMPTS, params, drafter=tmp_path / "own", num_draft_tokens=NUM_DRAFT)
    texts = [list(one.token_ids) for one in found]
    ours = sum(sum(one.stats.accepted) for one in found) / sum(one.stats.drafted[0] for one in found)
    inside = name.startswith("mtp")
    model = tmp_path / "theirs" if inside else target
    plain, _ = served(tmp_path, model, None)
    config = {"method": method, "num_speculative_tokens": NUM_DRAFT}
    drafted, theirs = served(tmp_path, model, config if inside else {**config, "model": str(tmp_path / "theirs")})
    assert plain == texts and drafted == texts
    assert theirs == pytest.approx(ours, abs=0.15) and 0.5 < ours < NUM_DRAFT - 0.1
