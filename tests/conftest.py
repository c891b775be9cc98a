"""One thread: the models are so small that waking a second one costs more than it gives. No profiles of this user."""

import os
import signal
from binascii import crc32

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


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Of a test that is marked ``each_value``, cases without a new value of any parameter are slow.

    The cases are gone through in an order without a pattern, so that values meet in many combinations.
    """
    seen = {}
    soon = [item for item in items if item.get_closest_marker("each_value") and not item.get_closest_marker("slow")]
    for item in sorted(soon, key=lambda item: crc32(item.nodeid.encode())):
        values = {(name, repr(value)) for name, value in item.callspec.params.items()}
        known = seen.setdefault((item.path, item.originalname), set())
        if values <= known:
            item.add_marker(pytest.mark.slow)
        known |= values
