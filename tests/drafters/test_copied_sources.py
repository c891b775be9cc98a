"""What an encoder reads may be copied: by ``copy`` from its first token on, by ``suffix`` from matches."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from paceline.api import Engine, SamplingParams, total
from paceline.api.loading import load
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.core.context import Context
from paceline.drafters.copy import CopyDrafter
from paceline.drafters.host import HostDrafting
from paceline.drafters.none import NoDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.models.from_transformers import from_transformers
from tests.harness import decoder_for, expected, finish, request, serve_in_turn
from tests.models.encoder_decoders import START, VOCAB, Naive, copying_model, pair, transformers_model

EDITS = {9: 10, 33: 34}  # tokens that the target replaces
SIZES = (40, 11, 29, 40)
LOOKS_IN_THE_SOURCE = {"copy": CopyDrafter, "suffix": SuffixDrafter}


@cache
def copier():
    """(transformers' model, ours): says its source, with EDITS."""
    model = copying_model(EDITS)
    return model, from_transformers(model)


def source(seed, size=40):
    """Tokens, each once, so that nothing but the source tells what follows."""
    return (4 + torch.randperm(VOCAB - 4, generator=torch.Generator().manual_seed(seed)))[:size]


def asked(ids, *, prompt=(START,), **options):
    given = request(list(prompt), **{"max_tokens": len(ids) + 1 - len(prompt), **options})
    return replace(given, context=Context({"input_ids": ids}))


def naive(one):
    return expected(one, Naive(copier()[0], one.context))


def decoded(drafter, requests, rows=None):
    rows = rows or list(range(len(requests)))
    made = HostDrafting(drafter)
    decoder = decoder_for(made, "coupled", k=9, target=copier()[1], rows=len(requests))
    decoder.admit(requests, rows)
    return finish(decoder, rows=rows, prompts=[one.tokens for one in requests])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [[0], [2, 0, 3, 1]])
@pytest.mark.parametrize("drafter", LOOKS_IN_THE_SOURCE)
def test_a_source_that_is_said_again_with_edits_is_accepted(drafter, rows, temperature):
    requests = [asked(source(row, SIZES[row]), temperature=temperature, seed=row) for row in range(len(rows))]
    found = decoded(LOOKS_IN_THE_SOURCE[drafter](), requests, rows)
    assert found.texts == [naive(one) for one in requests]
    assert found.texts[0] != requests[0].context.token_ids("input_ids"), "nothing is edited"
    summary = found.summary
    assert summary.acceptance_rate > 0.6, summary
    if drafter == "copy":  # not a token is said before it copies, and one is lost by an edit
        assert found.steps <= -(-40 // 10) + len(EDITS)


def test_the_copy_begins_with_the_source_unless_the_prompt_stands_in_it():
    first = source(1)
    drafter = CopyDrafter()
    decoder = decoder_for(HostDrafting(drafter), "coupled", k=9, target=copier()[1], rows=2)
    begun = [START, *first[:6].tolist()]
    decoder.admit([asked(first), asked(first, prompt=begun)], [0, 1])
    drafts = drafter.propose({0: [START], 1: begun}, 4)
    assert [list(drafts[row].tokens) for row in (0, 1)] == [first[:4].tolist(), first[6:10].tolist()]
    # A prefix of the source that is not said again, as a task's name, costs one step.
    assert list(drafter.propose({0: [START, int(first[3])]}, 4)[0].tokens) == first[4:8].tolist()


@pytest.mark.parametrize("drafter", LOOKS_IN_THE_SOURCE)
def test_a_row_that_is_used_again_copies_the_source_of_its_new_request(drafter):
    requests = [asked(source(seed, SIZES[seed % 4])) for seed in range(6)]
    decoder = decoder_for(HostDrafting(LOOKS_IN_THE_SOURCE[drafter]()), "coupled", k=9, target=copier()[1], rows=2)
    assert serve_in_turn(decoder, requests, release=True) == [naive(one) for one in requests]
    summary = decoder.stats.summary([0, 1])
    assert summary.acceptance_rate > 0.6


def test_rows_that_copy_a_prefix_of_the_cache_copy_their_source_too():
    """Requests of equal contexts and prompts: the second reads nothing."""
    ids = source(3)
    begun = [START, *(EDITS.get(token, token) for token in ids[:20].tolist())]
    one = asked(ids, prompt=begun)
    drafter = CopyDrafter()
    decoder = decoder_for(HostDrafting(drafter), "coupled", k=9, target=copier()[1], rows=2)
    decoder.admit([one], [0])
    again = replace(one, context=Context({"input_ids": ids.clone()}))
    decoder.admit([again], [1])
    found = finish(decoder, rows=[0, 1], prompts=[begun, begun])
    assert found.texts == [naive(one)] * 2 and found.summary.acceptance_rate > 0.6


def test_nothing_is_copied_where_states_are_given_in_place_of_tokens():
    model, lm = copier()
    ids = source(4, 12)
    with torch.no_grad():
        states = model.get_encoder()(ids[None]).last_hidden_state[0]
    one = replace(asked(ids), context=Context({"encoder_outputs": states}))
    decoder = decoder_for(HostDrafting(CopyDrafter()), "coupled", k=5, target=lm, rows=1)
    decoder.check(one)
    decoder.admit([one], [0])
    found = finish(decoder, rows=[0], prompts=[[START]])
    assert found.texts == [naive(asked(ids))] and found.summary.drafted[0] == 0


@pytest.mark.parametrize("drafter", ["copy", "auto"])
def test_samples_and_waiting_requests_of_an_engine_are_those_of_plain_decoding(drafter):
    target = load(copying_model(EDITS, sharpness=20.0))
    shared = Context({"input_ids": source(5)})
    prompts = [EncoderDecoderPrompt(inputs=shared), source(6, 30).tolist(), EncoderDecoderPrompt(inputs=shared)]
    params = [
        SamplingParams(max_tokens=30, temperature=temperature, seed=7, n=n, ignore_eos=True)
        for temperature, n in ((1.7, 3), (0.0, 1), (0.0, 2))
    ]
    results = {}
    for name in ("none", drafter):
        engine = Engine(target, drafter=name, num_draft_tokens=8, batch_size=2, max_length=64)
        results[name] = engine.generate(prompts, params)
    tokens = {name: [tuple(one.token_ids) for one in found] for name, found in results.items()}
    assert tokens[drafter] == tokens["none"]
    assert len(set(tokens["none"][:3])) > 1, "samples are equal"
    assert total(results[drafter]).mean_acceptance_length > 2


def test_a_target_that_reads_sound_has_nothing_to_copy():
    sound = load(transformers_model("whisper"))
    with pytest.raises(
        ValueError, match=r"'copy' and a target that reads 'input_features'.*no tokens to copy; leave it"
    ):
        Engine(sound, drafter="copy", max_length=32)
    engine = Engine(sound, drafter="auto", max_length=32)
    assert engine.decoder.drafter.origins == ("suffix",)
    texts = Engine(load(transformers_model("t5")), drafter="auto", max_length=32)
    assert texts.decoder.drafter.origins == ("copy", "suffix")
    given = HostDrafting(CopyDrafter(source=[5, 6, 7, 8]))
    assert decoder_for(given, "coupled", target=pair("whisper")[1], rows=1).drafter is given


def test_plain_decoding_says_the_source_with_its_edits():
    """What the other tests rest on."""
    ids = source(8, 25)
    decoder = decoder_for(NoDrafter(), "coupled", target=copier()[1], rows=1)
    one = asked(ids)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[[START]]).texts == [[EDITS.get(token, token) for token in ids.tolist()]]
