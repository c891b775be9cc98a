"""Encoder-decoders that transformers' own code runs: tokens, drafts, what is read once, and what is refused."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import MvpForConditionalGeneration

import paceline.hf
from paceline.api import Engine, SamplingParams, load, total
from paceline.core.context import Context
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.adapter import encoder_decoder
from paceline.models.adapter.adapt import adapt
from paceline.models.directory import ModelError
from paceline.models.prefill import feed
from tests.harness import decoder_for, expected, finish, request
from tests.models.adapter_models import BOTH_WAYS
from tests.models.encoder_decoders import START, STATES, VOCAB, Naive, context
from tests.models.layouts import close

PROMPT = [START, 5, 40]
PADDING = {"m2m-100": 4, "t5gemma": 0}  # after it whole forwards, which number or mask it not, differ from generate's
SIZES = (7, 1, STATES, 4)


@cache
def adapted(name):
    """(transformers' model, the adapter)."""
    model = BOTH_WAYS[name]()
    return model, adapt(model)


def asked(count=4, **options):
    return [
        replace(request(PROMPT, seed=row, **options), context=context("t5", row, SIZES[row])) for row in range(count)
    ]


class Masked(Naive):
    """With the mask of its source, without which some models take a token for padding."""

    def __init__(self, model, given):
        super().__init__(model, given)
        self.inputs["attention_mask"] = torch.ones_like(self.inputs["input_ids"])


def naive(name, one):
    return expected(one, Masked(adapted(name)[0], one.context))


def drafters(target):
    return {
        "none": NoDrafter(),
        "the target": ModelDrafter(lm=target),
        "a tree": ModelDrafter(lm=target, shape=Topology.branching((2, 2, 1))),
        "ngram": NgramDrafter(),
    }


@pytest.mark.one_in(64)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", drafters(None))
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_rows_of_sources_of_different_lengths_match_plain_forwards(name, drafter, temperature):
    target = adapted(name)[1]
    for count in (4, 1):
        rows = [2, 0, 3, 1][:count] if count == 4 else [0]
        requests = asked(count, temperature=temperature)
        decoder = decoder_for(drafters(target)[drafter], "coupled", target=target, rows=count)
        decoder.admit(requests, rows)
        found = finish(decoder, rows=rows, prompts=[PROMPT] * count)
        for text, one in zip(found.texts, requests, strict=True):
            wanted = naive(name, one)
            end = wanted.index(PADDING[name]) if PADDING.get(name) in wanted else len(wanted)
            assert text[:end] == wanted[:end] and end > 0
        if drafter == "the target":
            assert found.steps == 24 // 4, "its own drafts are accepted"
    several = {tuple(naive(name, one)) for one in asked(temperature=0.0)}
    assert len(several) > 1 or name == "t5gemma", "the sources make no difference"


@torch.no_grad()
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_hidden_states_are_those_of_the_decoder(name):
    model, ours = adapted(name)
    given, tokens = context("t5", 3, 6), torch.randint(VOCAB, (1, 9), generator=torch.Generator().manual_seed(3))
    decoder = decoder_for(NoDrafter(), "coupled", target=ours, rows=1)
    view = decoder.begin([replace(request(tokens[0].tolist()), context=given)], [0])
    cache = decoder.cache.storage.view(view.admission.rows)
    taps = feed(ours, cache, tokens, torch.tensor([9]), 9, taps=range(ours.num_layers + 1)).hidden
    output = model(
        input_ids=given.inputs["input_ids"][None], decoder_input_ids=tokens, output_hidden_states=True, use_cache=False
    )
    for tap in range(ours.num_layers):  # of the last one transformers gives what follows the norm
        close(taps[tap], output.decoder_hidden_states[tap])


def test_sources_are_read_once_and_may_be_given_as_states(monkeypatch):
    model, ours = adapted("mvp")
    read = []
    encode = encoder_decoder._encode
    monkeypatch.setattr(encoder_decoder, "_encode", lambda model, ids: read.append(len(ids)) or encode(model, ids))
    given = context("t5", 55, 5)
    equal = Context({name: tensor.clone() for name, tensor in given.inputs.items()})
    requests = [
        replace(request(PROMPT, temperature=1.0, seed=row), context=one) for row, one in enumerate((given, equal))
    ]
    decoder = decoder_for(NgramDrafter(), "coupled", target=ours, rows=2)
    for _ in range(2):  # a second time for rows that are used again
        decoder.admit(requests, [0, 1])
        found = finish(decoder, rows=[0, 1], prompts=[PROMPT] * 2).texts
        assert found == [naive("mvp", one) for one in requests]
    assert read == [5]
    with torch.no_grad():
        states = model.get_encoder()(input_ids=given.inputs["input_ids"][None]).last_hidden_state[0]
    one = replace(requests[0], context=Context({"encoder_outputs": states}))
    decoder.check(one)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[PROMPT]).texts == found[:1] and read == [5]


def test_positions_that_are_trained_further_take_effect():
    model = BOTH_WAYS["mvp"]()
    ours, one = adapt(model), asked(1)[0]
    before = expected(one, Naive(model, one.context))
    with torch.no_grad():
        model.get_decoder().embed_positions.weight.mul_(-3.0)
    decoder = decoder_for(NgramDrafter(), "coupled", target=ours, rows=1)
    decoder.admit([one], [0])
    after = finish(decoder, rows=[0], prompts=[PROMPT]).texts[0]
    assert after == expected(one, Naive(model, one.context)) != before
    assert "forward" not in vars(model.get_decoder().embed_positions)


def test_a_directory_is_served_and_generate_is_transformers(tmp_path):
    model = BOTH_WAYS["mvp"]().float()
    model.save_pretrained(tmp_path)
    target = load(tmp_path)
    assert target.start == (START,) and target.lm.model.main_input_name == "input_ids"
    ids = [one.context.inputs["input_ids"] for one in asked()]
    texts = [one.tolist() for one in ids]
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    plain = Engine(target, drafter=None).generate(texts, params)
    drafted = Engine(target, drafter=target, num_draft_tokens=3).generate(texts, params)
    assert [one.token_ids for one in plain] == [one.token_ids for one in drafted]
    assert total(drafted).mean_acceptance_length == 4
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    given = {"attention_mask": (torch.arange(padded.shape[1]) < torch.tensor(SIZES)[:, None]).long(), "num_beams": 1}
    own = model.generate(padded, **given, do_sample=False, max_new_tokens=16, forced_eos_token_id=None)
    found = paceline.hf.generate(model, padded, **given, do_sample=False, max_new_tokens=16, forced_eos_token_id=None)
    assert torch.equal(found, own)


def test_what_is_not_text_from_text_is_refused():
    model = BOTH_WAYS["mvp"]()
    with pytest.raises(ModelError, match="MvpForConditionalGeneration is in training mode"):
        adapt(model.train())
    with pytest.raises(ModelError, match=r"no language-model head; load it with AutoModelForSeq2SeqLM"):
        adapt(model.eval().model)
    target = load(model)
    with pytest.raises(ValueError, match=r"context 'input_ids' is int64 \[129\] .* token ids 0\.\.60 \[1\.\.128\]"):
        decoder_for(NoDrafter(), "coupled", target=target.lm).check(
            replace(request(PROMPT), context=context("t5", 1, 129))
        )
    assert MvpForConditionalGeneration.main_input_name == "input_ids"
