"""Host constraints: failures of one row, asynchronous results, recorded steps, and steps without constraints."""

from dataclasses import replace

import pytest
import torch

from paceline.constraints.token_masks import Draft, Refused, commit, masks, prune
from paceline.core.constraint import Grammar
from paceline.core.scores import Scores
from paceline.core.step import Finish
from paceline.core.tree import Draw, Tree
from paceline.drafters.model import ModelDrafter
from paceline.engine.runner import Runner
from paceline.models.prefill import prefill
from paceline.verifiers.draft_probs import masked
from tests import tiny
from tests.constraints.regular import Automaton, Language, Scripted, calling
from tests.engine.recorded import RecordedGraphs
from tests.engine.test_scheduler import CHOSEN, ORDERS, drain, scheduler, scheduler_of
from tests.engine.wrapped import Breaking
from tests.harness import decoder_for, expected, request, tiny_drafter

pytestmark = pytest.mark.one_in(14)

# Three classes of tokens in a circle, and a class that leads back: half of the tokens are forbidden everywhere.
CIRCLE = Language(
    tuple({token: (token + at) % 4 for token in range(tiny.VOCAB) if (token + at) % 3 != 2} for at in range(4)),
    size=tiny.VOCAB,
)


class Masked:
    """A transformers model under a language, for the output after ``num_prompt`` tokens."""

    def __init__(self, language, num_prompt):
        self.language, self.num_prompt = language, num_prompt

    def __call__(self, text):
        output, state = tiny.target()[0](text), 0
        for token in text[0, self.num_prompt :].tolist():
            state = self.language.moves[state][token]
        barred = [token for token in range(tiny.VOCAB) if token not in self.language.moves[state]]
        output.logits[..., barred] = -torch.inf
        return output


def constrained(prompt, *constraints, **options):
    return replace(request(prompt, **options), constraints=constraints)


def wanted(one):
    """What the naive reference makes of a request under CIRCLE."""
    return expected(replace(one, constraints=()), Masked(CIRCLE, len(one.tokens)))


@pytest.fixture(params=ORDERS)
def order(request):
    """Steps that are read before the next is queued, and after."""
    CHOSEN[:] = [request.param]
    yield request.param
    CHOSEN[:] = ["at once"]


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_rows_with_constraints_and_without_come_and_go(order, drafter):
    asked = [
        constrained([5, at], *((CIRCLE,) if at % 3 else ()), max_tokens=4 + 7 * at % 13, temperature=at % 2, seed=at)
        for at in range(9)
    ]
    made = scheduler(drafter, rows=3)
    tickets = [made.submit(one) for one in asked]
    texts, _ = drain(made)
    for ticket, one in zip(tickets, asked, strict=True):
        assert texts[ticket] == (wanted(one) if one.constraints else expected(one))
    assert not made.decoder.constraints.busy


class Broken(Automaton):
    """Follows CIRCLE and raises ``error`` in ``place``, after so many tokens."""

    def __init__(self, place, error, after):
        super().__init__(CIRCLE)
        self.place, self.error, self.after = place, error, after

    def _ask(self, place):
        if place == self.place and len(self.states) > self.after:
            raise self.error

    def advance(self, token):
        self._ask("advance")
        return super().advance(token)

    def rollback(self, count):
        self._ask("rollback")
        super().rollback(count)

    def allowed(self):
        self._ask("allowed")
        return super().allowed()


@pytest.mark.parametrize("place", ["begin", "advance", "rollback", "allowed", "process"])
@pytest.mark.parametrize("drafter", ["none", "model"])
def test_a_constraint_that_raises_fails_its_request_alone(order, place, drafter):
    error = RuntimeError("a broken constraint")

    def begin(prompt):
        if place == "begin":
            raise error
        return Broken(place, error, 6)

    def process(tokens, logits):
        if place == "process" and len(tokens) > 8:
            raise error
        return logits

    neighbours = [
        request([7, 3], max_tokens=20),
        constrained([1, 1, 2], CIRCLE, max_tokens=20, temperature=1.0, seed=4),
    ]
    bad = constrained([5, 5], Scripted(begin), calling(process), max_tokens=20, temperature=1.0, seed=2)
    made = scheduler(drafter, rows=3)
    tickets = [made.submit(one) for one in (neighbours[0], bad, neighbours[1])]
    texts, outputs = drain(made)
    failures = [output for output in outputs if output.error is not None]
    if place == "rollback" and drafter == "none":
        assert not failures, "nothing is taken back without a draft"
        return
    assert [(output.ticket, output.error, output.token_ids) for output in failures] == [(tickets[1], error, [])]
    assert texts[tickets[0]] == expected(neighbours[0]) and texts[tickets[2]] == wanted(neighbours[1])
    assert texts[tickets[1]] == wanted(replace(bad, constraints=(CIRCLE,)))[: len(texts[tickets[1]])]
    assert (len(texts[tickets[1]]) > 0) is (place != "begin")
    again = made.submit(request([7, 3], max_tokens=20))
    assert drain(made)[0][again] == expected(neighbours[0]), "its row serves the next"


def test_a_cancelled_row_has_no_constraints_and_the_next_request_begins_anew(order):
    made = scheduler("model", rows=1)
    first = made.submit(constrained([5, 5], CIRCLE, max_tokens=30))
    made.advance(), made.advance()
    made.cancel(first)
    assert not made.decoder.constraints.busy
    one = constrained([6], CIRCLE, max_tokens=12)
    second = made.submit(one)
    assert drain(made)[0][second] == wanted(one)


def test_an_interrupted_step_leaves_the_constraints_as_they_were():
    """The target fails in mid-generation: the same step is taken again."""
    one = constrained([5, 5], CIRCLE, max_tokens=20, temperature=1.0, seed=3)
    for at in range(2, 8):
        target = Breaking(tiny.target()[1], RuntimeError("no memory"), at=at)
        made = scheduler_of(decoder_for(tiny_drafter("model", tiny.target()[1]), "coupled", target=target))
        ticket, outputs = made.submit(one), []
        with pytest.raises(RuntimeError, match="no memory"):
            while True:
                outputs += made.advance()
        assert drain(made, outputs)[0][ticket] == wanted(one)


def test_steps_with_constraints_are_called_and_others_replayed():
    decoder = decoder_for(tiny_drafter("model", tiny.target()[1]), "coupled")
    runner = Runner(decoder, graphs=RecordedGraphs())
    free, one = request([5, 5], max_tokens=40), constrained([5, 5], CIRCLE, max_tokens=40)
    for asked in (free, one, free, one):
        called, replayed = runner.num_called, runner.num_replayed
        decoder.admit([asked], [0])
        while bool(decoder.batch.active.any()):
            runner.launch()
        text = decoder.batch.tokens[0, 2 : decoder.batch.length[0]].tolist()
        decoder.release([0])
        assert text == (wanted(asked) if asked.constraints else expected(asked))
        assert (runner.num_replayed > replayed) is (asked is free) and (asked is free or runner.num_called > called)


def test_without_constraints_nothing_is_read_from_the_device(monkeypatch):
    """What goes in comes out, the very same objects."""
    constraints = decoder_for(tiny_drafter("none", None), "coupled", rows=2).constraints
    tree, logits = object(), object()
    assert constraints.prune(tree) is tree and constraints.mask(tree, logits) == (logits, None)
    assert not constraints.busy


def test_distributions_lose_what_is_forbidden_in_rows_with_a_grammar_alone():
    decoder = decoder_for(tiny_drafter("none", None), "recursive", rows=2, k=2)
    few = Language(({token: 0 for token in range(0, tiny.VOCAB, 2)},), size=tiny.VOCAB)
    decoder.admit([constrained([1, 2], few), request([3])], [0, 1])
    probs = torch.rand(2, 1, tiny.VOCAB, dtype=torch.float64).softmax(-1)
    tree = Tree.make(
        torch.tensor([[2, 7, 8], [3, 7, 8]]),
        torch.tensor([[-1, 0, 0]] * 2),
        torch.ones(2, 3, dtype=torch.bool),
        max_depth=1,
        draw=Draw.NO_REPLACEMENT,
        source=torch.tensor([[-1, 0, 0]] * 2),
        probs=probs,
    )
    pruned = decoder.constraints.prune(tree)
    logits, mask = decoder.constraints.mask(pruned, torch.zeros(2, 3, tiny.VOCAB))
    seen = masked(pruned, Scores(logits=logits, raw_logits=logits, mask=mask))
    assert seen.valid.tolist() == [[True, False, True], [True, True, True]]
    assert seen.probs[0, 0, 1::2].sum() == 0 and seen.probs[1].equal(probs[1])
    torch.testing.assert_close(seen.probs[0, 0, ::2], probs[0, 0, ::2] / probs[0, 0, ::2].sum())
    assert bool((logits[0, [0, 2], 1::2] == -torch.inf).all()) and bool((logits[1] == 0).all())


class Spelled(Grammar):
    """Allows the prefixes of ``words``; keeps the text so far."""

    def __init__(self, *words):
        self.words, self.text = words, ""

    def advance(self, token):
        longer = self.text + chr(token)
        if not any(word.startswith(longer) for word in self.words):
            return False
        self.text = longer
        return True

    def rollback(self, count):
        assert 0 < count <= len(self.text)
        self.text = self.text[:-count]

    def allowed(self):
        mask = torch.zeros(128, dtype=torch.bool)
        size = len(self.text)
        mask[[ord(word[size]) for word in self.words if word.startswith(self.text) and len(word) > size]] = True
        return mask


def draft_of(text, parents, invalid=()):
    valid = [node not in invalid for node in range(len(parents))]
    return Draft(tokens=[ord(letter) for letter in text], parents=parents, valid=valid)


#           0
#        1a    2b    3a
#      4b  5c  6b     7b
#    8c          9c    10d
BRANCHES = draft_of("-abaBCbbccd".lower(), [-1, 0, 0, 0, 1, 1, 2, 3, 4, 6, 7])


def test_what_is_forbidden_takes_what_is_below_it():
    grammar = Spelled("abc", "bbd", "abd")
    assert [node for node, kept in enumerate(prune([grammar], BRANCHES)) if kept] == [0, 1, 2, 3, 4, 6, 7, 8, 10]
    assert grammar.text == ""
    second = Spelled("abd", "bbd")
    assert [node for node, kept in enumerate(prune([grammar, second], BRANCHES)) if kept] == [0, 1, 2, 3, 4, 6, 7, 10]
    assert (grammar.text, second.text) == ("", "")


def test_a_mask_is_that_after_the_node_under_all_grammars():
    first, second = Spelled("abc", "bbd", "abd"), Spelled("abd", "bbdx")
    kept = replace(BRANCHES, valid=prune([first, second], BRANCHES))
    nodes, allowed = masks([first, second], kept, 200)
    assert allowed.shape == (len(nodes), 200)
    found = {
        node: "".join(chr(token) for token in mask.nonzero()[:, 0]) for node, mask in zip(nodes, allowed, strict=True)
    }
    assert found == {0: "ab", 1: "b", 4: "d", 2: "b", 6: "d", 3: "b", 7: "d", 10: ""}
    assert (first.text, second.text) == ("", "")


def test_only_valid_nodes_are_visited_and_what_was_committed_stays():
    grammar = Spelled("xabc", "xbbd")
    commit([grammar], [ord("x")])
    assert [
        node for node, kept in enumerate(prune([grammar], replace(BRANCHES, valid=[True] * 2 + [False] * 9))) if kept
    ] == [0, 1]
    assert not any(prune([grammar], replace(BRANCHES, valid=[False] * 11)))
    with pytest.raises(Refused, match="token 120 was chosen where the grammar does not allow it"):
        commit([grammar], [ord("x")])
    assert grammar.text == "x"


def test_constraints_of_a_finished_row_are_not_called_again():
    decoder = decoder_for(ModelDrafter(lm=tiny.draft()), "coupled", rows=2)
    asked = [constrained([5], CIRCLE, max_tokens=3), constrained([6], CIRCLE, max_tokens=20)]
    decoder.admit(asked, [0, 1])
    while bool(decoder.batch.active.any()):
        decoder.step()
    assert decoder.results().finish[1] is Finish.LENGTH and not decoder.constraints.failures
    for row, one in enumerate(asked):
        assert decoder.batch.tokens[row, 1 : decoder.batch.length[row]].tolist() == wanted(one)


FORCING = Language(CIRCLE.moves, size=tiny.VOCAB, forced=2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_commits_no_replaced_tokens(temperature):
    """Other tokens are put in place of its own in every step of row 0."""
    draft = ModelDrafter(lm=tiny.draft())
    decoder = decoder_for(draft, "coupled", rows=2, k=4)
    asked = [
        constrained([5, 8], FORCING, max_tokens=30, temperature=temperature, seed=1),
        request([6], max_tokens=30, temperature=temperature, seed=2),
    ]
    decoder.admit(asked, [0, 1])
    lags = set()
    while bool(decoder.batch.active.any()):
        decoder.step()
        lags.add(max(draft.lags))
        length, batch = draft.cache.length, decoder.batch
        assert bool((batch.length - length <= torch.tensor(draft.lags)).all())
        fresh = draft.lm.new_cache(2, draft.cache.capacity).view()
        prefill(draft.lm, fresh, batch.tokens, length, int(length.max()), ())
        for store, again in zip(draft.cache.read(0), fresh.read(0), strict=True):
            for row in range(2):
                torch.testing.assert_close(store[row, : length[row]], again[row, : length[row]])
    assert lags == {5, 2} or lags == {5}
    texts = [batch.tokens[row, len(asked[row].tokens) : batch.length[row]].tolist() for row in range(2)]
    assert texts == [wanted(asked[0]), expected(asked[1])]


def test_forced_tokens_are_drafted_within_the_limits_of_the_row():
    for cap, tokens in ((None, 12), (1, 12), (0, 12), (None, 2), (None, 1)):
        decoder = decoder_for(tiny_drafter("ngram", None), "coupled", k=4)
        one = replace(constrained([5, 8], FORCING, max_tokens=tokens), num_draft_tokens=cap)
        decoder.admit([one], [0])
        while bool(decoder.batch.active.any()):
            decoder.step()
            report = decoder.results()
            assert report.num_drafted[0] <= (4 if cap is None else cap)
        assert decoder.batch.tokens[0, 2 : decoder.batch.length[0]].tolist() == wanted(one)
        assert not decoder.constraints.failures
