"""What a sound asks for, window after window, without a model."""

import torch

from paceline.speech import SpeechOptions
from paceline.speech.model import speech_model
from paceline.speech.start import read_start
from paceline.speech.statistics import compression_ratio
from paceline.speech.windows import Answer, Windows
from tests.speech.checkpoints import POSITIONS, loaded

FRAMES = 200  # of a window


def windows(frames, **options):
    checkpoint = speech_model(loaded()).checkpoint
    given = SpeechOptions(language="en", **options)
    return checkpoint, Windows(
        torch.zeros(80, frames), checkpoint=checkpoint, options=given, start=read_start(checkpoint, given)
    )


def answered(found, outputs):
    """The prompts that were asked after, given these outputs."""
    asks, prompts = found.run(), []
    ask = next(asks)
    for output in outputs:
        prompts.append(ask.prompt)
        try:
            ask = asks.send(Answer(tokens=tuple(output)))
        except StopIteration:
            return prompts
    raise AssertionError("it asks for more")


def test_compression_is_of_the_output_with_its_end():
    checkpoint, found = windows(FRAMES)
    output = (5, 6, 7, checkpoint.eos)
    answered(found, [output])
    (one,) = found.found
    assert one.cut.tokens == output[:-1]
    assert one.attempt.compression_ratio == compression_ratio(output, checkpoint.vocab_size)


def test_the_text_before_is_as_much_of_its_end_as_half_of_the_positions_holds():
    checkpoint, found = windows(9 * FRAMES, condition_on_prev_tokens=True)
    first = checkpoint.first_timestamp
    outputs = [[first, *range(5 * number, 5 * number + 5), first + 100] for number in range(9)]
    prompts = answered(found, outputs)
    start = prompts[0]
    for number, prompt in enumerate(prompts):
        text = [token for output in outputs[:number] for token in output]
        before = [checkpoint.previous, *text[-(POSITIONS // 2 - 1) :]] if number else []
        assert prompt == (*before, *start)


def test_an_interrupted_window_is_kept_once():
    checkpoint, found = windows(2 * FRAMES)
    first = checkpoint.first_timestamp
    asks = found.run()
    next(asks)
    found.keep((first, 5, 6), 0.0)
    assert [one.cut.tokens for one in found.found] == [(first, 5, 6)]
    _, found = windows(FRAMES)
    answered(found, [(5, 6, checkpoint.eos)])
    found.keep((5, 6), 0.0)  # it was decided about
    assert len(found.found) == 1
