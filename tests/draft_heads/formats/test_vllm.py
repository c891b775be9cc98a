"""vLLM loads what is exported here, writes the same greedy text with it, and accepts as much of it as Paceline does.

It runs in a Python of its own, which PACELINE_VLLM_PYTHON names (docs/benchmarks.md says how to install it). Heads are
trained for some minutes on the embedded target, unless PACELINE_HEADS names a directory with one of each kind. ``-s``
shows what was found.
"""

import json
import os
import subprocess
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from paceline.api import Engine, SamplingParams, load
from paceline.api.embedded import embedded_pair
from paceline.api.export import export_head
from paceline.api.prompts import encode
from paceline.bench.peers.process import Answering
from paceline.bench.peers.vllm import PROBE, VARIABLE, WORKER
from paceline.bench.suites import prompts_of
from tests.train.configs import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no Python that has vLLM"),
]
HEADS = "PACELINE_HEADS"
DEPTH, TOKENS, PROMPTS, STEPS = 3, 96, 16, 120
# Kind of head, its configuration, the format, and vLLM's name of the method. vLLM takes some methods from words in
# paths, so the names of these cases, which are part of paths, have none of them.
EXPORTS = {
    "pairs": ("eagle", {"depth": DEPTH, "fc_bias": False}, "eagle", "eagle"),
    "fused": ("eagle3", {"depth": DEPTH, "draft_vocab_size": 1024}, "eagle3", "eagle3"),
    "fused, speculators": ("eagle3", {"depth": DEPTH, "draft_vocab_size": 1024}, "speculators_eagle3", "eagle3"),
    "independent": ("medusa", {"depth": DEPTH}, "medusa_vllm", "medusa"),
    "inside": ("mtp", {"depth": DEPTH}, "mtp_mimo", "mtp"),  # the written directory is a target that has it
}


@pytest.fixture(scope="module")
def target():
    return load(embedded_pair()[0], dtype="float32", enforce_eager=True)


@pytest.fixture(scope="module")
def prompts(target):
    return [encode(target, text) for suite in ("code", "prose") for text in prompts_of(suite, PROMPTS // 2, seed=0)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a head of each kind."""
    if HEADS in os.environ:
        return Path(os.environ[HEADS])
    output = tmp_path_factory.mktemp("heads") / "run"
    kinds = {kind: config for kind, config, _, _ in EXPORTS.values()}
    config = {
        "target": {"path": str(embedded_pair()[0])},
        "heads": [{"kind": kind, "config": {**fields, "anchors": 48}} for kind, fields in kinds.items()],
        "data": {"sources": [{"kind": "standard_library"}], "cache": str(output.parent / "cache")},
        "batch": {"rows": 4, "length": 255},
        "loss": {"terms": {"kl": 0.5, "argmax": 0.5}},
        "optimiser": {"learning_rate": 4e-3},
        "schedule": {"steps": STEPS, "warmup": 10},
        "validation": {"every": STEPS, "prompts": 4, "prompt_tokens": 32, "tokens": 32, "k": DEPTH},
        "output": str(output),
    }
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    assert train(path) == 0
    return output


@pytest.fixture(scope="module")
def plain(target, prompts):
    """The target's own greedy texts."""
    return texts_of(Engine(target, drafter=None, batch_size=PROMPTS), prompts)[0]


def texts_of(engine, prompts):
    """Texts, and accepted tokens and drafts of each."""
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    results = engine.generate(prompts, params)
    summaries = [result.stats.summary for result in results]
    counts = [(sum(one.accepted), one.drafted[0] if one.drafted else 0) for one in summaries]
    return [list(result.token_ids) for result in results], counts


def in_vllm(target, prompts, speculative):
    """The same of vLLM."""
    python = os.environ[VARIABLE]
    found = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    settings = {
        "model": str(target),
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": PROMPTS,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "gpu_memory_utilization": 0.05,
        "speculative_config": speculative,
    }
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "LD_PRELOAD": ":".join(json.loads(found.stdout)["preload"]),
    }
    order = {"prompts": prompts, "num_tokens": TOKENS, "temperature": 0.0, "top_p": 1.0, "seeds": [0] * PROMPTS}
    process = Answering("vllm", [python, str(WORKER), json.dumps(settings)], environment=environment)
    try:
        version = process.answer()["ready"]
        answer = process.ask(order)
    finally:
        process.close()
    counts = [(sum(at * count for at, count in enumerate(one)), sum(one)) for one in answer["drafts"]]
    return version, answer["tokens"], counts


@pytest.mark.parametrize("name", EXPORTS)
def test_vllm_writes_the_same_and_accepts_as_much(name, target, prompts, trained, plain, tmp_path):
    kind, _, format, method = EXPORTS[name]
    head, output = trained / kind, tmp_path / "head"
    export_head(head, output, target=target, format=format, num_draft_tokens=DEPTH)
    ours, our_counts = texts_of(Engine(target, drafter=head, num_draft_tokens=DEPTH, batch_size=PROMPTS), prompts)
    assert ours == plain
    speculative = {"method": method, "num_speculative_tokens": DEPTH}
    inside = kind == "mtp"
    version, theirs, their_counts = in_vllm(
        output if inside else target.name, prompts, speculative if inside else {**speculative, "model": str(output)}
    )
    same = [mine == other for mine, other in zip(ours, theirs, strict=True)]
    accepted = [
        sum(one for one, _ in counts) / sum(drafts for _, drafts in counts) for counts in (our_counts, their_counts)
    ]
    print(
        f"\nvLLM {version}, {format}, {DEPTH} tokens drafted: texts equal {sum(same)} of {PROMPTS}; accepted per draft "
        f"{accepted[0]:.3f} here, {accepted[1]:.3f} there"
    )
    assert sum(same) >= PROMPTS - 1, "at most a near tie of single precision"
    assert accepted[0] > 0.2, "a head that learnt something"
    assert accepted[1] == pytest.approx(accepted[0], abs=noise(our_counts))


def noise(counts):
    """Two standard errors of the accepted tokens per draft over texts."""
    shares = [accepted / drafts for accepted, drafts in counts if drafts]
    mean = fmean(shares)
    return 2 * (sum((one - mean) ** 2 for one in shares) / (len(shares) - 1) / len(shares)) ** 0.5
