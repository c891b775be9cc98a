"""Log-probabilities of an encoder-decoder's outputs, given their sources, beside those of transformers."""

import pytest
import torch

from paceline.api import generate, load, perplexity, prompt_logprobs, score
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.models.scoring import Passage, score_passages
from tests.models.encoder_decoders import START, STATES, context, pair, transformers_model

SOURCES = ([4, 9, 22, 7, 31], [8], [5, 5, 40])
OUTPUTS = ([17, 3], [9, 30, 11, 2], [60])


@pytest.fixture(scope="module")
def model():
    return transformers_model("t5")


@torch.no_grad()
def expected(model, source, tokens):
    """Log-probabilities of ``tokens`` after the start token."""
    ids = torch.tensor([[START, *tokens]])
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=ids).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def test_scores_of_ragged_sources_are_transformers(model):
    target = load(model)
    found = score(target, [list(one) for one in SOURCES], [list(one) for one in OUTPUTS], top=2)
    for one, source, tokens in zip(found, SOURCES, OUTPUTS, strict=True):
        assert (one.prompt_tokens, one.tokens) == ((START,), tuple(tokens))
        assert one.logprobs == pytest.approx(expected(model, source, tokens), abs=1e-6)
        assert len(one.top) == len(tokens) and len(one.top[0]) == 2
    (swapped,) = score(target, [list(SOURCES[1])], [list(OUTPUTS[0])])
    assert abs(swapped.total - found[0].total) > 0.1, "the source decides"
    alone = [score(target, [list(s)], [list(t)], batch_size=1)[0] for s, t in zip(SOURCES, OUTPUTS, strict=True)]
    assert [one.logprobs for one in alone] == [pytest.approx(one.logprobs, abs=1e-6) for one in found]


def test_its_own_greedy_output_is_greedy_and_prompts_have_scores(model):
    target = load(model)
    (written,) = generate(target, [[4, 9, 22]], max_tokens=6, temperature=0, ignore_eos=True)
    (one,) = score(target, [[4, 9, 22]], [list(written.token_ids)])
    assert one.greedy
    begun = EncoderDecoderPrompt(inputs=[4, 9, 22], prompt=[START, *written.token_ids[:3]])
    (rest,) = score(target, [begun], [list(written.token_ids[3:])])
    assert rest.logprobs == pytest.approx(one.logprobs[3:], abs=1e-6)
    (prompt,) = prompt_logprobs(target, [begun])
    assert prompt.logprobs[0] is None and prompt.logprobs[1:] == pytest.approx(one.logprobs[:3], abs=1e-6)


def test_sounds_are_scored_too():
    whisper, lm = pair("whisper")
    given = context("whisper", 3)
    (found,) = score_passages(lm, [Passage(tokens=(START, 5, 40), first=1, context=given)])
    with torch.no_grad():
        inputs = {name: tensor[None] for name, tensor in given.inputs.items()}
        logits = whisper(**inputs, decoder_input_ids=torch.tensor([[START, 5]])).logits[0]
    wanted = logits.log_softmax(-1)[[0, 1], [5, 40]].tolist()
    assert found.logprobs == pytest.approx(wanted, abs=1e-6)


def test_what_has_no_source_or_a_wrong_one_is_refused(model):
    target = load(model)
    with pytest.raises(ValueError, match=r"prompt 1: context 'input_ids' is int64 \[21\].*the target reads token ids"):
        score(target, [[4], [5] * (STATES + 1)], [[7], [7]])
    with pytest.raises(ValueError, match=r"reads 'input_ids'.*beside a text: call score"):
        perplexity(target, [[4, 5, 6]])
    with pytest.raises(ValueError, match=r"the request's context gives nothing, and the target reads"):
        score_passages(target.lm, [Passage(tokens=(4, 5), first=1)])
