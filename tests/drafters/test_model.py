"""A draft model with a cache of its own."""

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.plan import Fixed
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from tests import tiny as models
from tests.harness import decoder_for, expected, finish, request, run

FOLLOWS = True
FLOOR = 1.7  # mean acceptance length on the conformance prompts, greedy


def tiny(target):
    """The oracle: the target with noise on its weights."""
    return ModelDrafter(lm=models.noisy(target, 0.12))


def itself():
    return ModelDrafter(lm=models.target()[1])


# The target's weights; the longest sequence that is drafted after is 24 tokens for both, as three slots are for the
# draft.
SHORT = {
    "context": lambda: models.native(models.llama(1, max_position_embeddings=24)),
    "window": lambda: models.native(models.causal("mistral", 1, sliding_window=27)),
}


@pytest.mark.parametrize("kind", SHORT)
def test_a_draft_with_a_shorter_reach_stops_drafting_for_that_row(kind):
    draft = SHORT[kind]()
    requests = [request([7, 3, 5], max_tokens=60), request([4] * 10, max_tokens=20), request([6] * 40, max_tokens=9)]
    result = run(ModelDrafter(lm=draft), "coupled", requests, k=3)
    assert result.texts == [expected(r) for r in requests]
    lengths = [len(r.tokens) for r in requests]
    for report in result.reports:
        for row in range(3):
            if len(report.tokens[row]):
                room = max(0, min(3, 24 - lengths[row] + 1))
                left = requests[row].max_tokens - (lengths[row] - len(requests[row].tokens)) - 1
                assert report.num_drafted[row] == min(room, left)
                lengths[row] += len(report.tokens[row])


@pytest.mark.parametrize("kind", SHORT)
def test_a_prompt_beyond_the_drafts_reach_is_decoded_plainly_until_the_row_is_reused(kind):
    decoder = decoder_for(ModelDrafter(lm=SHORT[kind]()), "coupled", k=3)
    first, second = request([6] * 40, max_tokens=6), request([7, 3], max_tokens=16)
    decoder.admit([first], [0])
    assert finish(decoder, rows=[0], prompts=[first.tokens]).texts == [expected(first)]
    decoder.admit([second], [0])
    result = finish(decoder, rows=[0], prompts=[second.tokens])
    assert result.texts == [expected(second)] and result.steps == 4


def test_a_window_without_room_for_a_draft_is_refused():
    draft = models.native(models.causal("mistral", 1, sliding_window=3))
    with pytest.raises(ValueError, match=r"3 draft tokens leave no room in the 3 slots .*: lower num_draft_tokens"):
        decoder_for(ModelDrafter(lm=draft), "coupled", k=3)


@pytest.mark.parametrize("vocab", [models.VOCAB - 6, models.VOCAB + 6])
@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_a_padded_vocabulary_is_cut_or_filled(vocab, verifier):
    model = models.llama(1)
    model.resize_token_embeddings(vocab, mean_resizing=False)
    requests = [request([7, 3, 5], max_tokens=30), request([2], max_tokens=30)]
    result = run(ModelDrafter(lm=models.native(model)), verifier, requests, k=3)
    assert result.texts == [expected(r) for r in requests]
    assert result.summary.mean_acceptance_length > 2


@pytest.mark.parametrize("draw", Draw)
def test_only_draws_from_a_distribution_carry_it(draw):
    drafter = ModelDrafter(lm=models.target()[1], draws=frozenset({draw}))
    decoder = decoder_for(drafter, "coupled", k=3)
    decoder.admit([request([7, 3], max_tokens=20, temperature=1.0)], [0])
    tree = drafter.propose(decoder.batch, decoder.plan())
    assert tree.draw.tolist() == [[draw] * 4]
    assert (tree.probs is not None) == (draw in (Draw.IID, Draw.NO_REPLACEMENT))
    if tree.probs is not None:
        torch.testing.assert_close(tree.probs.sum(-1), torch.ones(1, 3, dtype=torch.float64))
        assert tree.source.tolist() == [[-1, 0, 1, 2]]


class Later(Fixed):
    """Plain steps first; prompts are not read for the drafter when a request begins."""

    def __init__(self, num_draft_tokens, after):
        super().__init__(num_draft_tokens)
        self.after, self.asked = after, 0

    @property
    def drafts_at_once(self):
        return False

    def __call__(self):
        self.asked += 1
        return StepPlan(0) if self.asked <= self.after else self.step


@pytest.mark.parametrize("length", [1, 2, 9, 30])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_prompts_that_are_read_late_are_read_whole(after, length):
    """Else the target's own copy would not be accepted whole."""
    decoder = decoder_for(itself(), "coupled", rows=2, k=3, plan=Later(3, after), max_length=80)
    prompts = [[1 + at % 7 for at in range(length)], [5, 9, 2]]
    decoder.admit([request(prompt, max_tokens=30) for prompt in prompts], [0, 1])
    assert not decoder.drafter.cache.length.any()
    for _ in range(after):
        decoder.step()
    for _ in range(3):
        decoder.step()
        assert decoder.results().num_accepted == [3, 3]


def test_a_prefix_whose_source_has_read_nothing_is_read_by_the_row_that_shares_it():
    decoder = decoder_for(itself(), "coupled", rows=2, k=3, plan=Later(3, 2), max_length=80)
    prompt = [1 + at % 7 for at in range(20)]
    decoder.admit([request(prompt, max_tokens=30)], [0])
    decoder.admit([request([*prompt, 3, 4], max_tokens=30)], [1], [Prefix(row=0, length=19)])
    for _ in range(2):
        decoder.step()
    for _ in range(3):
        decoder.step()
        assert decoder.results().num_accepted == [3, 3]
