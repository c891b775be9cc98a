"""A draft model with another vocabulary by token-level intersection: under every verifier, in ragged batches.

The draft has most of the target's tokens, and others of its own; it reads several of these for a token that it lacks.
"""

from dataclasses import replace

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.guidance import Guidance
from paceline.core.request import Processing, Request
from paceline.core.tree import Draw, Tree
from paceline.draft_heads.draft_sequence import Spelled, Spellings
from paceline.draft_heads.vocab_map import MappedVocab
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from tests import harness
from tests import tiny as models
from tests.conformance import test_conformance, test_forks, test_gates, test_guidance, test_options
from tests.drafters.test_model import Later
from tests.harness import decoder_for, expected, finish, pairs, request, run

pytestmark = pytest.mark.one_in(15)

LACKED = tuple(range(3, models.VOCAB, 9))  # the target's tokens that the draft spells
ORDER = torch.randperm(models.VOCAB, generator=torch.Generator().manual_seed(4)).tolist()
SHARED = [token for token in ORDER if token not in LACKED]
FIRST = len(SHARED)  # begins the draft's sequences; only the draft has it and what follows
OWN = 1 + len(LACKED)
SIZE = len(SHARED) + OWN
# The last piece of each is its own, so that the draft can know what follows.
SPELLINGS = {
    token: [*(FIRST + (token + at) % OWN for at in range(token % 4)), FIRST + 1 + number]
    for number, token in enumerate(LACKED)
}
OTHERS = [pair[1] for pair in pairs() if pair[0] == "model"]
SOON = ("block", "coupled", "recursive")  # of chains, of one noise, of several drafts
every_verifier = pytest.mark.parametrize(
    "verifier", [pytest.param(name, marks=[] if name in SOON else [pytest.mark.slow]) for name in OTHERS]
)
SHAPES = {"chain": None, "tree": Topology.branching((2, 2))}


def draft_of(target):
    """The target with noise, its tokens in another order, and more of them."""
    lm = models.noisy(target, 0.05)
    other = type(lm)(replace(lm.config, vocab_size=SIZE))
    state = {name: part.clone() for name, part in lm.state_dict().items()}
    rows = torch.tensor([*SHARED, 0, *LACKED])
    for name in ("embed.weight", "head.weight"):
        if name in state:
            state[name] = state[name][rows]
    other.load_state_dict(state, assign=True)
    return other.requires_grad_(False).eval()


def vocab(first=FIRST):
    return MappedVocab(
        target_ids=[*SHARED, *[-1] * OWN], target_size=models.VOCAB, spellings=SPELLINGS, first=first, unknown=FIRST
    )


def cross(target, **options):
    return ModelDrafter(lm=draft_of(target), vocab=vocab(), **options)


def in_place_of_the_model(monkeypatch, make):
    """The suites of every drafter, with the drafter that ``make`` gives for a target in place of the draft model."""
    monkeypatch.setattr(harness, "tiny_drafter", lambda name, target: make(target))
    for module in (test_conformance, test_options):
        monkeypatch.setattr(module, "guessable_target", lambda name: models.looping_target())
    for module in (test_conformance, test_options, test_gates, test_guidance):
        for name in ("tiny_drafter", "new"):
            if name in vars(module):
                monkeypatch.setattr(module, name, lambda drafter, target=None: make(target or models.target()[1]))


@pytest.fixture
def crossed(monkeypatch):
    """With the draft of another vocabulary."""
    in_place_of_the_model(monkeypatch, cross)


@pytest.mark.parametrize("first", [FIRST, None])
def test_sequences_are_the_concatenated_spellings(first):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(models.VOCAB, (5, 17), generator=generator)
    mapped = vocab(first)
    sequence = mapped.sequence(tokens)
    assert mapped.max_pieces == 4
    for row, own in enumerate(tokens.tolist()):
        spelled = [
            piece for token in own for piece in SPELLINGS.get(token, [SHARED.index(token) if token in SHARED else -1])
        ]
        whole = spelled if first is None else [first, *spelled]
        assert mapped.spell(own) == whole
        assert sequence.at(torch.arange(len(whole)))[row].tolist() == whole
        for known in range(18):
            lengths = sequence.length(torch.full((5,), known))
            assert int(lengths[row]) == len(mapped.spell(own[:known]))
    beyond = sequence.at(torch.full((5, 2), 10**6))
    assert ((beyond >= 0) & (beyond < SIZE)).all()


def test_a_sequence_that_begins_by_itself_is_given_no_second_beginning():
    spellings = Spellings.make([[7], [1], [2, 3]], 7, "cpu")
    sequence = Spelled(torch.tensor([[0, 1, 2], [1, 2, 0]]), spellings)
    assert sequence.at(torch.arange(5)).tolist()[0][:4] == [7, 1, 2, 3]
    assert sequence.at(torch.arange(5)).tolist()[1] == [7, 1, 2, 3, 7]
    assert sequence.length(torch.tensor([3, 3])).tolist() == [4, 5]


@every_verifier
def test_greedy_output_in_ragged_batches(verifier, crossed):
    test_conformance.test_greedy_output_equals_the_reference_and_every_event_occurs("model", verifier)


@every_verifier
def test_penalties_and_other_processors_are_honoured(verifier, crossed):
    test_options.test_greedy_outputs_equal_the_reference("model", verifier)


@every_verifier
def test_the_kernels_outputs_equal_the_plain_ones(verifier, crossed):
    test_options.test_the_kernels_outputs_equal_the_plain_ones("model", verifier, 0.9)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_guided_rows_beside_a_free_one(temperature, kernel, crossed):
    test_guidance.test_guided_rows_beside_a_free_one_are_those_of_plain_forwards("model", temperature, kernel)


@pytest.mark.slow
@every_verifier
def test_a_row_of_a_batch_equals_that_row_alone(verifier, crossed):
    test_conformance.test_a_row_of_a_batch_equals_that_row_alone("model", verifier)


@every_verifier
def test_reused_slots_carry_nothing_over(verifier, crossed):
    test_conformance.test_reused_slots_carry_nothing_over("model", verifier)


@pytest.mark.slow
@every_verifier
def test_scratch_is_never_read(verifier, crossed):
    test_conformance.test_scratch_is_never_read("model", verifier)


@pytest.mark.slow
@pytest.mark.parametrize("way", test_conformance.WANDERING)
@every_verifier
def test_rows_may_have_depths_of_their_own(verifier, way, crossed):
    test_conformance.test_rows_may_have_depths_of_their_own("model", verifier, way)


@pytest.mark.parametrize("seed", [0, 2**40 + 5])
def test_sampled_output_equals_the_reference(seed, crossed):
    test_conformance.test_coupled_sampled_output_equals_the_reference("model", seed)


def test_a_paused_row_is_drafted_for_as_if_it_had_not_paused(crossed):
    test_conformance.test_a_paused_row_is_drafted_for_as_if_it_had_not_paused("model")


@every_verifier
def test_the_step_runs_on_fake_tensors(verifier, crossed):
    test_gates.test_the_step_runs_on_fake_tensors("model", verifier, True)


@pytest.mark.slow
def test_the_step_compiles_whole_and_once(crossed):
    test_gates.test_the_step_compiles_whole_and_once("model", "rejection", True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_and_chains_accept_and_change_nothing(shape, temperature):
    requests = [
        request(prompt, max_tokens=40, temperature=temperature, seed=row)
        for row, prompt in enumerate(test_conformance.PROMPTS)
    ]
    model, target = models.looping_target()
    result = run(cross(target, shape=SHAPES[shape]), "coupled", requests, target=target, k=2)
    assert result.texts == [expected(one, model) for one in requests]
    assert any(set(text) & set(LACKED) for text in result.texts)
    assert result.summary.mean_acceptance_length > 1.5


@pytest.mark.parametrize("draw", [Draw.IID, Draw.NO_REPLACEMENT])
def test_draft_probs_are_those_of_the_intersection(draw):
    """The draft's distribution, restricted to the tokens of both and normalised, is what tokens are drawn from."""
    drafter = cross(models.target()[1], draws=frozenset({draw}))
    decoder = decoder_for(drafter, "recursive", k=2)
    decoder.admit([request([7, 3, LACKED[3], 5], max_tokens=20, temperature=0.8)], [0])
    plan = decoder.plan()
    decoder.begin_step(plan)
    tree = drafter.propose(decoder.batch, plan)
    known = torch.tensor([vocab().spell([7, 3, LACKED[3], 5])])
    logits = drafter.lm.causal(known).logits[0, -1, : len(SHARED)]
    wanted = torch.zeros(models.VOCAB, dtype=torch.float64)
    wanted[torch.tensor(SHARED)] = (logits.double() / 0.8).softmax(-1)
    torch.testing.assert_close(tree.probs[0, 0], wanted)


def test_every_lag_is_read_in_time():
    """Postponed prompts and plain steps: then the draft's own logits are those of the whole sequence."""
    prompt = [1 + at % 37 for at in range(30)]
    for after in (0, 1, 5):
        drafter = cross(models.target()[1])
        decoder = decoder_for(drafter, "coupled", rows=2, k=3, plan=Later(3, after), max_length=90)
        decoder.admit([request(prompt, max_tokens=40), request([LACKED[2]], max_tokens=40)], [0, 1])
        for _ in range(after + 4):
            decoder.step()
            check_cache(decoder, drafter, drafted=decoder.plan.asked > after)


def check_cache(decoder, drafter, *, drafted=True):
    """The cache holds the draft's sequence, less what it has yet to read."""
    for row in range(decoder.rows):
        length = int(decoder.batch.length[row])
        known = vocab().spell(decoder.batch.tokens[row, :length].tolist())
        held = int(drafter.cache.length[row])
        assert held <= len(known)
        assert not drafted or len(known) - held <= drafter.ordinary_lag
        if not held:
            continue
        keys = drafter.lm.new_cache(1, 200).view()
        drafter.lm(_chain(known[:held]), keys)
        own = drafter.cache.storage.keys[:, row, :held]
        torch.testing.assert_close(own, keys.storage.keys[:, 0, :held])


def _chain(tokens):
    return Tree.make_chain(torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.bool))


def test_prefixes_are_shared_in_the_drafts_own_lengths():
    prompt = [*test_forks.LONG, LACKED[1], LACKED[3], 5]
    drafter = cross(models.target()[1])
    decoder = decoder_for(drafter, "coupled", rows=3, k=3)
    first = request(prompt, max_tokens=20)
    decoder.admit([first], [0])
    for _ in range(3):
        decoder.step()
        decoder.results()
    wanted = [request([*prompt, 9, LACKED[2]], max_tokens=15), request([*prompt[:11], 44], max_tokens=15)]
    prefixes = [Prefix(row=0, length=len(prompt)), Prefix(row=0, length=11)]
    shared, admit = [], drafter.reader.admit

    def noting(cache, admission):
        view = admit(cache, admission)
        shared.append(view.length.tolist())
        return view

    drafter.reader.admit = noting
    decoder.admit(wanted, [1, 2], prefixes)
    spelled = [len(drafter.vocab_map.spell(prompt[: prefix.length])) for prefix in prefixes]
    assert shared == [spelled] and spelled[0] > len(prompt), "no token of a prefix is read again"
    check_cache(decoder, drafter)
    result = finish(decoder, rows=[1, 2], prompts=[one.tokens for one in wanted])
    assert result.texts == [expected(one) for one in wanted]
    alone = decoder_for(cross(models.target()[1]), "coupled", rows=2, k=3)
    alone.admit(wanted, [0, 1])
    finish(alone, rows=[0, 1], prompts=[one.tokens for one in wanted])
    assert decoder.stats.summary([1, 2]) == alone.stats.summary([0, 1])


@pytest.mark.parametrize("negative", [[5], [LACKED[3]] * 40, [9, LACKED[1], 2]])
def test_guided_rows_read_their_negative_prompts_in_draft_tokens(negative):
    def texts(k):
        decoder = decoder_for(
            ModelDrafter(lm=draft_of(models.target()[1]), vocab=vocab(None)), "coupled", rows=2, k=k, guidance=True
        )
        prompts = [[7, 4, 5], [9, 4, 4]]
        options = dict(max_tokens=30, guidance=Guidance(scale=1.5, prompt=negative))
        allowed = Processing(allowed=tuple(SHARED))
        requests = [Request(tokens=prompt, processing=allowed, **options) for prompt in prompts]
        decoder.admit(requests, [0, 1])
        return finish(decoder, rows=[0, 1], prompts=prompts)

    drafted, plain = texts(3), texts(0)
    assert drafted.texts == plain.texts
    if not set(negative) & set(LACKED):
        assert drafted.summary.mean_acceptance_length > 2


def test_a_row_whose_text_takes_too_many_draft_tokens_is_decoded_plainly():
    requests = [request([LACKED[3]] * 60, max_tokens=30), request([LACKED[0], 5], max_tokens=30)]
    result = run(cross(models.target()[1]), "coupled", requests, k=3, max_length=90)
    assert result.texts == [expected(one) for one in requests]


@pytest.mark.parametrize(
    ("spellings", "message"),
    [
        ({3: []}, r"target token 3 spelled as draft tokens \[\]: give ids, at least one, below"),
        ({3: [SIZE]}, r"target token 3 spelled as draft tokens \[\d+\]"),
        ({models.VOCAB: [1]}, r"target token 61 spelled"),
    ],
)
def test_spellings_outside_the_vocabularies_are_refused(spellings, message):
    with pytest.raises(ValueError, match=message):
        MappedVocab(target_ids=SHARED, target_size=models.VOCAB, spellings=spellings)
