"""A draft model that exchanges text with the target: its own cache, in batches, beside a tokenizer of any kind."""

from paceline.drafters.host import HostDrafting
from paceline.drafters.slem import SlemDrafter
from tests import tiny as models
from tests.harness import decoder_for, expected, finish, request, run

FOLLOWS = True
FLOOR = 1.7  # mean acceptance length on the conformance prompts, greedy


class Letters:
    """The text has one letter for each token, on both sides."""

    draft_tokens_per_token = 1.0

    def __init__(self, per_token=1.0):
        self.draft_tokens_per_token = per_token

    def begin(self):
        return Known()

    def read(self, into, tokens):
        into.tokens = list(tokens)

    def drafted(self, sequence, read, tokens):
        assert read.tokens == list(sequence)
        return list(tokens)


class Known:
    def __init__(self):
        self.tokens = []


def tiny(target):
    """The oracle: the target with noise on its weights."""
    return HostDrafting(SlemDrafter(lm=models.noisy(target, 0.12), text=Letters()))


def itself(**options):
    return HostDrafting(SlemDrafter(lm=models.target()[1], text=Letters(**options)))


def test_the_targets_copy_is_accepted_whole_in_ragged_batches():
    prompts = ([5, 9, 2], [1], [8] * 30, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
    requests = [request(prompt, max_tokens=41 + at) for at, prompt in enumerate(prompts)]
    result = run(itself(), "coupled", requests, k=3)
    assert result.texts == [expected(one) for one in requests]
    assert result.steps == 11 and result.summary.acceptance_rate > 0.97


def test_only_what_is_new_is_read():
    drafter = itself()
    decoder = decoder_for(drafter, "coupled", k=3)
    decoder.admit([request([7] * 20, max_tokens=40)], [0])
    lm, fed = drafter.drafter.lm, []

    class Counted:
        def __getattr__(self, name):
            return getattr(lm, name)

        def __call__(self, tree, cache, **options):
            fed.append(int(tree.valid.sum()))
            return lm(tree, cache, **options)

    drafter.drafter.lm = Counted()
    finish(decoder, rows=[0], prompts=[[7] * 20])
    assert fed[:3] == [20, 1, 1] and max(fed[3:]) == 2, "the root, and the last drafted token"


def test_a_row_beyond_the_drafts_context_is_not_drafted_for():
    draft = models.native(models.llama(1, max_position_embeddings=24))
    requests = [request([7, 3, 5], max_tokens=50), request([6] * 40, max_tokens=9)]
    result = run(HostDrafting(SlemDrafter(lm=draft, text=Letters())), "coupled", requests, k=3)
    assert result.texts == [expected(one) for one in requests]
    drafted = [[report.num_drafted[row] for report in result.reports] for row in range(2)]
    assert drafted[0][:3] == [3, 3, 3] and drafted[0][-1] == 0 and sum(drafted[1]) == 0


def test_more_draft_tokens_are_drafted_where_they_are_shorter():
    requests = [request([7, 3, 5], max_tokens=40)]
    result = run(itself(per_token=1.5), "coupled", requests, k=3)
    assert result.texts == [expected(one) for one in requests]
    assert max(report.num_drafted[0] for report in result.reports) == 3
