"""Drafters that read the states of a prompt's last tokens alone read no others, over the registry."""

import pytest
import torch

from paceline import decode
from paceline.drafters import DRAFTERS
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.tree.rank_acceptance import RankAcceptanceDrafter
from tests import tiny
from tests.drafters.feature_heads import new_head
from tests.engine.wrapped import Wrapped
from tests.harness import request, run, tiny_drafter

PROMPTS = ([7, 3, 5, 60, 2, 2, 9], [1], [8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
READS_LAST = {"prophet": 2, "linear_prophet": 1, "medusa": 1, "hydra": 1, "mlp_speculator": 1}


class Poisoned(Wrapped):
    """A language model whose states hold nothing but those that its caller is going to read."""

    def __call__(self, tree, cache, *, start=0, last_states=None, **options):
        output = self.lm(tree, cache, start=start, last_states=last_states, **options)
        if last_states is not None:
            valid = tree.valid[:, start:]
            left = valid.flip(-1).cumsum(-1).flip(-1)  # valid nodes from here on
            for states in output.hidden.values():
                states[~valid | (left > last_states)] = torch.nan
        return output


def decoded(make, target):
    drafter = make()
    requests = [request(prompt, max_tokens=12, seed=row) for row, prompt in enumerate(PROMPTS)]
    found = run(drafter, "coupled", requests, target=target)
    return drafter.last_states, found.texts, [report.num_accepted for report in found.reports]


def assert_reads_no_others(make):
    target = tiny.target()[1]
    last_states, *found = decoded(make, target)
    assert decoded(make, Poisoned(target)) == (last_states, *found)
    return last_states


@pytest.fixture(params=[decode.CHUNK, 3], ids=str, autouse=True)
def chunk(request, monkeypatch):
    """Tokens of a prompt that are read at once: its last states may be of two forwards."""
    monkeypatch.setattr(decode, "CHUNK", request.param)


@pytest.mark.parametrize("name", sorted(DRAFTERS.builtin))
def test_drafts_follow_from_the_states_that_are_said_to_be_read(name):
    target = tiny.target()[1]
    assert assert_reads_no_others(lambda: tiny_drafter(name, target)) == READS_LAST.get(name)


@pytest.mark.parametrize(
    ("names", "last_states"),
    [(("medusa", "prophet"), 2), (("ngram", "medusa"), 1), (("mtp", "prophet"), None), (("ngram", "model"), None)],
)
def test_several_drafters_read_what_any_of_them_reads(names, last_states):
    target = tiny.target()[1]
    made = lambda: CandidateDrafters([tiny_drafter(name, target) for name in names])  # noqa: E731
    assert assert_reads_no_others(made) == last_states


def test_a_prefix_layer_reads_all_states():
    target = tiny.target()[1]

    def hydra():
        head = new_head("hydra", target, spread=0.3, depth=3, prefix=True)
        return DRAFTERS.find("hydra")(head=head)

    assert assert_reads_no_others(hydra) is None


def test_a_wrapped_drafter_reads_what_the_drafter_reads():
    target = tiny.target()[1]
    made = RankAcceptanceDrafter(drafter=tiny_drafter("medusa", target), width=2)
    assert made.last_states == 1
