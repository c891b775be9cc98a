"""The kernel's own threads: more of them than cores, several callers at once, and a process that was forked."""

import os
import threading

import psutil
import pytest
import torch

from paceline.core.noise import Key, Stream
from paceline.kernels.cpu.noise import KernelNoise
from paceline.models.cpu.decoder import CpuDecoder
from tests.kernels.cpu.models import native
from tests.kernels.cpu.test_invariance import chain
from tests.models.layouts import texts


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def read(model, tokens):
    """Logits of texts that a new cache reads at once."""
    with torch.inference_mode():
        return model(chain(tokens), model.new_cache(tokens.shape[0], 64).view()).logits


def test_callers_at_once_do_not_disturb_each_other():
    models = [CpuDecoder(native(layout, torch.float32)) for layout in ("grouped", "gpt2")]
    tokens, key = texts(2, 24), Key(seed=torch.arange(8), position=torch.arange(8), stream=Stream.TARGET)
    wanted = [read(model, tokens) for model in models]
    words = KernelNoise().bits(key, 9000)
    wrong: list[object] = []

    def decode(model, logits):
        wrong.extend(1 for _ in range(40) if not torch.equal(read(model, tokens), logits))

    def draw():
        wrong.extend(2 for _ in range(40) if not torch.equal(KernelNoise().bits(key, 9000), words))

    callers = [threading.Thread(target=decode, args=pair) for pair in zip(models, wanted, strict=True)]
    callers += [threading.Thread(target=draw) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong and not any(caller.is_alive() for caller in callers)


def test_threads_that_slept_are_woken():
    model, tokens = CpuDecoder(native("grouped", torch.float32)), texts(1, 24)
    wanted = read(model, tokens)
    for pause in (0.0, 0.001, 0.05):
        threading.Event().wait(pause)
        assert torch.equal(read(model, tokens), wanted)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_decodes_with_threads_of_its_own():
    model, tokens = CpuDecoder(native("grouped", torch.float32)), texts(1, 24)
    wanted = read(model, tokens)
    child = os.fork()
    if child == 0:
        same = all(torch.equal(read(model, tokens), wanted) for _ in range(3))
        os._exit(0 if same and psutil.Process().num_threads() >= 4 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
