"""vLLM and llama.cpp themselves, where their user says that they are: they decode what we decode."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.api import embedded_pair, load
from paceline.bench.peers import llama_cpp, vllm
from paceline.bench.suites import prompts_of
from paceline.bench.sweep import Cell
from paceline.bench.workbench import ModelBench

PLACES = {
    vllm.VLLM: (vllm.find, os.environ.get(vllm.VARIABLE)),
    llama_cpp.LLAMA_CPP: (llama_cpp.find, os.environ.get(llama_cpp.VARIABLE)),
}


@pytest.fixture(scope="module")
def bench():
    """The embedded pair in float32, so that no near tie decides."""
    target_path, draft_path = embedded_pair()
    target, draft = (load(path, dtype="float32") for path in (target_path, draft_path))
    prompts = [target.tokenizer.encode(prompt) for prompt in prompts_of("code", 4, seed=0)]
    return ModelBench(
        target=target, draft=draft, target_path=target_path, draft_path=draft_path, prompts=prompts, seed=0
    )


@pytest.mark.timeout(1200)  # vLLM compiles, for minutes
@pytest.mark.parametrize(("way", "num_draft_tokens", "batch_size"), [(0, 0, 4), (1, 3, 1), (1, 3, 2)])
@pytest.mark.parametrize("name", PLACES)
def test_it_decodes_what_we_decode(bench, name, way, num_draft_tokens, batch_size):
    find, place = PLACES[name]
    if place is None:
        pytest.skip(f"{name} is not installed here")
    peer = find(Path(place), replace(bench.setting(), num_threads=1))
    ways = (peer.ways.plain, *peer.ways.drafting)
    cell = Cell(
        drafter=ways[way],
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        temperature=0.0,
        max_tokens=24,
    )
    try:
        found = peer.decoding("peer", cell, prompts=bench.prompts, seed=0).run().tokens
    finally:
        peer.close()
    assert found == bench.plain("plain", cell).run().tokens
