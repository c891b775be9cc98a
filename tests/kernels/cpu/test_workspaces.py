"""Every cache has a kernel workspace of its own: engines in one process run side by side, over one model too."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from time import perf_counter, sleep

import pytest
import torch

from paceline.core.tree import Tree
from paceline.drafters.model import ModelDrafter
from paceline.engine.runner import ops_for
from paceline.kernels.cpu.operators import WORKSPACES
from paceline.models.base import LogitsFor
from paceline.models.cpu.decoder import CpuDecoder
from tests.harness import decoder_for, finish, request
from tests.kernels.cpu.models import native

LAYOUTS = {"one model": ("grouped", "grouped"), "two models": ("grouped", "gpt2")}
PROMPTS = ([5, 9, 2], [1], [17, 4, 33, 17, 4])


def chain(rows, nodes):
    tokens = torch.arange(rows * nodes).reshape(rows, nodes) % 60
    return Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))


def decoded(target, model):
    """Sequences that a decoder with a draft model gives, prompts read and drafts made by the kernel."""
    parts = dict(ops=ops_for(torch.device("cpu")))
    drafter = ModelDrafter(lm=CpuDecoder(model))
    decoder = decoder_for(drafter, "coupled", target=target, k=4, rows=3, parts=parts)
    asked = [request(prompt, max_tokens=60, temperature=0.8, seed=row) for row, prompt in enumerate(PROMPTS)]
    decoder.admit(asked, range(3))
    return finish(decoder, rows=[0, 1, 2], prompts=PROMPTS).texts


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_decoders_in_two_threads_decode_as_alone(layouts, threads):
    models = [native(layout, torch.float32) for layout in LAYOUTS[layouts]]
    targets = {id(model): CpuDecoder(model) for model in models}
    wanted = [decoded(targets[id(model)], model) for model in models]
    ready = threading.Barrier(2)

    def decode(model):
        ready.wait(60)
        return [decoded(targets[id(model)], model) for _ in range(5)]

    torch.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(decode, models))
    finally:
        torch.set_num_threads(1)
    assert found == [[sequences] * 5 for sequences in wanted]


@torch.inference_mode()
def test_no_cache_waits_for_another():
    """Short forwards begin and end within a long one of the same model."""
    model = CpuDecoder(native("grouped", torch.float32))
    long, short = model.new_cache(24, 512).view(), model.new_cache(1, 8).view()
    prompt, token, calls, done = chain(24, 512), chain(1, 1), [], []

    @torch.inference_mode()
    def read():
        for _ in range(2):
            start = perf_counter()
            model(prompt, long, logits_for=LogitsFor.NONE)
            calls.append((start, perf_counter()))

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        start = perf_counter()
        model(token, short)
        done.append((start, perf_counter()))
        sleep(0.001)  # a lock that both took would go to the reader
    reader.join(60)
    within = [sum(begin < start and end < until for start, end in done) for begin, until in calls]
    assert max(within) > 4, f"{within} of {len(done)} short forwards ran within a long one"


def test_a_workspace_lives_as_long_as_its_cache():
    model = CpuDecoder(native("grouped", torch.float32))
    gc.collect()
    before = len(WORKSPACES)
    caches = [model.new_cache(2, 8) for _ in range(3)]
    assert len({cache.workspace.address for cache in caches}) == 3 and len(WORKSPACES) == before + 3
    part, copy = caches[0].part(1, 1), deepcopy(caches[0])
    assert part.workspace is caches[0].workspace and copy.workspace.address != caches[0].workspace.address
    del caches, copy
    gc.collect()
    assert len(WORKSPACES) == before + 1
    del part
    gc.collect()
    assert len(WORKSPACES) == before


@torch.inference_mode()
def test_the_activations_of_a_long_prompt_are_not_kept():
    model = CpuDecoder(native("grouped", torch.float64))
    cache, rows = model.new_cache(40, 512), 40
    model(chain(rows, 4), cache.view(), logits_for=LogitsFor.NONE)
    of_step = cache.workspace.activation_bytes
    model(chain(rows, 512), cache.view(), logits_for=LogitsFor.NONE)
    width = model.lm.config.hidden_size * 8
    assert 0 < of_step and rows * 512 * width > 4 << 20, "the residual stream of the prompt is large"
    assert cache.workspace.activation_bytes < rows * 512 * width
    model(chain(rows, 4), cache.view(), logits_for=LogitsFor.NONE)
    assert cache.workspace.activation_bytes >= of_step


@torch.inference_mode()
def test_a_cache_of_the_eager_decoder_gets_a_workspace():
    model = CpuDecoder(native("grouped", torch.float32))
    cache = model.lm.new_cache(1, 8).view()
    logits = model(chain(1, 4), cache).logits
    assert torch.equal(logits, model(chain(1, 4), model.new_cache(1, 8).view()).logits)
    assert cache.storage.workspace is not None
