"""The rules of timestamps against transformers' processor, over random prefixes and over prefixes that keep them."""

import random

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from paceline.speech.timestamps import Timestamps
from tests.speech.checkpoints import loaded, whisper

PROMPT = 3  # tokens before the output


def both(**said):
    """Ours and transformers', for one checkpoint, with the id of the first timestamp and the vocabulary's size."""
    from paceline.speech.model import speech_model

    checkpoint = speech_model(loaded(0, **said)).checkpoint
    config = whisper(0, **said).model.generation_config
    assert isinstance(config, GenerationConfig)
    ours = Timestamps(checkpoint).begin([0] * PROMPT)
    return ours, WhisperTimeStampLogitsProcessor(config, begin_index=PROMPT), checkpoint


def outputs(first, size, seed):
    """Prefixes of every kind: texts, single and paired timestamps, also falling ones."""
    choose = random.Random(seed)
    for _ in range(60):
        length = choose.randrange(7)
        yield [
            choose.choice(
                (choose.randrange(first - 5), choose.randrange(first, size), choose.randrange(first, first + 4))
            )
            for _ in range(length)
        ]


@pytest.mark.parametrize("scale", [0.3, 6.0])
@pytest.mark.parametrize("most", [None, 0, 20])
def test_every_prefix_leaves_the_tokens_that_transformers_leaves(most, scale):
    ours, theirs, checkpoint = both(max_initial_timestamp_index=most)
    first, size = checkpoint.first_timestamp, checkpoint.vocab_size
    torch.manual_seed(0)
    texts = stamps = 0
    for output in outputs(first, size, 1):
        logits = scale * torch.randn(size)
        logits[3:5] = -torch.inf  # suppressed
        tokens = torch.tensor([*range(PROMPT), *output])
        wanted = theirs(tokens[None], logits[None])[0]
        assert torch.equal(ours.process(tokens, logits.clone()), wanted)
        texts += bool((wanted[:first] > -torch.inf).any())
        stamps += bool((wanted[:first] == -torch.inf).all())
    assert texts and stamps


def test_timestamps_may_be_left_to_single_probabilities():
    ours, theirs, checkpoint = both(_detect_timestamp_from_logprob=False)
    tokens = torch.tensor([*range(PROMPT), checkpoint.first_timestamp, 7])
    logits = torch.randn(checkpoint.vocab_size)
    given = ours.process(tokens, logits.clone())
    assert torch.equal(given, theirs(tokens[None], logits[None])[0]) and bool((given[:3] > -torch.inf).all())


def test_logits_of_more_precision_are_compared_as_transformers_compares_them():
    ours, theirs, checkpoint = both()
    tokens, logits = torch.tensor([*range(PROMPT), checkpoint.first_timestamp, 7]), torch.randn(checkpoint.vocab_size)
    given = ours.process(tokens, logits.double())
    assert torch.equal(given > -torch.inf, theirs(tokens[None], logits[None])[0] > -torch.inf)
