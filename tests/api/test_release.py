"""An engine that is dropped gives its memory and threads back at once, whatever has happened to it.

Its caches may fill half of the memory: they do not wait for the garbage collector, which here is off.
"""

import gc
import threading
import time
import weakref

import pytest

from paceline.api import Engine, Interrupted, SamplingParams, Session, load
from tests import tiny
from tests.api.checkpoints import pair
from tests.api.engines import bare
from tests.engine.test_guard import Failing
from tests.engine.wrapped import Breaking

PROMPTS = [[5, 9, 2], [1, 7]]
FORMAT = {"structured_outputs": {"regex": "[a-z ]*"}}


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fail(*_):
    raise RuntimeError("out of ink")


class UnreadableError(RuntimeError):
    def __init__(self):
        super().__init__("unreadable")


def processor(prompt, tokens, logits):
    return fail() if tokens else logits


def asked(**options):
    return SamplingParams(max_tokens=6, ignore_eos=True, **options)


def used(made, errors=(None, None), criterion=None, **options):
    """``made`` after it has run ``PROMPTS``, which end with ``errors``."""
    results = made.submit(PROMPTS, asked(**options), criterion=criterion).drain()
    assert tuple(result.error for result in results) == errors
    return made


def made(drafter="ngram", target=None):
    return Engine(
        target or load(pair().target), drafter=drafter, num_draft_tokens=3, batch_size=2, max_length=64, profile=None
    )


def abandoned():
    engine = made()
    next(engine.submit(PROMPTS, asked(**FORMAT)))
    return engine


def interrupted():
    engine = made(target=bare(Breaking(tiny.target()[1], KeyboardInterrupt, at=3)))
    try:
        engine.generate(PROMPTS, asked())
    except Interrupted:
        return engine


def session():
    talk = Session(load(pair().target), drafter=pair().draft)
    talk.send([5, 9, 2], asked())
    return talk._engine


INK = ("out of ink", "out of ink")
USES = {
    "drafted": lambda: used(made(pair().draft)),
    "a format": lambda: used(made(pair().draft), **FORMAT),
    "a processor that raises": lambda: used(made(), logits_processors=[processor], errors=INK, **FORMAT),
    "a criterion that raises": lambda: used(made(), criterion=fail, errors=INK),
    "a drafter that raises in prefill": lambda: used(made(Failing("prefill", 1))),
    "a drafter that raises": lambda: used(made(Failing("propose", 2))),
    "a prompt that cannot be read": lambda: used(
        made(target=bare(Breaking(tiny.target()[1], UnreadableError, poison=5))), ("unreadable", None)
    ),
    "abandoned": abandoned,
    "interrupted": interrupted,
    "a session": session,
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("use", USES)
def test_a_dropped_engine_is_released_at_once(use, uncollected):
    pair()  # whose progress bar keeps a thread
    before = threading.active_count()
    engine = USES[use]()
    left = {
        "engine": weakref.ref(engine),
        "decoder": weakref.ref(engine.decoder),
        "drafter": weakref.ref(engine.decoder.drafter),
        "cache": weakref.ref(engine.decoder.cache.storage),
    }
    del engine
    assert not [name for name, alive in left.items() if alive() is not None]
    limit = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < limit, f"left: {threading.enumerate()}"
        time.sleep(0.01)
