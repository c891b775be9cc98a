"""The drafters and the test that docs/adding_a_drafter.md shows run as they are printed there."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from paceline.api.build import build_drafter
from paceline.drafters.host import HostDrafting
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from tests.engine.test_scheduler import drain
from tests.harness import decoder_for, expected, request, run

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_drafter.md"
PROMPTS = ([7, 3, 7, 3, 7, 3], [9], [8, 8, 8, 8])


def block(word):
    """The first block of Python on the page that contains ``word``."""
    return next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if word in code)


@pytest.fixture
def bigram(monkeypatch):
    module = ModuleType("paceline.drafters.bigram")
    exec(block("class BigramDrafter"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.BigramDrafter


def test_bigram_drafter_changes_no_token(bigram):
    requests = [request(prompt, max_tokens=12) for prompt in PROMPTS]
    assert run(bigram(), "coupled", requests).texts == [expected(one) for one in requests]


def test_documented_test_of_the_bigram_drafter_passes(bigram):
    names = {}
    exec(block("def tiny(target)"), names)
    names["test_each_token_is_looked_up_where_it_occurred_last"]()


def test_host_drafter_drafts_and_changes_no_token():
    given = []
    generate = SimpleNamespace(generate=lambda *_, drafter: given.append(drafter))
    exec(block("HostDrafter"), {"paceline": generate, "target": None, "prompts": None, "params": None})
    drafter = build_drafter(*given, target=None)
    assert isinstance(drafter, HostDrafting)
    requests = [request(prompt, max_tokens=12) for prompt in PROMPTS]
    scheduler = Scheduler(Runner(decoder_for(drafter, "coupled", rows=2)))
    tickets = [scheduler.submit(one) for one in requests]
    sequences, outputs = drain(scheduler)
    assert [sequences[ticket] for ticket in tickets] == [expected(one) for one in requests]
    assert max(one.num_drafted for one in outputs) == 3


def test_documented_verifier_is_the_one_of_the_example():
    shown = block("class FirstToken")
    example = PAGE.parents[1] / "examples/paceline-bigram/src/paceline_bigram/__init__.py"
    assert shown[shown.index("    lossless") : shown.index("def __call__")] in example.read_text()
