"""One thread: the models are so small that waking a second one costs more than it gives. No profiles of this user."""

import math
import os
import signal
from binascii import crc32
from collections import Counter

import pytest

# Or each worker of the suite, and each process that it starts, has as many as there are cores: of torch, of numpy and
# scipy, of the tokenizers.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")

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
    """Makes slow what the marks ``each_value`` and ``one_in`` leave out of the ordinary suite.

    Cases are gone through in an order without a pattern, so that values meet in many combinations.
    """
    items = sorted(items, key=lambda item: crc32(item.nodeid.encode()))
    leave_repeated_values(ordinary(items, "each_value"))
    leave_shares(ordinary(items, "one_in"))


def ordinary(items, mark):
    return [item for item in items if item.get_closest_marker(mark) and not item.get_closest_marker("slow")]


def values(item):
    return {(name, repr(value)) for name, value in item.callspec.params.items()} if hasattr(item, "callspec") else set()


def leave_repeated_values(items):
    """Of a test, cases without a new value of any parameter are slow."""
    seen = {}
    for item in items:
        known = seen.setdefault((item.path, item.originalname), set())
        if values(item) <= known:
            item.add_marker(pytest.mark.slow)
        known |= values(item)


def leave_shares(items):
    """Of the cases of a test, all but one in n are slow; those stay whose values occur least in the file till then."""
    tests = {}
    for item in items:
        tests.setdefault((item.path, item.originalname), []).append(item)
    kept = Counter()
    for (path, _), cases in tests.items():
        (n,) = cases[0].get_closest_marker("one_in").args
        for _ in range(math.ceil(len(cases) / n)):
            case = min(cases, key=lambda case: sum(kept[path, value] for value in values(case)))
            kept.update((path, value) for value in values(case))
            cases.remove(case)
        for case in cases:
            case.add_marker(pytest.mark.slow)
