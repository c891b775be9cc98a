"""One thread: the models are so small that waking a second one costs more than it gives. No profiles of this user."""

import os
import signal

import pytest

# Or each worker of the suite has as many as there are cores, of each: of numpy, scipy and the tokenizers.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
os.environ["PACELINE_PROFILES"] = os.path.join(os.path.dirname(__file__), "no profiles")


@pytest.fixture
def interruptible():
    """SIGINT interrupts this process and those that it starts, even if the suite runs in the background.

    Shells start jobs in the background with SIGINT ignored, and processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
