"""Running ahead in one call gives what processing, picking and reading token by token gives, cache included."""

from dataclasses import replace

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.early_stop import LEVELS, StopRule
from paceline.core.noise import Philox
from paceline.core.request import Processing, Request
from paceline.core.sampling import FilterOrder, Sampling
from paceline.core.tree import Tree
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.fused_chain import FusedChain
from paceline.engine.runner import ops_for
from paceline.kernels.cpu.ops import CpuOps
from paceline.models.base import LogitsFor, PendingInputs
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.prefill import feed
from tests.harness import decoder_for, finish, request
from tests.kernels.cpu.models import native
from tests.models.layouts import texts

pytestmark = pytest.mark.one_in(2)

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = ("grouped", "gpt2", "olmo2")
LENGTHS = (3, 6, 4)
KNOWN = texts(3, max(LENGTHS)) % 11  # of the smallest vocabulary below
ROOM = ((1, 1, 1, 1, 1), (1, 1, 1, 0, 0), (0, 0, 0, 0, 0))  # of three rows: all, two tokens, none (idle)
COUNT = (1, 0, 0)  # what each text's cache lacks before its root


def begun(model):
    """Three texts of different lengths, but for their roots, and what was missing, in a cache."""
    cache = model.new_cache(3, 24).view()
    read = torch.tensor(LENGTHS) - 1 - torch.tensor(COUNT)
    feed(model, cache, KNOWN, read, max(LENGTHS))
    return cache, PendingInputs(count=torch.tensor(COUNT), max_count=1)


PENALTIES = Processing(repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.2, no_repeat_ngram=2)
BIASES = Processing(
    bias=(*(((token,), -0.3 * token) for token in range(0, 40, 3)), ((1, 5), -float("inf")), ((5, 4), 6.0)),
    allowed=(*range(0, 60, 2), 1, 5),
)
NONE = (Processing(),) * 3
PROCESSING = {"none": NONE, "different": (PENALTIES, BIASES, Processing()), "one": (PENALTIES,) * 3}


def asked(processing=NONE, *, vocab=64):
    """Rows that are greedy, that sample, and that may not end yet."""
    batch = Batch(rows=3, max_length=24, max_depth=4, vocab_size=vocab, ops=CpuOps(), device=torch.device("cpu"))
    options = (
        Sampling(),
        Sampling(temperature=0.9, top_p=0.9, min_p=0.02, order=FilterOrder.VLLM, seed=4),
        Sampling(temperature=1.3, seed=9, epsilon_cutoff=0.001, typical_p=0.95),
    )
    batch.admit(
        range(3),
        [
            Request(
                tokens=KNOWN[row, :length].tolist(),
                max_tokens=8,
                sampling=sampling,
                stop_tokens=range(8),
                min_tokens=row * 2,
                processing=processing[row],
            )
            for row, (length, sampling) in enumerate(zip(LENGTHS, options, strict=True))
        ],
    )
    return batch


def one_by_one(model, batch, cache, missing, tokens, valid, greedy, vocab):
    chance = None
    count = torch.where(valid[:, 0], missing.count + 1, 0)
    logits = feed(model, cache, batch.tokens, count, missing.max_count + 1, logits_for=LogitsFor.LAST).logits[
        ..., :vocab
    ]
    for depth in range(1, tokens.shape[1]):
        pick = batch.argmax if greedy else batch.pick
        processed = batch.process(logits[:, -1:], tokens[:, None, 1:depth])
        where = () if greedy else (batch.length[:, None] + depth - 1,)
        picked = pick(processed, *where)[:, 0]
        if batch.early_stop.rule is not None:
            chance, goes_on = batch.early_stop.follow(chance, processed[:, 0], depth - 1, valid[:, depth])
            valid[:, depth:] &= goes_on[:, None]
        tokens[:, depth] = torch.where(valid[:, depth], picked, tokens[:, depth])
        if depth + 1 < tokens.shape[1]:
            forest = Tree.make_chain(tokens[:, 1 : depth + 1], valid[:, 1 : depth + 1])
            logits = model(forest, cache, start=depth - 1).logits[..., :vocab]


@torch.inference_mode()
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "as the batch"])
@pytest.mark.parametrize("vocab", [None, 11])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("processing", PROCESSING)
def test_tokens_and_cache_are_those_of_single_calls(processing, layout, dtype, vocab, greedy):
    model = CpuDecoder(native(layout, dtype))
    made = []
    for together in (False, True):
        batch, (cache, missing) = asked(PROCESSING[processing], vocab=vocab or model.vocab_size), begun(model)
        valid = torch.tensor(ROOM).bool()
        tokens = torch.zeros(3, 5, dtype=torch.int64)
        tokens[:, 0] = batch.root
        if together:
            assert model.draft_fused(batch, cache, missing, tokens, valid, greedy=greedy)
        else:
            one_by_one(model, batch, cache, missing, tokens, valid, greedy, vocab)
        made.append((tokens, cache.storage.keys[:, :3], cache.storage.values[:, :3]))
    for alone, together in zip(*made, strict=True):
        assert torch.equal(alone, together)
    assert vocab is None or int(made[0][0][:, 1:].max()) < vocab
    assert bool((made[0][0][0, 1:] != 0).any())


RULE = StopRule(
    tuple(tuple(share * level / LEVELS for level in range(1, LEVELS + 1)) for share in (1.0, 0.9, 0.8)),
    (0.02, 0.15, 0.0),
)


@torch.inference_mode()
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "as the batch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("processing", PROCESSING)
def test_chains_end_early_where_they_do_token_by_token(processing, dtype, greedy):
    model = CpuDecoder(native("grouped", dtype))
    made = []
    for together in (False, True):
        batch, (cache, missing) = asked(PROCESSING[processing], vocab=model.vocab_size), begun(model)
        batch.early_stop.plan(RULE)
        valid = torch.tensor([[1] * 5, [1] * 5, [1, 1, 1, 1, 0]]).bool()
        tokens = torch.zeros(3, 5, dtype=torch.int64)
        tokens[:, 0] = batch.root
        if together:
            assert model.draft_fused(batch, cache, missing, tokens, valid, greedy=greedy)
        else:
            one_by_one(model, batch, cache, missing, tokens, valid, greedy, None)
        notes = batch.early_stop.notes.tolist()
        made.append((valid, tokens * valid, notes, cache.storage.keys[:, :3], cache.storage.values[:, :3]))
    alone, together = made
    assert alone[2] == together[2]
    for one, other in zip(alone[:2] + alone[3:], together[:2] + together[3:], strict=True):
        assert torch.equal(one, other)
    assert counts(alone[0])[:2] < [4, 4], "no chain ended early"
    assert counts(alone[0])[2] == 3


@torch.inference_mode()
def test_where_all_chains_end_nothing_is_left_of_them():
    """The kernel returns early then."""
    model = CpuDecoder(native("grouped", torch.float32))
    batch, (cache, missing) = asked(vocab=model.vocab_size), begun(model)
    batch.early_stop.plan(StopRule(((0.5,) * LEVELS,) * 3, (0.9, 0.9, 0.9)))
    tokens, valid = torch.zeros(3, 5, dtype=torch.int64), torch.ones(3, 5, dtype=torch.bool)
    tokens[:, 0] = batch.root
    assert model.draft_fused(batch, cache, missing, tokens, valid, greedy=True)
    assert counts(valid) == [0, 0, 0] and bool(valid[:, 0].all())


def counts(valid):
    return (valid.sum(-1) - 1).tolist()


def test_noise_that_the_kernel_does_not_know_is_left_to_others():
    class Other(Philox):
        pass

    model, batch = CpuDecoder(native("grouped", torch.float32)), asked()
    batch.noise = Other()
    cache, missing = begun(model)
    tokens, valid = torch.zeros(3, 5, dtype=torch.int64), torch.tensor(ROOM).bool()
    assert not model.draft_fused(batch, cache, missing, tokens, valid, greedy=False)
    assert not bool(tokens.any())


def drafted(drafter, target, sampled=0.0, processing=NONE):
    """The trees of a whole run, and its texts."""
    decoder = decoder_for(drafter, "coupled", target=target, k=4, rows=3, parts=dict(ops=ops_for(torch.device("cpu"))))
    prompts = [[5, 9, 2], [1], [17, 4, 33, 17, 4]]
    requests = [
        replace(request(prompt, max_tokens=12 + 5 * row, temperature=sampled, seed=row), processing=processing[row])
        for row, prompt in enumerate(prompts)
    ]
    trees, propose = [], drafter.propose
    drafter.propose = lambda batch, plan: trees.append(propose(batch, plan)) or trees[-1]
    decoder.admit(requests, range(3))
    texts = finish(decoder, rows=[0, 1, 2], prompts=prompts).texts
    return trees, texts, decoder.stats.summary()


@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("processing", PROCESSING)
def test_a_draft_model_that_runs_ahead_drafts_as_one_that_does_not(processing, sampled):
    model, given = native("grouped", torch.float32), PROCESSING[processing]
    target = CpuDecoder(model)
    ahead = ModelDrafter(lm=CpuDecoder(model))
    trees, texts, summary = drafted(ahead, target, sampled, given)
    assert all(isinstance(chain, FusedChain) for _, chain in ahead.growers.values())
    wanted, others, other = drafted(slow(model), target, sampled, given)
    assert texts == others
    assert summary == other
    assert summary.mean_acceptance_length > 4, "processed in another way, drafts of the target itself fail"
    assert (texts == drafted(slow(model), target, sampled)[1]) == (processing == "none")
    for one, two in zip(trees, wanted, strict=True):
        assert torch.equal(one.valid, two.valid)
        assert torch.equal(torch.where(one.valid, one.tokens, 0), torch.where(two.valid, two.tokens, 0))


def slow(model):
    """A drafter that is not told that its model can run ahead."""
    drafter = ModelDrafter(lm=CpuDecoder(model))
    start = drafter.start

    def plainly(context):
        start(context)
        drafter.growers = {index: (grower, None) for index, (grower, _) in drafter.growers.items()}

    drafter.start = plainly
    return drafter
