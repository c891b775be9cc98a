"""Early exit: resumed verification, the states that the head reads, and the state kept between steps."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from paceline.core.admission import Prefix
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.hidden_states import read_hidden
from paceline.engine.runner import ops_for
from paceline.models.backend import fastest
from paceline.models.native.decoder import DecoderLM
from tests import tiny as models
from tests.constraints.regular import Language
from tests.constraints.test_host_constraints import constrained
from tests.drafters.test_early_exit import (
    HEADS,
    PROMPTS,
    SHAPES,
    every_case,
    every_head,
    every_head_and_some_shapes,
    every_shape,
    itself,
    recycling,
    requests,
)
from tests.engine.recorded import RecordedGraphs
from tests.engine.test_graphs import Side, ragged
from tests.engine.wrapped import Wrapped
from tests.harness import Alternating, decoder_for, expected, finish, planned_step, request, run

pytestmark = pytest.mark.one_in(14)


class Resuming(Wrapped):
    """A target that holds every resumed forward against one of all nodes through all layers."""

    def __init__(self, lm):
        super().__init__(lm)
        self.num_resumed = self.num_ready = 0

    def __call__(self, tree, cache, *, resume=None, taps=(), **options):
        if resume is None:
            return self.lm(tree, cache, taps=taps, **options)
        stores = (cache.storage.keys, cache.storage.values)
        kept = [store.clone() for store in stores]
        whole = self.lm(tree, cache, taps=(resume.layer, *taps), **options)
        ready = resume.ready & tree.valid
        assert (ready[:, : resume.first] == tree.valid[:, : resume.first]).all()
        torch.testing.assert_close(resume.hidden[ready], whole.hidden[resume.layer][ready], rtol=0, atol=1e-10)
        rows, nodes = ready.nonzero().T
        for store, before in zip(stores, kept, strict=True):
            found, wanted = (one[: resume.layer, rows, cache.length[rows] + nodes] for one in (before, store))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
            store.copy_(before)
        output = self.lm(tree, cache, resume=resume, taps=taps, **options)
        torch.testing.assert_close(output.logits[tree.valid], whole.logits[tree.valid], rtol=0, atol=1e-10)
        for tap in taps:
            torch.testing.assert_close(output.hidden[tap][tree.valid], whole.hidden[tap][tree.valid])
        self.num_resumed, self.num_ready = self.num_resumed + 1, self.num_ready + int(ready.sum())
        return output


@every_case
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_resumed_verification_equals_a_whole_forward(name, draw, temperature):
    """Logits, states, keys and values, in ragged batches after whatever was accepted."""
    target = Resuming(models.target()[1])
    drafter = EarlyExitDrafter(head=HEADS["plain"](), shape=SHAPES[name], draws=frozenset({draw}))
    asked = requests(temperature, max_tokens=20)
    result = run(drafter, "coupled", asked, target=target, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert target.num_resumed == result.steps and target.num_ready > 2 * result.steps
    reached = {accepted for report in result.reports for accepted in report.num_accepted}
    assert {0, 1} <= reached


class Heard(Wrapped):
    """A head's decoder whose logits after the root and after every node of the forest are recorded."""

    def __call__(self, tree, cache, *, start=0, **options):
        output = self.lm(tree, cache, start=start, **options)
        if output.logits is not None and options.get("logits_for") is not None:
            self.root, self.forest, self.said = output.logits, None, []
        elif output.logits is not None:
            self.forest = tree
            self.said.append(output.logits)
        return output


def cropped_at(crop, length):
    """A generator that draws ``crop`` as where one row of ``length`` tokens ends."""
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        if int(torch.randint(length, (1, 1), generator=generator)) == crop:
            return torch.Generator().manual_seed(seed)
    raise AssertionError("no such seed")


def naive_logits(head, sequence, drafted):
    """What training says after ``sequence`` and the tokens ``drafted`` behind it, the sequence being verified: [V]."""
    tokens = torch.tensor([[*sequence, *drafted]])
    target = models.target()[1]
    hidden = target.causal(tokens, taps=head.taps).hidden
    generator = cropped_at(len(sequence) - 1, tokens.shape[1])
    unrolled = head.unroll(tokens, hidden, generator=generator)
    at = unrolled.position[0, :, 0].tolist().index(tokens.shape[1] - 1)
    if unrolled.weight is not None and len(drafted) <= head.options.max_age:
        assert unrolled.weight[0, at, 0] == 1
    return unrolled.logits[0, at, 0]


@every_head_and_some_shapes
@torch.no_grad()
def test_draft_logits_equal_training_logits(kind, name):
    """At every depth, after any accepted path, pauses and a fork, against whole sequences without a cache."""
    head = HEADS[kind]()
    drafter = EarlyExitDrafter(head=head, lm=Heard(head.decoder), shape=SHAPES[name])
    decoder = decoder_for(drafter, "coupled", plan=Alternating(3, 3, 0, 0, 5, 2), rows=len(PROMPTS) + 1)
    decoder.admit(requests(0.9), range(len(PROMPTS)))
    rows = range(len(PROMPTS))
    for step in range(9):
        plan = decoder.plan()
        if step in (4, 7):  # a prompt that begins as a sequence that was drafted, behind which the head is
            length = int(decoder.batch.length[3]) - 1
            prompt = [*decoder.batch.tokens[3, :length].tolist(), *[7] * (step - 3)]
            decoder.admit([request(prompt, max_tokens=20)], [4], [Prefix(row=3, length=length)])
            rows = range(len(PROMPTS) + 1)
        sequences = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in rows]
        planned_step(decoder, plan)
        if plan.num_draft_tokens == 0:
            continue
        heard = drafter.lm
        said = torch.cat(heard.said, dim=1) if heard.said else None
        for row, sequence in zip(rows, sequences, strict=True):
            torch.testing.assert_close(heard.root[row, 0], naive_logits(head, sequence, []), rtol=0, atol=1e-9)
            for node in range(0 if heard.forest is None else heard.forest.num_nodes):
                if not heard.forest.valid[row, node]:
                    continue
                path, at = [], node
                while at >= 0:
                    path.insert(0, int(heard.forest.tokens[row, at]))
                    at = int(heard.forest.parents[row, at])
                naive = naive_logits(head, sequence, path)
                torch.testing.assert_close(said[row, node], naive, rtol=0, atol=1e-9)


@every_shape
@torch.no_grad()
def test_the_heads_cache_is_of_what_the_target_said_of_verified_tokens(name):
    head = HEADS["plain"]()
    decoder = decoder_for(EarlyExitDrafter(head=head, shape=SHAPES[name]), "coupled", k=3, rows=len(PROMPTS))
    decoder.admit(requests(0.7, max_tokens=20), range(len(PROMPTS)))
    own, unread = decoder.drafter.cache, decoder.drafter.unread
    while bool(decoder.batch.active.any()):
        decoder.step()
        assert (own.length + unread.count == decoder.batch.length - 1).all()
        whole = models.target()[1].causal(decoder.batch.tokens[:, :-1], taps=head.taps).hidden[1]
        fresh = head.decoder.new_cache(len(PROMPTS), decoder.batch.max_length).view()
        read_hidden(head.decoder, fresh, whole, own.length)
        for layer in range(head.decoder.num_layers):
            for store, again in zip(own.read(layer), fresh.read(layer), strict=True):
                for row, length in enumerate(own.length.tolist()):
                    torch.testing.assert_close(store[row, :length], again[row, :length])
        for row, (length, count) in enumerate(zip(own.length.tolist(), unread.count.tolist(), strict=True)):
            torch.testing.assert_close(unread.states[row, :count], whole[row, length : length + count])


def test_a_fork_of_a_row_whose_head_has_fallen_behind():
    """Sources are read before anything is written, though each row takes what the other holds."""
    decoder = decoder_for(itself(), "coupled", k=3, rows=2)
    plan, decoder.plan = decoder.plan, Alternating(0)
    prompts = [[7, 3, 5], [9, 9, 1, 4]]
    decoder.admit([request(p, max_tokens=40) for p in prompts], [0, 1])
    for _ in range(9):
        decoder.step()
    decoder.plan = plan
    known = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in range(2)]
    asked = [request([*known[1], 7], max_tokens=20), request([*known[0][:-4], 2, 2], max_tokens=20)]
    decoder.admit(asked, [0, 1], [Prefix(row=1, length=12), Prefix(row=0, length=8)])
    result = finish(decoder, rows=[0, 1], prompts=[one.tokens for one in asked])
    assert result.texts == [expected(one) for one in asked]
    assert result.steps == 5 and result.summary.acceptance_rate == 1.0


def test_a_step_that_is_cut_off_before_it_is_decided_is_done_again():
    decoder = decoder_for(itself(), "coupled", k=3, rows=len(PROMPTS))
    asked = requests(max_tokens=24)
    decoder.admit(asked, range(len(PROMPTS)))
    for _ in range(3):
        decoder.step()
        trees = [decoder.drafter.propose(decoder.batch, decoder.plan()) for _ in range(2)]
        assert torch.equal(trees[0].tokens, trees[1].tokens)
    decoder.step()
    assert decoder.stats.summary().acceptance_rate == 1.0


# Three tokens in a circle, of which one is said to come: a chain of the drafter's own is replaced by it.
FORCED = Language(({5: 1, 9: 1, 3: 1}, {2: 0, 8: 0, 44: 0}), size=models.VOCAB, forced=2)


@every_head
def test_tokens_that_a_grammar_demands_take_the_place_of_the_drafts(kind):
    asked = [constrained(p, FORCED, max_tokens=14) for p in PROMPTS[:2]] + [request(PROMPTS[3], max_tokens=14)]
    result = run(EarlyExitDrafter(head=HEADS[kind]()), "coupled", asked, k=4)
    for one, sequence in zip(asked[:2], result.texts[:2], strict=True):
        assert all(token in FORCED.moves[at % 2] for at, token in enumerate(sequence)) and one.constraints
    assert result.texts[2] == expected(asked[2])


def test_what_is_kept_from_step_to_step_is_changed_in_place():
    drafter = EarlyExitDrafter(head=recycling())
    decoder = decoder_for(drafter, "coupled", plan=Alternating(3, 0, 2), rows=len(PROMPTS))
    decoder.admit(requests(), range(len(PROMPTS)))

    def places():
        kept = (drafter.unread.states, drafter.unread.count, drafter.recycled.states, drafter.cache.length)
        return [tensor.data_ptr() for tensor in (*kept, drafter.chain_hidden, drafter.shared_layers.length)]

    before = places()
    for _ in range(5):
        decoder.step()
    assert places() == before
    assert drafter.shared_layers.length.data_ptr() == decoder.cache.length.data_ptr()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@every_head
def test_the_kernels_chains_are_the_plain_ones(kind, temperature, monkeypatch):
    """Drafted in one call; of a head that recycles too."""
    head, asked = HEADS[kind](), requests(temperature, max_tokens=20)
    drafter = EarlyExitDrafter(head=head, lm=fastest(head.decoder))
    calls, draft_fused = [], type(drafter.lm).draft_fused

    def counted(*given, **options):
        calls.append(draft_fused(*given, **options))
        return calls[-1]

    monkeypatch.setattr(type(drafter.lm), "draft_fused", counted)
    plain = run(EarlyExitDrafter(head=head), "coupled", asked, k=4)
    assert not calls
    quick = run(
        drafter, "coupled", asked, target=fastest(models.target()[1]), k=4, parts=dict(ops=ops_for(torch.device("cpu")))
    )
    assert quick.texts == plain.texts == [expected(one) for one in asked]
    assert quick.reports[0].num_accepted == plain.reports[0].num_accepted and quick.steps == plain.steps
    assert calls == [True] * quick.steps


@pytest.mark.parametrize("name", ["chain", "bushy", "confident"])
def test_replayed_steps_with_pauses_give_what_called_ones_give(name):
    def side(**options):
        return Side(EarlyExitDrafter(head=recycling(), shape=SHAPES[name]), plan=Alternating(3, 3, 3, 0, 0), **options)

    made = side(graphs=RecordedGraphs())
    assert made.serve(ragged(4)) == side().serve(ragged(4))
    assert made.runner.num_replayed > 0 and made.runner.drafter_error is None


@pytest.mark.parametrize("options", [dict(num_blocks=0), dict(recycle=True, own_norm=False)], ids=str)
def test_the_step_runs_on_fake_tensors(options):
    """As conformance demands of a plainer head."""
    with FakeTensorMode():
        target = DecoderLM(models.target()[1].config).requires_grad_(False)
        config = EarlyExitConfig(exit_layer=2, **options)
        head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(0))
        decoder = decoder_for(EarlyExitDrafter(head=head), "coupled", target=target, k=3, rows=len(PROMPTS))
        decoder.admit(requests(), range(len(PROMPTS)))
        for _ in range(3):
            decoder.step()
        with pytest.raises(DataDependentOutputException):
            decoder.results()
