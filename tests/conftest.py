"""One thread: the models are so small that waking a second one costs more than it gives. No profiles of this user."""

import os
import signal

import pytest
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
