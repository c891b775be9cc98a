"""A drafter that leaves the target early: what it drafts and keeps, and that verification goes on where it ended."""

import math

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.early_exit import PAUSES, EarlyExitDrafter
from paceline.drafters.features import read_hidden
from paceline.drafters.grow.shapes import Confident, Topology
from paceline.engine.static import fastest, parts_for
from paceline.heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.models.hf import adapt
from tests import tiny as models
from tests.constraints.regular import Language
from tests.constraints.test_lane import ruled
from tests.engine.wrapped import Counted, Wrapped
from tests.harness import decoder_for, expected, finish, request, run

FOLLOWS = True
FLOOR = 1.9  # mean acceptance length on the conformance prompts, greedy

PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6])
SHAPES = {
    "chain": None,
    "bushy": Topology(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0))),
    "binary": Topology.branching((2, 2, 2)),
    "confident": Confident(num_drafted=7, depth=3, width=2),
    "confident, few": Confident(num_drafted=2, depth=3, width=3),
}
CASES = [(name, draw) for name, shape in SHAPES.items() for draw in (Draw if shape is None else sorted(shape.draws))]
every_case = pytest.mark.parametrize(("name", "draw"), CASES, ids=lambda value: getattr(value, "name", value))
every_shape = pytest.mark.parametrize("name", SHAPES)


def head_of(target, *, scale=0.0, exit_layer=1, seed=0, num_blocks=None, **options):
    """A head whose blocks and norm are the target's own behind the exit, with noise of ``scale``."""
    source = models.noisy(target, scale) if scale else target
    num_blocks = target.num_layers - exit_layer if num_blocks is None else num_blocks
    config = EarlyExitConfig(exit_layer=exit_layer, num_blocks=num_blocks, **options)
    head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(seed))
    copies = {
        f"blocks.{index}.{name}": value
        for index, block in enumerate(source.blocks[exit_layer : exit_layer + num_blocks])
        for name, value in block.named_parameters()
    }
    copies |= {f"norm.{name}": value for name, value in source.norm.named_parameters() if head.options.own_norm}
    head.load_own_state({**head.own_state(), **copies})
    return head


def tiny(target):
    """The oracle: the rest of the target with noise on its weights."""
    return EarlyExitDrafter(head=head_of(target, scale=0.12))


def itself(**options):
    return EarlyExitDrafter(head=head_of(models.target()[1]), **options)


def recycling(*, num_blocks=2, scale=0.3):
    """A head whose recycled part says something, though nothing in particular; it is no older than 2."""
    head = head_of(models.target()[1], num_blocks=num_blocks, recycle=True, max_age=2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in (head.recycle.weight, head.recycle.ages):
            part.copy_(scale * torch.randn(part.shape, generator=generator))
    return head


HEADS = {
    "plain": lambda: head_of(models.target()[1], scale=0.12),
    "late": lambda: head_of(models.target()[1], scale=0.2, exit_layer=2),
    "no blocks": lambda: head_of(models.target()[1], exit_layer=2, num_blocks=0),
    "own head": lambda: head_of(models.target()[1], scale=0.12, own_head=True),
    "shared norm": lambda: head_of(models.target()[1], scale=0.12, own_norm=False),
    "recycled": recycling,
    "recycled, no blocks": lambda: recycling(num_blocks=0),
}
every_head = pytest.mark.parametrize("kind", HEADS)
few = [(kind, name) for kind in HEADS for name in SHAPES if kind in ("plain", "recycled") or name == "chain"]
every_head_and_some_shapes = pytest.mark.parametrize(("kind", "name"), few)


def requests(temperature=0.0, max_tokens=30, **options):
    return [
        request(p, max_tokens=max_tokens - i, temperature=temperature, seed=50 + i, **options)
        for i, p in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_draft_equal_to_target_takes_the_fewest_steps(verifier, temperature, k):
    asked = [request([7, 3, 5][: 1 + i], max_tokens=23, temperature=temperature, seed=i) for i in range(3)]
    result = run(itself(), verifier, asked, k=k)
    assert result.steps == math.ceil(23 / (k + 1))
    assert result.summary.acceptance_rate == 1.0
    assert result.texts == [expected(one) for one in asked] or verifier == "rejection"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["bushy", "binary"])
def test_a_tree_by_the_target_itself_takes_the_fewest_steps(name, temperature):
    asked = [request(p, max_tokens=24, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]
    result = run(itself(shape=SHAPES[name], draws=frozenset({Draw.SHARED})), "coupled", asked, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert result.steps == math.ceil(24 / 4)


class Alternating:
    """A plan that drafts, pauses and changes its length, so that heads fall behind and catch up."""

    max_draft_tokens = 5

    def __init__(self, *lengths):
        self.lengths, self.step = lengths, -1

    def __call__(self, stats):
        self.step += 1
        return StepPlan(self.lengths[self.step % len(self.lengths)])


PLANS = [(3, 0), (0, 0, 0, 0, 5), (1, 5, 0, 2), (0,) * 12 + (4,), (3, *(0,) * (PAUSES + 9), 4)]


@pytest.mark.parametrize("lengths", PLANS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_catches_up_after_pauses(lengths, temperature):
    asked = [request([7, 3, 5, 1][: 1 + i], max_tokens=60, temperature=temperature, seed=i) for i in range(3)]
    result = run(itself(), "coupled", asked, plan=Alternating(*lengths))
    assert result.texts == [expected(one) for one in asked]
    assert result.summary.acceptance_rate == 1.0, "what the head has not read costs acceptance"


def test_a_step_without_drafts_asks_neither_stem_nor_head():
    target = Counted(models.target()[1])
    head = head_of(models.target()[1])
    drafter = EarlyExitDrafter(head=head, lm=Counted(head.decoder))
    decoder = decoder_for(drafter, "coupled", target=target, plan=Alternating(0), rows=len(PROMPTS))
    decoder.admit(requests(), range(len(PROMPTS)))
    for lm in (target, drafter.lm):
        lm.take()
    for _ in range(6):
        decoder.step()
        assert (target.take(), drafter.lm.take()) == (len(PROMPTS), 0)


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
def test_verification_that_goes_on_gives_what_a_whole_one_gives(name, draw, temperature):
    """Logits, states, keys and values, in ragged batches after whatever was accepted."""
    target = Resuming(models.target()[1])
    drafter = EarlyExitDrafter(head=HEADS["plain"](), shape=SHAPES[name], draws=frozenset({draw}))
    asked = requests(temperature, max_tokens=20)
    result = run(drafter, "coupled", asked, target=target, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert target.num_resumed == result.steps and target.num_ready > 2 * result.steps
    reached = {accepted for report in result.reports for accepted in report.accepted}
    assert {0, 1} <= reached


@every_head_and_some_shapes
def test_the_texts_are_the_references_whatever_the_head_says(kind, name):
    asked = requests(max_tokens=16)
    result = run(EarlyExitDrafter(head=HEADS[kind](), shape=SHAPES[name]), "coupled", asked, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert sum(result.summary.accepted) > 0


class Heard(Wrapped):
    """A head's decoder of which is kept what it said after the root and after every node of the forest."""

    def __call__(self, tree, cache, *, start=0, **options):
        output = self.lm(tree, cache, start=start, **options)
        if output.logits is not None and options.get("head") is not None:
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


def naive_logits(head, text, drafted):
    """What training says after ``text`` and the tokens ``drafted`` behind it, the text being verified: [V]."""
    tokens = torch.tensor([[*text, *drafted]])
    target = models.target()[1]
    hidden = target.causal(tokens, taps=head.taps).hidden
    generator = cropped_at(len(text) - 1, tokens.shape[1])
    unrolled = head.unroll(tokens, hidden, generator=generator)
    at = unrolled.position[0, :, 0].tolist().index(tokens.shape[1] - 1)
    if unrolled.weight is not None and len(drafted) <= head.options.max_age:
        assert unrolled.weight[0, at, 0] == 1
    return unrolled.logits[0, at, 0]


@every_head_and_some_shapes
@torch.no_grad()
def test_what_is_drafted_with_is_what_is_trained(kind, name):
    """At every depth, after any accepted path, pauses and a fork, against whole texts without a cache."""
    head = HEADS[kind]()
    drafter = EarlyExitDrafter(head=head, lm=Heard(head.decoder), shape=SHAPES[name])
    decoder = decoder_for(drafter, "coupled", plan=Alternating(3, 3, 0, 0, 5, 2), rows=len(PROMPTS) + 1)
    decoder.admit(requests(0.9), range(len(PROMPTS)))
    rows = range(len(PROMPTS))
    for step in range(9):
        plan = decoder.plan(decoder.stats)
        if step == 4:  # a prompt that begins as a text that was drafted, behind which the head is
            length = int(decoder.batch.length[3]) - 1
            prompt = [*decoder.batch.tokens[3, : length - 1].tolist(), 7, 7]
            decoder.admit([request(prompt, max_tokens=20)], [4], [Prefix(row=3, length=length - 1)])
            rows = range(len(PROMPTS) + 1)
        texts = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in rows]
        decoder.run(plan)
        if plan.num_draft_tokens == 0:
            continue
        heard = drafter.lm
        said = torch.cat(heard.said, dim=1) if heard.said else None
        for row, text in zip(rows, texts, strict=True):
            torch.testing.assert_close(heard.root[row, 0], naive_logits(head, text, []), rtol=0, atol=1e-9)
            for node in range(0 if heard.forest is None else heard.forest.num_nodes):
                if not heard.forest.valid[row, node]:
                    continue
                path, at = [], node
                while at >= 0:
                    path.insert(0, int(heard.forest.tokens[row, at]))
                    at = int(heard.forest.parents[row, at])
                naive = naive_logits(head, text, path)
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
        trees = [decoder.drafter.propose(decoder.batch, decoder.plan(decoder.stats)) for _ in range(2)]
        assert torch.equal(trees[0].tokens, trees[1].tokens)
    decoder.step()
    assert decoder.stats.summary().acceptance_rate == 1.0


# Three tokens in a circle, of which one is said to come: a chain of the drafter's own is replaced by it.
URGED = Language(({5: 1, 9: 1, 3: 1}, {2: 0, 8: 0, 44: 0}), size=models.VOCAB, urges=2)


@every_head
def test_tokens_that_a_grammar_demands_take_the_place_of_the_drafts(kind):
    asked = [ruled(p, URGED, max_tokens=14) for p in PROMPTS[:2]] + [request(PROMPTS[3], max_tokens=14)]
    result = run(EarlyExitDrafter(head=HEADS[kind]()), "coupled", asked, k=4)
    for one, text in zip(asked[:2], result.texts[:2], strict=True):
        assert all(token in URGED.moves[at % 2] for at, token in enumerate(text)) and one.rules
    assert result.texts[2] == expected(asked[2])


def test_what_is_kept_from_step_to_step_is_changed_in_place():
    drafter = EarlyExitDrafter(head=recycling())
    decoder = decoder_for(drafter, "coupled", plan=Alternating(3, 0, 2), rows=len(PROMPTS))
    decoder.admit(requests(), range(len(PROMPTS)))

    def places():
        kept = (drafter.unread.states, drafter.unread.count, drafter.past, drafter.stream, drafter.cache.length)
        return [tensor.data_ptr() for tensor in (*kept, drafter.stem.length)]

    before = places()
    for _ in range(5):
        decoder.step()
    assert places() == before
    assert drafter.stem.length.data_ptr() == decoder.cache.length.data_ptr()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@every_head
def test_the_kernels_chains_are_the_plain_ones(kind, temperature, monkeypatch):
    """Drafted in one call; of a head that recycles too."""
    head, asked = HEADS[kind](), requests(temperature, max_tokens=20)
    drafter = EarlyExitDrafter(head=head, lm=fastest(head.decoder))
    calls, run_ahead = [], type(drafter.lm).run_ahead

    def counted(*given, **options):
        calls.append(run_ahead(*given, **options))
        return calls[-1]

    monkeypatch.setattr(type(drafter.lm), "run_ahead", counted)
    plain = run(EarlyExitDrafter(head=head), "coupled", asked, k=4)
    assert not calls
    quick = run(
        drafter, "coupled", asked, target=fastest(models.target()[1]), k=4, parts=parts_for(torch.device("cpu"))
    )
    assert quick.texts == plain.texts == [expected(one) for one in asked]
    assert quick.reports[0].accepted == plain.reports[0].accepted and quick.steps == plain.steps
    assert calls == [True] * quick.steps


def test_a_target_that_runs_whole_or_not_at_all_is_refused():
    with pytest.raises(ValueError, match=r"runs all of its layers: .* backend='native'"):
        decoder_for(itself(), "coupled", target=adapt(models.target()[0]), k=3)


def test_a_head_of_another_target_is_refused():
    with pytest.raises(ValueError, match=r"of 3 layers and 61 tokens, and the target has 1 layers and 61 tokens: give"):
        decoder_for(itself(), "coupled", target=models.draft(), k=3)


def test_a_shape_whose_tokens_cannot_be_drawn_so_is_refused():
    with pytest.raises(ValueError, match="a Confident tree has tokens that are fixed, not iid"):
        itself(shape=SHAPES["confident"], draws=frozenset({Draw.IID}))


def test_memory_of_a_slot_is_that_of_the_heads_blocks_and_of_what_is_recycled():
    slots = [EarlyExitDrafter(head=HEADS[kind]()).slot_bytes for kind in ("plain", "no blocks", "recycled, no blocks")]
    assert slots == [2 * 2 * 2 * 8 * 8, 0, 32 * 8]
