"""Several drafters in turn: the tokens are the target's, and each drafts as well as if it had never stood by."""

import pytest
import torch

from paceline.core.plan import Plan
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.engine.runner import Runner
from tests import tiny
from tests.harness import decoder_for, expected, follows, guessable_target, request, run, tiny_drafter

pytestmark = pytest.mark.one_in(14)

K = 3
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
KINDS = (
    "model",
    "early_exit",
    "prophet",
    "linear_prophet",
    "medusa",
    "mlp_speculator",
    "block",
    "eagle",
    "eagle3",
    "mtp",
    "ngram",
)


class InTurn(Plan):
    """The drafters of ``turns``, None being a plain step, over and over."""

    def __init__(self, turns):
        self.turns, self.asked = turns, 0

    @property
    def max_draft_tokens(self):
        return K

    def __call__(self):
        drafter = self.turns[self.asked % len(self.turns)]
        self.asked += 1
        return StepPlan(0) if drafter is None else StepPlan(K, drafter=drafter)


def requests(prompts=PROMPTS):
    return [
        request(prompt, max_tokens=40 - row, temperature=0.8 * (row % 2), seed=row)
        for row, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("turns", [(0, 1), (0, 0, 1, None, 2), (2, 1, 1, 1, 1, 1, 0)])
@pytest.mark.parametrize("other", KINDS)
def test_tokens_are_those_of_plain_decoding(other, turns):
    _, target = tiny.target()
    drafter = CandidateDrafters([tiny_drafter(other, target), tiny_drafter("model", target), NgramDrafter()])
    asked = requests()
    result = run(drafter, "coupled", asked, plan=InTurn(turns))
    assert result.texts == [expected(one) for one in asked]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if follows(kind)])
def test_one_that_stood_by_drafts_as_it_would_have(kind):
    """Whatever was drafted by others before: each of its drafts is that of a drafter that never stood by."""
    _, target = guessable_target(kind)
    asked = requests()
    decoders = [
        decoder_for(drafter, "coupled", target=target, rows=len(asked), plan=InTurn(turns))
        for drafter, turns in (
            (CandidateDrafters([tiny_drafter(kind, target), NgramDrafter()]), (0, 1, 1, 1, 0, 1)),
            (tiny_drafter(kind, target), (0, None)),
        )
    ]
    drafts = []
    for decoder in decoders:
        found = {}
        decoder.admit(asked, range(len(asked)))
        while bool(decoder.batch.active.any()):
            before = decoder.batch.length.tolist()
            plan = decoder.plan()
            decoder.begin_step(plan)
            with torch.inference_mode():
                tree = decoder.draft(plan)
                scores = decoder.score(tree)
                outcome = decoder.decide(tree, scores)
                decoder.observe(tree, outcome, scores)
            if plan.num_draft_tokens and plan.drafter == 0:
                for row, length in enumerate(before):
                    if bool(tree.valid[row, 1:].all()):
                        found[row, length] = tree.tokens[row].tolist()
        drafts.append(found)
    same = drafts[0].keys() & drafts[1].keys()
    assert len(same) >= 4 and all(drafts[0][at] == drafts[1][at] for at in same)


def test_the_targets_own_copy_is_accepted_whole_after_standing_by():
    _, target = tiny.target()
    drafter = CandidateDrafters([NgramDrafter(), ModelDrafter(lm=target)])
    decoder = decoder_for(drafter, "coupled", rows=1, plan=InTurn((0, 0, 1, None, 1)))
    decoder.admit([request([5, 9, 2], max_tokens=50)], [0])
    accepted = []
    for step in range(10):
        decoder.step()
        if step % 5 in (2, 4):
            accepted += decoder.results().num_accepted
    assert accepted == [K] * 4


def test_origins_name_the_drafter_of_each_token():
    _, target = tiny.target()
    drafter = CandidateDrafters([NgramDrafter(), ModelDrafter(lm=target)])
    assert drafter.origins == ("ngram", "model")
    decoder = decoder_for(drafter, "coupled", rows=1, plan=InTurn((1,)))
    decoder.admit([request([5, 9, 2], max_tokens=20)], [0])
    decoder.step()
    assert decoder.results().origins[0][:K] == [1] * K


class Repeating(HostDrafter):
    """The newest token over and over."""

    def propose(self, sequences, num_draft_tokens):
        return {row: [tokens[-1]] * num_draft_tokens for row, tokens in sequences.items()}


def test_one_of_them_may_work_on_the_host():
    asked = requests()
    drafter = CandidateDrafters([HostDrafting(Repeating()), NgramDrafter()])
    runner = Runner(decoder_for(drafter, "coupled", rows=len(asked), plan=InTurn((0, 1, None))))
    assert runner.num_ahead == 0
    reading = runner.begin(asked, range(len(asked)), [None] * len(asked))
    runner.read(reading)
    rows = range(len(asked))
    for row, one in enumerate(asked):
        runner.sequences[row] = list(one.tokens)
    reports = []
    while bool(runner.decoder.batch.active.any()):
        reports.append(runner.take(runner.launch(), rows))
    texts = [runner.sequences[row][len(one.tokens) :] for row, one in enumerate(asked)]
    assert texts == [expected(one) for one in asked]
    assert any(max(report.num_drafted) == K for report in reports[::3])


def test_what_cannot_work_together_is_refused():
    _, target = tiny.target()
    with pytest.raises(ValueError, match="1 candidate drafters: give at least 2"):
        CandidateDrafters([NgramDrafter()])
    iid = ModelDrafter(lm=target, draws=frozenset({Draw.IID}))
    shared = ModelDrafter(lm=target, draws=frozenset({Draw.SHARED}))
    with pytest.raises(
        ValueError, match=r"the drafter 'model' drafts tokens that are sampled with .*: leave this drafter out"
    ):
        decoder_for(CandidateDrafters([iid, shared]), "rejection", plan=InTurn((0, 1)))


class Said(HostDrafter):
    """Copies what the target will say: ``texts`` by prompt, from the longest sequence that it follows."""

    copies = True
    origins = ("said",)

    def __init__(self, asked, model=None):
        self.texts = [[*one.tokens, *expected(one, model)] for one in asked]

    def propose(self, sequences, num_draft_tokens):
        texts = {
            row: next(one for one in self.texts if one[: len(tokens)] == tokens) for row, tokens in sequences.items()
        }
        return {row: texts[row][len(tokens) :][:num_draft_tokens] for row, tokens in sequences.items()}


class SomeCopy(Plan):
    """In each step the rows that ``copying`` names copy ``most`` tokens; the others have drafts of 2 to K tokens."""

    def __init__(self, drafter, copying, *, rows=4, most=7):
        self.drafter, self.copying, self.rows, self.most = drafter, copying, rows, most
        self.asked, self.offers = 0, {}

    @property
    def max_draft_tokens(self):
        return max(self.most, K)

    def consider(self, offers):
        self.offers = offers

    def __call__(self):
        self.asked += 1
        chosen = {row: found[0].first(self.most) for row, found in self.offers.items() if found}
        chosen = {row: one for row, one in chosen.items() if self.copying(self.asked, row) and one.tokens}
        depth = 2 + self.asked % (K - 1)
        if not chosen:
            return StepPlan(depth, drafter=self.drafter)
        depths = tuple(0 if row in chosen else depth for row in range(self.rows))
        return StepPlan(depth, depths, copies=chosen, drafter=self.drafter, num_copied=self.most)


COPYING = {
    "one row": lambda step, row: row == 1,
    "in turn": lambda step, row: (step + row) % 3 == 0,
    "now and then": lambda step, row: step % 4 == 0 and row < 2,
    "all rows": lambda step, row: step % 2 == 0,
}


@pytest.mark.parametrize("label", COPYING)
@pytest.mark.parametrize("other", ["model", "model in trees", "prophet", "eagle3", "ngram"])
def test_rows_that_copy_stand_beside_rows_that_are_drafted_for(other, label):
    """The tokens are the target's, copies are accepted whole, and each draft is what it would be without copies."""
    name, _, tree = other.partition(" in ")
    model, target = guessable_target(name)
    asked = requests()
    drafts = []
    for copying in (COPYING[label], lambda *_: False):
        one = tiny_drafter(name, target)
        if tree:
            one.shape, one.branches, one.ends_early = Topology.branching((2, 1, 1)), True, False
        drafter = CandidateDrafters([HostDrafting(Said(asked, model)), one])
        assert one.joins
        decoder = decoder_for(drafter, "coupled", target=target, rows=len(asked), plan=SomeCopy(1, copying))
        decoder.admit(asked, range(len(asked)))
        found, copied = {}, 0
        while bool(decoder.batch.active.any()):
            before = decoder.batch.length.tolist()
            decoder.look_for_copies()
            plan = decoder.plan()
            decoder.begin_step(plan)
            with torch.inference_mode():
                tree_of = decoder.draft(plan)
                scores = decoder.score(tree_of)
                decoder.observe(tree_of, decoder.decide(tree_of, scores), scores)
            result = decoder.results()
            for row, length in enumerate(before):
                if row in (plan.copies or {}):
                    left = len(asked[row].tokens) + asked[row].max_tokens - 1 - length
                    count = min(len(plan.copies[row].tokens), left)
                    assert result.num_accepted[row] == result.num_drafted[row] == max(0, count)
                    assert set(result.origins[row][: result.num_accepted[row]]) == {0}
                    copied += 1
                elif bool(tree_of.valid[row, 1:3].all()):
                    found[row, length] = tree_of.tokens[row, 1:3].tolist()
        texts = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in range(len(asked))]
        assert texts == [[*one.tokens, *expected(one, model)] for one in asked]
        assert bool(copied) == (copying is COPYING[label])
        drafts.append(found)
    same = drafts[0].keys() & drafts[1].keys()
    assert len(same) >= 2 and all(drafts[0][at] == drafts[1][at] for at in same)


def test_only_rows_that_copied_are_caught_up_with():
    """A row that gained nothing from copies is drafted for as in any other step: its draft model reads no chunks."""
    _, target = tiny.target()
    asked = requests(([5, 9, 2], [7, 3]))
    model, chunks = ModelDrafter(lm=target), []
    prepare = model.prepare

    def watched(batch, depth):
        chunks.append(model.catch_up)
        prepare(batch, depth)

    model.prepare = watched
    plan = SomeCopy(1, lambda step, row: row == 1, rows=2)
    drafter = CandidateDrafters([HostDrafting(Said(asked)), model])
    decoder = decoder_for(drafter, "coupled", target=target, rows=2, plan=plan)
    decoder.admit(asked, range(2))
    accepted = []
    for _ in range(5):
        decoder.step()
        report = decoder.results()
        accepted.append(report.num_accepted[0])
    assert chunks and not any(chunks)
    assert (accepted[:4] == [3, 2, 3, 2] and report.num_drafted[1] == 7) or report.finish[1]


@pytest.mark.parametrize("beside", [True, False])
def test_rows_that_were_drafted_for_by_others_for_long_are_caught_up_with_whole(beside):
    """Else the target's own copy would not be accepted whole; ``beside`` another row that it drafts for, or not."""
    _, target = tiny.target()
    asked = requests(([5, 9, 2], [7, 3]))
    drafter = CandidateDrafters([HostDrafting(Said(asked)), ModelDrafter(lm=target)])
    plan = SomeCopy(1, lambda step, row: beside and step <= 4 and row == 0, rows=2)
    decoder = decoder_for(drafter, "coupled", target=target, rows=2, plan=plan)
    decoder.admit(asked, range(2))
    for step in range(5):
        plan.drafter = int(beside or step == 4)
        decoder.step()
        report = decoder.results()
    assert report.num_accepted[0] == report.num_drafted[0] >= 2
