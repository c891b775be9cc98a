"""Requests with inputs beside tokens: an LM that reads them through batches, reuse, prefixes, guidance and drafters."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.context import Context, ContextInput
from paceline.core.guidance import Guidance
from paceline.drafters import DRAFTERS
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.engine.prefixes import MIN_SHARED
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.models.scoring import Passage, score_passages
from tests import reference, tiny
from tests.harness import decoder_for, expected, finish, request, tiny_drafter
from tests.models.context_lm import INPUTS, SIZE, context, pair

pytestmark = pytest.mark.one_in(14)

PROMPT = [7, 3, 5, 60, 2]
LONG = [*PROMPT, *range(10, 10 + MIN_SHARED)]
FIRST, SECOND, THIRD = context(1), context(2, num_frames=5), context(3, num_frames=1)


@cache
def models():
    return pair()


def asked(prompt, given, *, guidance=None, **options):
    return replace(request(prompt, **options), context=given, guidance=guidance)


def naive(one):
    """The tokens of a request, by plain forwards of transformers' model."""
    return expected(one, models()[0](one.context))


def own_drafter():
    """The target itself: every draft is accepted as long as it reads the same context."""
    return ModelDrafter(lm=models()[1])


DRAFTER_KINDS = {
    **{name: lambda name=name: tiny_drafter(name, tiny.target()[1]) for name in DRAFTERS.builtin},
    "the target": own_drafter,
    "another model with contexts": lambda: ModelDrafter(lm=pair(2, num_hidden_layers=1)[1]),
    "a model without contexts": lambda: ModelDrafter(lm=tiny.draft()),
    "a tree": lambda: ModelDrafter(lm=models()[1], shape=Topology.branching((2, 2, 1))),
}


def admitted(drafter, requests, rows, *, capacity=None, **options):
    decoder = decoder_for(drafter, "coupled", target=models()[1], rows=capacity or len(rows), **options)
    decoder.admit(requests, rows)
    return decoder


def finished(decoder, requests, rows):
    return finish(decoder, rows=rows, prompts=[one.tokens for one in requests])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTER_KINDS)
def test_rows_of_different_contexts_match_plain_forwards(drafter, temperature):
    requests = [
        asked(PROMPT, given, temperature=temperature, seed=seed) for seed, given in enumerate((FIRST, SECOND, THIRD))
    ]
    rows = [2, 0, 3]
    found = finished(admitted(DRAFTER_KINDS[drafter](), requests, rows, capacity=4), requests, rows)
    assert found.texts == [naive(one) for one in requests]
    assert len({tuple(text) for text in found.texts}) == 3, "the contexts make no difference"
    if drafter == "the target":
        assert found.steps == 24 // 4


def test_a_reused_row_has_the_context_of_its_new_request():
    decoder = decoder_for(own_drafter(), "coupled", target=models()[1])
    for given in (FIRST, SECOND, THIRD, FIRST):
        one = asked(PROMPT, given)
        decoder.admit([one], [0])
        found = finished(decoder, [one], [0])
        assert found.texts == [naive(one)] and found.steps == 24 // 4


def test_a_prefix_is_copied_with_its_context():
    """Rows exchange their prefixes, and with them their contexts, which are not read again."""
    first = [asked(LONG, given, max_tokens=4) for given in (FIRST, SECOND)]
    decoder = admitted(own_drafter(), first, [0, 1])
    finished(decoder, first, [0, 1])
    target = models()[1]
    known = target.num_encoded
    second = [asked([*LONG, 9], given) for given in (SECOND, FIRST)]
    decoder.admit(second, [0, 1], [Prefix(row=1, length=len(LONG)), Prefix(row=0, length=len(LONG))])
    assert target.num_encoded == known
    found = finished(decoder, second, [0, 1])
    assert found.texts == [naive(one) for one in second] and found.steps == 24 // 4


def test_a_prefix_of_another_context_is_refused():
    one = asked(LONG, FIRST, max_tokens=4)
    decoder = admitted(NoDrafter(), [one], [0], capacity=2)
    with pytest.raises(ValueError, match="row 0 was read with another context: give a prefix of a row with the same"):
        decoder.admit([asked(LONG, SECOND)], [1], [Prefix(row=0, length=4)])
    equal = Context({name: tensor.clone() for name, tensor in FIRST.inputs.items()})
    decoder.admit([asked(LONG, equal)], [1], [Prefix(row=0, length=4)])


def scheduled(requests, *, rows, drafter):
    """Tokens of requests over fewer rows than there are requests."""
    decoder = decoder_for(drafter, "coupled", target=models()[1], rows=rows)
    scheduler = Scheduler(Runner(decoder))
    for one in requests:
        decoder.check(one)
    tickets = {scheduler.submit(one): [] for one in requests}
    while not scheduler.idle:
        for output in scheduler.advance():
            assert output.error is None
            tickets[output.ticket].extend(output.token_ids)
    return list(tickets.values())


@pytest.mark.parametrize("drafter", ["none", "the target", "early_exit", "a model without contexts"])
def test_requests_over_few_rows_match_plain_forwards(drafter):
    """Equal prompts under equal and different contexts: rows are reused, and prefixes shared where they may be."""
    equal = Context({name: tensor.clone() for name, tensor in FIRST.inputs.items()})
    contexts = [FIRST, SECOND, equal, THIRD, FIRST, SECOND, equal, SECOND]
    requests = [asked(LONG, given, max_tokens=8 + index) for index, given in enumerate(contexts)]
    found = scheduled(requests, rows=3, drafter=DRAFTER_KINDS[drafter]())
    assert found == [naive(one) for one in requests]


def test_equal_contexts_share_their_prefixes():
    target = models()[1]
    known = target.num_encoded
    scheduled([asked(LONG, FIRST, max_tokens=5) for _ in range(4)], rows=2, drafter=NoDrafter())
    assert target.num_encoded == known + 1
    scheduled([asked(LONG, given, max_tokens=5) for given in (FIRST, SECOND) * 2], rows=1, drafter=NoDrafter())
    assert target.num_encoded == known + 5


def test_prompts_are_scored_under_their_contexts():
    """A scored prompt is read whole: it copies no prefix, and so its context is read too."""
    decoder = decoder_for(NoDrafter(), "coupled", target=models()[1], rows=1)
    scheduler = Scheduler(Runner(decoder))
    for given in (FIRST, FIRST, SECOND):
        ticket = scheduler.submit(replace(asked(LONG, given, max_tokens=3), prompt_logprobs=0))
        while not scheduler.idle:
            scheduler.advance()
        with torch.no_grad():
            distributions = models()[0](given)(torch.tensor([LONG])).logits[0].log_softmax(-1)
        wanted = distributions[:-1].gather(1, torch.tensor(LONG[1:])[:, None])[:, 0]
        assert scheduler.prompt_scores(ticket).logprobs == pytest.approx(wanted.tolist(), abs=1e-5)


def test_passages_cannot_be_scored_without_contexts():
    with pytest.raises(ValueError, match=f"gives nothing, and the target reads {FRAMES} beside tokens"):
        score_passages(models()[1], [Passage(tokens=(1, 2), first=1)])


def guided_tokens(one):
    """The tokens of a guided request, by two plain forwards a token."""
    guidance, sequence = one.guidance, list(one.tokens)
    streams = [
        (models()[0](one.context), list(one.tokens)),
        (models()[0](guidance.context or one.context), list(guidance.prompt)),
    ]
    while len(sequence) < len(one.tokens) + one.max_tokens:
        with torch.no_grad():
            own, other = (
                model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1).numpy() for model, tokens in streams
            )
        options = dict(temperature=one.sampling.temperature, seed=one.sampling.seed)
        token = reference.choose(np.asarray(guidance.scale * (own - other) + other), len(sequence), **options)
        sequence.append(token)
        for _, tokens in streams:
            tokens.append(token)
    return sequence[len(one.tokens) :]


@pytest.mark.parametrize("drafter", ["none", "the target", "a tree", "early_exit", "a model without contexts"])
def test_guided_rows_read_their_contexts_and_those_of_negative_prompts(drafter):
    requests = [
        asked(PROMPT, FIRST, guidance=Guidance(scale=1.6, prompt=[5]), max_tokens=12),
        asked(PROMPT, SECOND, temperature=1.0, seed=4),
        asked(PROMPT, SECOND, guidance=Guidance(scale=1.6, prompt=[5], context=THIRD), max_tokens=12),
        asked(PROMPT, THIRD, guidance=Guidance(scale=0.5, prompt=[8, 1, 1]), max_tokens=12, temperature=1.0),
    ]
    decoder = admitted(DRAFTER_KINDS[drafter](), requests, [0, 3, 2, 1], guidance=True)
    found = finished(decoder, requests, [0, 3, 2, 1])
    assert found.texts == [naive(one) if one.guidance is None else guided_tokens(one) for one in requests]
    if drafter == "the target":
        assert found.steps == 24 // 4


FRAMES = r"'frames' \(floating-point numbers \[1\.\.5, 6\]\)"
REFUSED = {
    "nothing given": (None, f"gives nothing, and the target reads {FRAMES}"),
    "another name": (Context({"ids": torch.zeros(2)}), f"gives 'ids', and the target reads {FRAMES}.*Request.context"),
    "too many frames": (
        Context({"frames": torch.zeros(9, SIZE)}),
        r"'frames' is float32 \[9, 6\], and the target reads floating-point numbers \[1\.\.5, 6\]",
    ),
    "integers": (Context({"frames": torch.tensor([[1, 4]])}), r"'frames' is int64 \[1, 2\] with values 1\.\.4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_context_that_the_target_does_not_read_is_refused_before_a_row_is_touched(case):
    given, message = REFUSED[case]
    running = asked(PROMPT, FIRST)
    decoder = admitted(NoDrafter(), [running], [0])
    with pytest.raises(ValueError, match=message):
        decoder.admit([asked(PROMPT, given)], [0])
    if given is not None:
        guidance = Guidance(scale=2.0, prompt=[1], context=given)
        with pytest.raises(ValueError, match=message):
            admitted(NoDrafter(), [asked(PROMPT, FIRST, guidance=guidance)], [0], guidance=True)
    assert finished(decoder, [running], [0]).texts == [naive(running)]


def test_a_decoder_only_target_refuses_every_context():
    decoder = decoder_for(NoDrafter(), "coupled")
    with pytest.raises(ValueError, match="gives 'frames', and the target reads nothing beside tokens"):
        decoder.check(asked(PROMPT, FIRST))


def test_a_draft_model_that_reads_what_requests_do_not_give_is_refused():
    with pytest.raises(ValueError, match=f"draft model reads {FRAMES} beside tokens, .* give nothing"):
        decoder_for(own_drafter(), "coupled", target=tiny.target()[1])


def test_token_ids_of_a_context_stay_within_their_vocabulary():
    ids = ContextInput(min_shape=(1,), max_shape=(4,), vocab_size=9)
    assert str(ids) == "token ids 0..8 [1..4]" and str(INPUTS["frames"]).endswith("[1..5, 6]")
    given = ([8], [0, 1, 2, 3], [9], [-1], [0] * 5)
    assert [ids.accepts(torch.tensor(one)) for one in given] == [True, True, False, False, False]
    assert not ids.accepts(torch.zeros(2)) and not ids.accepts(torch.zeros(1, 1, dtype=torch.int64))


def test_contexts_are_equal_if_their_tensors_are():
    one, two = (Context({"frames": torch.arange(3.0)}) for _ in range(2))
    others = [{"frames": torch.arange(4.0)}, {"frames": torch.zeros(3)}, {"ids": torch.arange(3.0)}, {}]
    assert one == two and hash(one) == hash(two) and one != "frames"
    assert all(one != Context(other) for other in others)
