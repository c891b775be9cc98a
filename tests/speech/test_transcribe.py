"""Transcripts against transformers' ``generate`` and pipeline: token by token, with and without a draft."""

import subprocess
from shutil import which

import numpy as np
import pytest
import torch

import paceline
from paceline.speech import transcribe
from paceline.speech.audio import read_sound
from tests.speech.checkpoints import RATE, loaded, near, sound, whisper

SHORT, LONG = (0.3, 2.0), (2.1, 5.3)
TINY = 1e-4  # a temperature that is above 0 and still gives the likeliest token


def check(sounds, *, seed=0, english=False, own=None, **options):
    """Compare every sound's tokens and segments with transformers'; the transcripts."""
    kinds = {"english": True} if english else {}
    theirs = dict(options) if english else {"task": "transcribe", **options}
    found = transcribe(list(sounds), model=loaded(seed, **kinds), max_new_tokens=None, **options, **(own or {}))
    for samples, transcript in zip(sounds, found, strict=True):
        assert transcript.error is None
        tokens, segments = whisper(seed, **kinds).generate(samples, **theirs)
        assert list(transcript.tokens) == tokens
        assert [(one.start, one.end) for one in transcript.segments] == segments
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_short_sounds_without_timestamps(seed):
    check([sound(seconds, seed) for seconds in SHORT], seed=seed, return_timestamps=False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_short_and_long_sounds_with_timestamps_in_one_batch(seed):
    found = check([sound(seconds, seed) for seconds in SHORT + LONG], seed=seed, return_timestamps=True)
    assert len({len(one.segments) for one in found}) > 2  # they end at different steps


@pytest.mark.one_in(3)
@pytest.mark.parametrize("draft", [None, 1])
def test_speech_tones_and_silence(tmp_path, draft):
    """Three made files: what espeak-ng says, where it is installed; tones; silence."""
    sounds = [sound(4.5, 9), np.zeros(3 * RATE, np.float32)]
    if which("espeak-ng") is not None:
        path = tmp_path / "speech.wav"
        subprocess.run(["espeak-ng", "-w", str(path), "The quick brown fox jumps over the lazy dog."], check=True)
        sounds.append(read_sound(path, RATE).samples)
    check(sounds, return_timestamps=True, own={"drafter": None if draft is None else loaded(draft)})


def test_long_sounds_have_timestamps_without_being_asked():
    samples = sound(5.3)
    (found,) = transcribe(samples, model=loaded(), max_new_tokens=None)
    assert found.has_timestamps and list(found.tokens) == whisper().generate(samples, task="transcribe")[0]
    assert not transcribe(sound(1.0), model=loaded())[0].has_timestamps


@pytest.mark.one_in(3)
@pytest.mark.parametrize("language", ["en", "german", "<|fr|>", None])
def test_languages_are_given_or_detected(language):
    (found,) = check([sound(1.5, 3)], language=language, return_timestamps=True)
    assert found.language == {"en": "en", "german": "de", "<|fr|>": "fr"}.get(language, found.language)


def test_every_sound_has_its_own_language():
    assert len({one.language for one in check([sound(1.0, seed) for seed in range(6)], return_timestamps=True)}) > 1


def test_translation_has_another_prompt():
    samples = sound(2.0, 2)
    (found,) = transcribe(samples, model=loaded(1), task="translate", language="de", max_new_tokens=None)
    tokens, _ = whisper(1).generate(samples, task="translate", language="de")
    assert list(found.tokens) == tokens
    assert tokens != list(transcribe(samples, model=loaded(1), language="de", max_new_tokens=None)[0].tokens)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("timestamps", [False, True])
def test_a_checkpoint_for_english_alone(timestamps):
    (found,) = check([sound(1.5)], english=True, return_timestamps=timestamps)
    assert found.language is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(2))
def test_windows_are_conditioned_on_the_text_before(seed):
    samples = sound(5.0, seed)
    (found,) = check([samples], seed=seed, condition_on_prev_tokens=True)
    assert found.tokens != transcribe(samples, model=loaded(seed), max_new_tokens=None)[0].tokens


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"condition_on_prev_tokens": True},
        {"condition_on_prev_tokens": True, "prompt_condition_type": "all-segments"},
    ],
    ids=["every window", "before the text", "every window and the text"],
)
def test_prompts(how):
    whole, samples = whisper(1), sound(4.5, 1)
    ids = torch.tensor(whole.tokenizer.get_prompt_ids(" A B"))
    (found,) = transcribe(samples, model=loaded(1), prompt=" A B", max_new_tokens=None, **how)
    tokens, segments = whole.generate(samples, task="transcribe", prompt_ids=ids, **how)
    assert list(found.tokens) == tokens
    assert found.tokens != transcribe(samples, model=loaded(1), max_new_tokens=None)[0].tokens
    assert [(one.start, one.end) for one in found.segments] == segments


def thresholds(**options):
    """Those that some windows of a long sound miss and others do not, by their compression and by their probability."""
    options = {"logprob_threshold": -99.0, "max_new_tokens": None, **options}
    found = transcribe(sound(5.0), model=loaded(), **options)[0].segments
    ratios, means = ({round(getattr(one, name), 5) for one in found} for name in ("compression_ratio", "avg_logprob"))
    assert len(ratios) > 1 and len(means) > 1
    return {
        "compression_ratio_threshold": (min(ratios) + max(ratios)) / 2,
        "logprob_threshold": (min(means) + max(means)) / 2,
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("which", ["compression_ratio_threshold", "logprob_threshold"])
def test_windows_that_fail_a_threshold_are_tried_at_the_next_temperature(which):
    given = {which: thresholds(condition_on_prev_tokens=True)[which]}
    (found,) = check([sound(5.0)], temperature=(0.0, TINY), condition_on_prev_tokens=True, **given)
    assert {one.temperature for one in found.segments} == {0.0, TINY}
    for one in found.segments:
        assert one.avg_logprob is None or which == "logprob_threshold"


def test_a_high_temperature_ends_conditioning():
    """The text of a window that needed one is no prompt. At the temperature, only the likeliest token is kept."""
    options = {"temperature": (0.0, 0.7), "condition_on_prev_tokens": True, "compression_ratio_threshold": 0.0}
    kinds = {"top_k": 1}
    samples = sound(5.0)
    (found,) = transcribe(samples, model=loaded(**kinds), max_new_tokens=None, **options)
    assert list(found.tokens) == whisper(**kinds).generate(samples, task="transcribe", **options)[0]
    (unconditioned,) = transcribe(samples, model=loaded(**kinds), max_new_tokens=None)
    assert found.tokens == unconditioned.tokens


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_windows_without_speech_are_skipped(threshold):
    given = {"logprob_threshold": thresholds()["logprob_threshold"], "no_speech_threshold": threshold}
    (found,) = check([sound(5.0)], temperature=0.0, **given)
    whole = transcribe(sound(5.0), model=loaded())[0]
    assert (len(found.tokens) < len(whole.tokens)) == (threshold == 0.0)


def test_statistics_are_of_the_target():
    options = {"logprob_threshold": -99.0, "return_timestamps": True, "max_new_tokens": None}
    plain = transcribe(sound(4.0), model=loaded(), **options)[0]
    for drafter in ("ngram", near()):
        drafted = transcribe(sound(4.0), model=loaded(), drafter=drafter, num_draft_tokens=4, **options)[0]
        assert drafted.tokens == plain.tokens
        for one, other in zip(plain.segments, drafted.segments, strict=True):
            assert one.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-6)
            assert one.compression_ratio == other.compression_ratio


@pytest.mark.each_value
@pytest.mark.parametrize("drafter", ["ngram", "itself", "near"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_draft_changes_no_token(drafter, batch_size):
    chosen = {"ngram": "ngram", "itself": loaded(), "near": near()}[drafter]
    sounds = [sound(seconds, 5) for seconds in (0.5, 2.0, 3.1)]
    found = check(
        sounds,
        return_timestamps=True,
        own={"drafter": chosen, "num_draft_tokens": 3, "batch_size": batch_size},
    )
    counts = [one.summary for one in found]
    assert sum(sum(one.drafted) for one in counts) > 0
    assert all(0 < one.encoder_seconds < 60 for one in found)
    accepted = sum(sum(one.accepted) for one in counts) / sum(sum(one.drafted) for one in counts)
    assert accepted > 0.1


def test_a_draft_model_may_have_another_size():
    small = loaded(7, shape=(("d_model", 16), ("decoder_layers", 1)))
    own = {"drafter": small, "num_draft_tokens": 3}
    for found in check([sound(2.0), sound(5.3)], return_timestamps=True, own=own):
        assert sum(found.summary.drafted)
    engine = paceline.Engine(loaded(), drafter=small, batch_size=1)
    states = paceline.EncoderDecoderPrompt(inputs={"encoder_outputs": torch.zeros(9, 32).double()}, prompt=[1])
    with pytest.raises(ValueError, match=r"the draft model cannot read it: .*encoder_outputs.*another draft model"):
        engine.generate(states)


def test_suppressed_tokens_are_not_drafted():
    """The rules of timestamps are the target's alone, so the same model drafts worse where they hold."""
    sounds = [sound(seconds, 5) for seconds in (0.5, 2.0, 1.3)]
    own = {"drafter": loaded(), "num_draft_tokens": 3}
    for found in check(sounds, return_timestamps=False, own=own):
        assert found.summary.acceptance_rate == 1.0


def test_words_are_those_of_the_pipeline():
    from transformers import pipeline

    whole = whisper()
    pipe = pipeline(
        "automatic-speech-recognition",
        model=whole.model,
        tokenizer=whole.tokenizer,
        feature_extractor=whole.extractor,
        num_beams=1,
        dtype=torch.float64,
    )
    for seconds in (2.0, 4.1):
        samples = sound(seconds, 4)
        given = pipe(
            {"raw": samples, "sampling_rate": RATE}, return_timestamps=True, generate_kwargs={"task": "transcribe"}
        )
        assert transcribe(samples, model=loaded(), return_timestamps=True)[0].text == given["text"]


def test_seeds_decide_at_temperatures():
    options = {"temperature": 1.0, "return_timestamps": True}
    one, same, other = (transcribe(sound(3.0), model=loaded(), seed=seed, **options)[0] for seed in (1, 1, 2))
    assert one.tokens == same.tokens != other.tokens


def test_progress_ends_at_the_length_of_each_sound():
    seen = {}
    transcribe(
        [sound(1.0), sound(5.3)],
        model=loaded(),
        progress=lambda number, done, of: seen.setdefault(number, []).append((done, of)),
    )
    for number, seconds in enumerate((1.0, 5.3)):
        done = [one for one, _ in seen[number]]
        assert done == sorted(done) and done[-1] == seconds and {of for _, of in seen[number]} == {seconds}
    assert len(seen[1]) > 2
