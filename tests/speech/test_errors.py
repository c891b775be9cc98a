"""What is refused, and that a sound that fails does so alone."""

import json
from shutil import copytree

import numpy as np
import pytest

import paceline
from paceline.api import load
from paceline.speech import SpeechOptions, Transcriber, TranscriptionInterrupted, transcribe
from tests.api.checkpoints import pair
from tests.speech.checkpoints import loaded, sound, whisper


def test_one_bad_sound_fails_alone(tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"nothing")
    sounds = [sound(1.0), tmp_path / "bad.wav", np.zeros(0, np.float32), sound(2.0), tmp_path / "none.wav"]
    found = transcribe(sounds, model=loaded(), max_new_tokens=None)
    assert [one.error is None for one in found] == [True, False, False, True, False]
    assert "no such file" in found[4].error and not found[4].segments
    assert list(found[3].tokens) == whisper().generate(sound(2.0), task="transcribe")[0]


def test_a_long_sound_without_timestamps_fails_alone():
    found = transcribe([sound(3.0), sound(1.0)], model=loaded(), return_timestamps=False)
    assert "sounds of several windows need timestamps" in found[0].error and found[1].error is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "germann"}, "has no token for it; did you mean german"),
        ({"language": "tlh"}, "known: de, en, fr"),
        ({"task": "sing"}, "task='sing': give one of transcribe, translate"),
        ({"temperature": (0.0, 0.5)}, "without a threshold"),
        ({"temperature": (0.5, 0.0), "logprob_threshold": -1}, "rising order"),
        ({"temperature": -1}, "at least 0"),
        ({"temperature": ()}, "one or several"),
        ({"no_speech_threshold": 0.5}, "without logprob_threshold"),
        ({"prompt_condition_type": "all-segments"}, "needs condition_on_prev_tokens=True"),
        ({"prompt_condition_type": "nowhere"}, "give one of first-segment, all-segments"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"seed": -1}, "seed=-1"),
        ({"prompt": "a <|en|> b"}, r"the special token <\|en\|> in it"),
    ],
)
def test_options_that_cannot_be_followed(options, message):
    with pytest.raises(ValueError, match=message):
        transcribe(sound(1.0), model=loaded(), **options)


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match=r"unknown options: speed; known: language, "):
        transcribe(sound(1.0), model=loaded(), speed=2)


@pytest.mark.parametrize("options", [{"language": "de"}, {"task": "translate"}])
def test_a_checkpoint_for_english_alone_has_no_choice(options):
    with pytest.raises(ValueError, match="is for English alone"):
        transcribe(sound(1.0), model=loaded(english=True), **options)
    assert transcribe(sound(1.0), model=loaded(english=True), language="English")[0].error is None


def test_a_text_model_is_refused():
    with pytest.raises(ValueError, match="reads text, not sound: give a Whisper checkpoint"):
        transcribe(sound(1.0), model=load(pair().target))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preprocessor_config.json": None, "processor_config.json": None}, "no preprocessor_config.json"),
        ({"preprocessor_config.json": {"feature_size": 128}}, "128 features"),
        ({"generation_config.json": None}, "No such file"),
        ({"generation_config.json": {"no_timestamps_token_id": None}}, "no no_timestamps_token_id"),
        ({"generation_config.json": {"task_to_id": {}}}, r"task_to_id of generation_config.json \(has: none\)"),
        ({"tokenizer.json": None, "tokenizer_config.json": None}, "has no tokenizer"),
    ],
)
def test_what_a_directory_lacks_is_named(tmp_path, change, message):
    folder = copytree(whisper().directory, tmp_path / "w")
    for name, values in change.items():
        path = folder / name
        if values is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ValueError, match=message):
        Transcriber(folder)


def interrupt_at(step, monkeypatch):
    steps = iter(range(1000))
    advance = paceline.Engine.advance

    def interrupted(engine):
        if next(steps) == step:
            raise KeyboardInterrupt
        advance(engine)

    monkeypatch.setattr(paceline.Engine, "advance", interrupted)


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    interrupt_at(150, monkeypatch)
    with pytest.raises(TranscriptionInterrupted) as caught:
        transcribe([sound(0.5), sound(30.0)], model=loaded(), return_timestamps=True, batch_size=2)
    done, begun = caught.value.transcripts
    assert done.error is None and begun.error == "interrupted" and begun.segments and done.tokens


@pytest.mark.parametrize("timestamps", [False, True])
def test_ctrl_c_keeps_the_window_that_was_being_decoded(monkeypatch, timestamps):
    options = {"return_timestamps": timestamps, "language": "en", "max_new_tokens": 30}
    (whole,) = transcribe(sound(2.0), model=loaded(), **options)
    interrupt_at(12, monkeypatch)
    with pytest.raises(TranscriptionInterrupted) as caught:
        transcribe(sound(2.0), model=loaded(), **options)
    (begun,) = caught.value.transcripts
    assert 5 < len(begun.tokens) <= 12 and begun.error == "interrupted" and begun.summary.steps
    first = whole.segments[0].tokens  # of all that the window's output was, those of complete segments
    assert begun.tokens[: len(first)] == first and len(begun.tokens) > len(first)


def test_ctrl_c_while_a_transcript_is_taken_keeps_the_others():
    given = []

    def ended(number, transcript):
        given.append((number, transcript))
        if len(given) == 1:
            raise KeyboardInterrupt

    transcriber = Transcriber(loaded(), options=SpeechOptions(return_timestamps=True), batch_size=2)
    assert not transcriber.finish([sound(0.5), sound(5.3), sound(1.0)], ended)
    assert [(number, one.error) for number, one in given] == [(0, None), (1, "interrupted")]
    assert given[1][1].segments


def test_options_are_those_of_the_command_line():
    from dataclasses import fields

    from paceline.cli.speech_options import SpeechOptions as Written

    assert SpeechOptions(**{**Written().options(), "temperature": 0.0}) == SpeechOptions()
    assert [one.name for one in fields(Written)] == [one.name for one in fields(SpeechOptions)]
