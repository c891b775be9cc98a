"""Blocks drafted in one forward: which states are read when, and what each slot predicts."""

import copy
from functools import cache

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from paceline.core.early_stop import LEVELS, StopRule, level_of_odds, noted_levels
from paceline.core.plan import Fixed
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.draft_heads.block import BlockConfig, BlockHead
from paceline.drafters import hidden_states
from paceline.drafters.block import MAX_SKIPPED_STEPS, BlockDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.backend import fastest, pack_weights
from paceline.models.cpu.packed_weights import PackedLinear
from tests import tiny as models
from tests.drafters.pairs import randomised
from tests.harness import Alternating, decoder_for, expected, request, run

pytestmark = pytest.mark.one_in(14)

FLOOR = 2.7  # mean acceptance length on the conformance prompts, greedy
PROMPTS = ([5], [9, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5], [60, 0, 7])
SIZES = dict(block_size=4, num_layers=1, taps=(2, 3), anchors=8)


def new_head(target, *, seed=0, **options):
    return BlockHead.make(BlockConfig(**options), target, generator=torch.Generator().manual_seed(seed))


def train(head, target, tokens, *, steps, rate=0.01):
    """``head`` after ``steps`` over the sequences ``tokens`` [B, T] to the target's own choices; the last loss."""
    with torch.no_grad():
        output = target.causal(tokens, taps=head.taps)
    generator, own = torch.Generator().manual_seed(0), list(head.own_state().values())
    optimiser = torch.optim.Adam(own, lr=rate)
    goal, loss = output.logits.argmax(-1), torch.tensor(0.0)
    for parameter in own:
        parameter.requires_grad_(True)
    for _ in range(steps):
        found = head.unroll(tokens, output.hidden, generator=generator)
        wanted = goal.gather(1, found.position.flatten(1)).view_as(found.position)
        each = torch.nn.functional.cross_entropy(found.logits.flatten(0, 2), wanted.flatten(), reduction="none")
        loss = (each * found.weight.flatten()).sum() / found.weight.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    head.requires_grad_(False)
    return float(loss.detach())


@cache
def taught(**options):
    """The weights of a head that learned what follows each token in the looping target."""
    target = models.looping_target()[1]
    tokens = [torch.arange(target.vocab_size)]
    with torch.no_grad():
        following = target.causal(tokens[0][:, None]).logits[:, 0].argmax(-1)
    while len(tokens) < 32:
        tokens.append(following[tokens[-1]])
    head = new_head(target, **{**SIZES, **options})
    train(head, target, torch.stack(tokens, dim=1), steps=45)
    return head.own_state()


def tiny(target, **options):
    head = new_head(target, **{**SIZES, **options})
    tiny_llama = target.config.rotary is not None and target.config.hidden_size == 32
    if tiny_llama and not isinstance(target.embed.weight, FakeTensor):
        head.load_own_state({name: part.to(target.dtype) for name, part in taught(**options).items()})
    return BlockDrafter(head=head.requires_grad_(False))


def guessable_target():
    return models.looping_target()


LAYOUTS = {
    "own mask": {},
    "anchor first": dict(anchor_first=True),
    "mask token": dict(mask_token_id=60, num_layers=2, taps=(3, 1)),
    "draft vocabulary": dict(draft_vocab_size=40, markov_rank=3),
    "markov": dict(markov_rank=5, anchor_first=True, confidence=True),
    "gated": dict(markov_rank=5, markov_head="gated"),
    "rnn": dict(markov_rank=5, markov_head="rnn", anchor_first=True),
    "refiner": dict(markov_rank=5, markov_head="refiner"),
    "refiner, anchor first": dict(markov_rank=3, markov_head="refiner", anchor_first=True, markov_ratio=3),
    "bilinear, convolutions": dict(markov_rank=5, markov_head="bilinear", conv_taps=2, conv_group_size=8),
    "plain attention": dict(qk_norm=False, attention_bias=True, num_kv_heads=4, taps=(0,)),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
SHAPES = {"chain": None, "tree": Topology.branching((2, 1, 2))}


def random_head(target, layout, **options):
    """A head of which every tensor is random."""
    head = new_head(target, **{**SIZES, **LAYOUTS[layout], **options})
    generator = torch.Generator().manual_seed(1)
    for tensor in head.own_state().values():
        if tensor.is_floating_point():
            tensor.data.add_(0.2 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    if head.draft_vocab is not None:
        head.draft_vocab.set_ids(torch.arange(3, 43))
    return head.requires_grad_(False)


@torch.no_grad()
def unrolled(target, head, sequence):
    """What training has the head say after every token of a sequence: logits [T, D, V]."""
    tokens = torch.tensor([sequence])
    return head.unroll(tokens, target.causal(tokens, taps=head.taps).hidden).logits[0]


def check_distributions(target, head, tree, row, sequence):
    """Every node of ``row`` was drawn from what training has the head say there."""
    for node in range(1, tree.num_nodes):
        if tree.valid[row, node]:
            path = [n for n in range(1, tree.num_nodes) if tree.ancestors[row, node, n] and n != node]
            logits = unrolled(target, head, [*sequence, *(int(tree.tokens[row, n]) for n in path)])
            wanted = logits[len(sequence) - 1, len(path)]
            wanted = wanted if head.vocab_map is None else head.vocab_map.target_logits(wanted)
            torch.testing.assert_close(tree.probs[row, tree.source[row, node]], wanted.softmax(-1))


def check_steps(target, drafter, *, verifier, plan=None, steps=8):
    """Step by step, hold the distributions of every draft against the training layout; tokens accepted in each step."""
    decoder = decoder_for(drafter, verifier, target=target, k=3, plan=plan, rows=len(PROMPTS), max_length=128)
    requests = [request(p, max_tokens=100, seed=i, temperature=1.0) for i, p in enumerate(PROMPTS)]
    decoder.admit(requests, range(len(PROMPTS)))
    trees, propose, accepted = [], drafter.propose, []

    def recorded(batch, plan):
        trees.append(propose(batch, plan))
        return trees[-1]

    drafter.propose = recorded
    for _ in range(steps):
        sequences = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in range(len(PROMPTS))]
        trees.clear()
        decoder.step()
        for row, sequence in enumerate(sequences):
            for tree in trees:
                check_distributions(target, drafter.head, tree, row, sequence)
        accepted.extend(decoder.results().num_accepted)
    return accepted


@every_layout
@pytest.mark.parametrize("shape", SHAPES)
def test_distributions_of_drafts_are_those_of_the_training_layout(shape, layout):
    _, target = models.target()
    drafter = BlockDrafter(
        head=random_head(target, layout), draws=frozenset({Draw.NO_REPLACEMENT}), shape=SHAPES[shape]
    )
    accepted = check_steps(target, drafter, verifier="recursive")
    assert {0, 1} <= set(accepted)


NEVER = StopRule(((1.0,) * LEVELS,) * len(PROMPTS), (0.0,) * len(PROMPTS))


@pytest.mark.parametrize("with_markov", [False, True])
def test_the_confidence_head_says_how_sure_each_token_is(with_markov):
    """What the controller hears of a draft is what training has the head say, given the tokens before."""
    _, target = models.target()
    head = random_head(target, "markov", confidence_with_markov=with_markov)
    drafter = BlockDrafter(head=head, draws=frozenset({Draw.IID}))
    decoder = decoder_for(drafter, "rejection", target=target, k=3, rows=len(PROMPTS), max_length=128)
    requests = [request(p, max_tokens=100, seed=i, temperature=1.0) for i, p in enumerate(PROMPTS)]
    decoder.admit(requests, range(len(PROMPTS)))
    found = set()
    for _ in range(4):
        sequences = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in range(len(PROMPTS))]
        plan = StepPlan(3, stop=NEVER)
        decoder.begin_step(plan)
        with torch.inference_mode():
            tree = decoder.draft(plan)
            scores = decoder.score(tree)
            decoder.observe(tree, decoder.decide(tree, scores), scores)
        for row, note in enumerate(decoder.results().confidence):
            tokens = torch.tensor([[*sequences[row], *tree.tokens[row, 1:].tolist()]])
            with torch.no_grad():
                said = head.unroll(tokens, target.causal(tokens, taps=head.taps).hidden).confidence
            levels = level_of_odds(said[0, len(sequences[row]) - 1])[:3].tolist()
            assert noted_levels(note, 3) == levels
            found.update(levels)
    assert len(found) > 2


def test_chains_end_where_the_confidence_head_says_so():
    """With its distributions as they are, and its output the same."""
    model, target = guessable_target()
    head = tiny(target, confidence=True).head
    asked = [request(p, max_tokens=24) for p in PROMPTS]
    rule = StopRule((tuple(level / LEVELS for level in range(1, LEVELS + 1)),) * len(PROMPTS), (0.5,) * len(PROMPTS))
    for bias, ends in ((9.0, False), (-9.0, True)):
        with torch.no_grad():
            head.confidence.weight.zero_()
            head.confidence.bias.fill_(bias)
        plan = Fixed(3)
        plan.step = StepPlan(3, stop=rule)
        result = run(BlockDrafter(head=head), "coupled", asked, target=target, plan=plan)
        assert result.texts == [expected(one, model) for one in asked]
        assert (sum(result.summary.drafted) == 0) == ends


PLANS = [(3, 0), (0, 0, 0, 0, 3), (3, *(0,) * (MAX_SKIPPED_STEPS + 9), 3)]


@pytest.mark.parametrize("lengths", PLANS, ids=str)
def test_states_of_steps_without_a_draft_are_read_before_the_next(lengths):
    _, target = models.target()
    drafter = BlockDrafter(head=random_head(target, "own mask"), draws=frozenset({Draw.IID}))
    check_steps(target, drafter, verifier="rejection", plan=Alternating(*lengths), steps=len(lengths) + 2)


def test_it_offers_draws_where_tokens_depend_on_those_before():
    _, target = models.target()
    draws = [BlockDrafter(head=random_head(target, layout)).draws for layout in ("own mask", "markov")]
    assert draws == [{Draw.FIXED}, set(Draw)]


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_likeliest_tokens_of_a_slot_itself_are_candidates(shape):
    """They have the distribution of all tokens, renormalised."""
    _, target = models.target()
    layout = {**LAYOUTS["bilinear, convolutions"], "candidates": 5}
    head = new_head(target, **{**SIZES, **layout})
    head.load_own_state(random_head(target, "bilinear, convolutions").own_state())
    head.requires_grad_(False)
    drafter = BlockDrafter(head=head, draws=frozenset({Draw.NO_REPLACEMENT}), shape=SHAPES[shape])
    decoder = decoder_for(drafter, "recursive", target=target, k=3, rows=1, max_length=64)
    decoder.admit([request([3, 1, 4], temperature=1.0, seed=2)], [0])
    plain = copy.deepcopy(head)
    plain.markov.after.weight.data.zero_()
    seen = set()
    for _ in range(5):
        sequence = decoder.batch.tokens[0, : decoder.batch.length[0]].tolist()
        tree = drafter.propose(decoder.batch, StepPlan(3))
        for node in range(1, tree.num_nodes):
            path = [n for n in range(1, tree.num_nodes) if tree.ancestors[0, node, n] and n != node]
            read = [*sequence, *(int(tree.tokens[0, n]) for n in path)]
            whole, alone = (unrolled(target, one, read)[len(sequence) - 1, len(path)] for one in (head, plain))
            allowed = alone >= alone.topk(5).values[-1]
            wanted = whole.masked_fill(~allowed, -torch.inf).softmax(-1)
            torch.testing.assert_close(tree.probs[0, tree.source[0, node]], wanted)
            assert allowed[tree.tokens[0, node]]
            seen.add(int(tree.tokens[0, node]) == int(alone.argmax()))
        decoder.step()
    assert seen == {True, False}


@pytest.mark.parametrize("layout", ["own mask", "anchor first"])
def test_it_drafts_no_deeper_than_its_block(layout):
    _, target = models.target()
    drafter = BlockDrafter(head=random_head(target, layout))
    depth = 4 if layout == "anchor first" else 3
    requests = [request([7, 3], max_tokens=20)]
    result = run(drafter, "coupled", requests, k=6)
    assert result.texts == [expected(r) for r in requests]
    assert result.summary.drafted[depth - 1] > 0 and set(result.summary.drafted[depth:]) == {0}
    assert [drafter.max_nodes(asked) for asked in (0, 1, 6)] == [1, 2, 1 + depth]


LEARNERS = {
    "masked slots": {},
    "anchor first": dict(anchor_first=True),
    "refiner": dict(markov_rank=8, markov_head="refiner"),
    "selector": dict(markov_rank=8, markov_head="bilinear", candidates=8, conv_taps=2, conv_group_size=8),
}


@pytest.mark.parametrize("layout", LEARNERS)
def test_an_output_that_it_was_trained_on_takes_fewer_steps(layout):
    """States, positions and slots are those of training, or acceptance is lost."""
    model, target = models.target()
    prompt, length = [7, 3, 5], 24
    sequence = torch.tensor([[*prompt, *expected(request(prompt, max_tokens=length), model)]])
    head = new_head(target, **{**SIZES, **LEARNERS[layout], "anchors": None})
    train(head, target, sequence, steps=60)
    result = run(BlockDrafter(head=head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.summary.acceptance_rate > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_drafts_what_the_eager_decoder_drafts(dtype):
    """Of more slots than the kernel reads at once, which are no whole rows; each sees those after it."""
    target = copy.deepcopy(guessable_target()[1]).to(dtype)
    found, rows = [], 140
    head = random_head(target, "own mask", block_size=5)
    quick = fastest(head.decoder)
    assert type(quick) is not type(head.decoder)
    for lm in (quick, head.decoder):
        drafter = BlockDrafter(head=head, lm=lm, draws=frozenset({Draw.IID}))
        decoder = decoder_for(drafter, "block", target=fastest(target), k=3, rows=rows)
        prompts = [[7 + row % 50, 3, 5][: 1 + row % 3] for row in range(rows)]
        decoder.admit([request(prompt, temperature=1.0) for prompt in prompts], range(rows))
        decoder.step()
        found.append(drafter.propose(decoder.batch, StepPlan(3)).probs)
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 if dtype is torch.float32 else 0.15)
    assert float((found[0][1:] - found[0][:-1]).abs().amax()) > 0.2


@pytest.mark.parametrize("few", [hidden_states.FEW, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_make_the_keys_and_values_that_torch_makes(dtype, few, monkeypatch):
    """Those of prompts, and those of what is accepted; with norms and biases."""
    monkeypatch.setattr(hidden_states, "FEW", few)
    target = copy.deepcopy(guessable_target()[1]).to(dtype)
    head = randomised(new_head(target, **SIZES, qk_norm=True, attention_bias=True))
    quick = copy.deepcopy(head).requires_grad_(False)
    quick.use_kernels()
    assert isinstance(quick.fc, PackedLinear)
    caches, taken = [], []
    for one in (quick, head):
        drafter = BlockDrafter(head=one)
        decoder = decoder_for(drafter, "coupled", target=fastest(target), k=3, rows=2)
        decoder.admit([request([7, 3, 5, 2]), request([1, 4])], [0, 1])
        decoder.step()
        decoder.draft(StepPlan(3))
        taken.append(drafter.cache.length.tolist())
        caches.append(torch.stack([drafter.cache.storage.keys[:, :2, :2], drafter.cache.storage.values[:, :2, :2]]))
    assert taken[0] == taken[1] and min(taken[0]) >= 2
    torch.testing.assert_close(*caches, rtol=0, atol=1e-5 if dtype is torch.float32 else 2e-2)
    assert caches[0].abs().amax() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_vocabulary_beside_a_packed_embedding_that_is_tied(dtype):
    """The embedding has more tokens than the head has logits; those of the last panel are fewer."""
    target = models.native(models.llama(tie_word_embeddings=True)).to(dtype)
    packed, found = copy.deepcopy(target), []
    pack_weights(packed)
    for one in (target, packed):
        head = new_head(one, **{**SIZES, "draft_vocab_size": 9})
        if one is packed:
            pack_weights(head.decoder, beside=packed)
        drafter = BlockDrafter(head=head, lm=fastest(head.decoder))
        decoder = decoder_for(drafter, "coupled", target=fastest(one), k=3, rows=61)
        decoder.admit([request([token]) for token in range(61)], range(61))
        decoder.draft(StepPlan(3))
        found.append(drafter.streams)
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_head_needs_taps_and_a_mask_token_of_its_target():
    _, target = models.target()
    with pytest.raises(ValueError, match=r"taps=\[4\]: give different ones from 0 to 3"):
        new_head(target, taps=(4,))
    with pytest.raises(ValueError, match="mask_token_id=61: the target has 61 tokens; give one"):
        new_head(target, mask_token_id=61)
    with pytest.raises(ValueError, match="num_heads=4 and num_kv_heads=3: give a divisor"):
        new_head(target, num_kv_heads=3)
