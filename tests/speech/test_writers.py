"""Transcripts as text, subtitles and JSON."""

import json

from paceline.speech import Segment, Transcript
from paceline.speech.writers import WRITERS


def segment(start, end, text):
    return Segment(start=start, end=end, text=text, tokens=(1, 2), temperature=0.0, compression_ratio=1.0)


DONE = Transcript(
    name="a.wav",
    seconds=3700.5,
    language="en",
    segments=(
        segment(0.0, 1.5, " One <two> & three."),
        segment(1.5, 2.0, "  "),
        segment(3599.999, 3661.02, " Four\n\nfive"),
    ),
    has_timestamps=True,
    summary=None,
)


def test_subtitles_have_numbers_times_and_no_empty_ones():
    assert WRITERS["srt"](DONE) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne <two> & three.\n\n2\n00:59:59,999 --> 01:01:01,020\nFour\nfive\n"
    )


def test_cues_are_escaped():
    assert WRITERS["vtt"](DONE) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne &lt;two&gt; &amp; three.\n\n"
        "00:59:59.999 --> 01:01:01.020\nFour\nfive\n"
    )


def test_text_is_all_of_it():
    assert WRITERS["text"](DONE) == "One <two> & three.   Four\n\nfive\n"


def test_json_is_one_line():
    (line,) = WRITERS["json"](DONE).splitlines()
    found = json.loads(line)
    assert found["file"] == "a.wav" and found["language"] == "en" and found["duration"] == 3700.5
    assert found["segments"][0] == {
        "start": 0.0,
        "end": 1.5,
        "text": " One <two> & three.",
        "tokens": [1, 2],
        "temperature": 0.0,
        "compression_ratio": 1.0,
        "avg_logprob": None,
        "no_speech_prob": None,
    }
