"""Transcripts as files: SubRip (srt), WebVTT (vtt), JSON and text."""

from collections.abc import Callable
from dataclasses import asdict

from paceline.speech.transcript import Segment, Transcript
from paceline.text.valid_json import to_json

ARROW = "-->"  # which WebVTT does not allow in a cue


def to_text(transcript: Transcript) -> str:
    """The text, in one line."""
    return f"{transcript.text.strip()}\n"


def to_srt(transcript: Transcript) -> str:
    """Numbered subtitles with times; segments without text are left out."""
    cues = enumerate(_with_text(transcript), start=1)
    return "\n".join(
        f"{number}\n{_time(one.start, ',')} {ARROW} {_time(one.end, ',')}\n{_lines(one)}\n" for number, one in cues
    )


def to_vtt(transcript: Transcript) -> str:
    """Cues with times; segments without text are left out."""
    cues = (
        f"{_time(one.start, '.')} {ARROW} {_time(one.end, '.')}\n{_escaped(_lines(one))}\n"
        for one in _with_text(transcript)
    )
    return "\n".join(("WEBVTT\n", *cues))


def to_object(transcript: Transcript) -> dict[str, object]:
    """What JSON holds: the text, the segments with their times, tokens and statistics, and what it cost."""
    shown: dict[str, object] = {
        "file": transcript.name,
        "language": transcript.language,
        "duration": transcript.seconds,
        "text": transcript.text,
        "segments": [asdict(segment) for segment in transcript.segments],
    }
    shown["encoder_seconds"] = transcript.encoder_seconds
    if transcript.summary is not None:
        shown["tokens_per_step"] = transcript.summary.mean_acceptance_length
        shown["acceptance_rate"] = transcript.summary.acceptance_rate
    if transcript.error is not None:
        shown["error"] = transcript.error
    return shown


def as_json(transcript: Transcript) -> str:
    """One object in one line."""
    return f"{to_json(to_object(transcript))}\n"


WRITERS: dict[str, Callable[[Transcript], str]] = {"text": to_text, "srt": to_srt, "vtt": to_vtt, "json": as_json}


def _with_text(transcript: Transcript) -> list[Segment]:
    return [segment for segment in transcript.segments if segment.text.strip()]


def _lines(segment: Segment) -> str:
    """The text without the empty lines that would end the subtitle."""
    return "\n".join(line for line in segment.text.strip().splitlines() if line.strip())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(seconds: float, mark: str) -> str:
    """HH:MM:SS and milliseconds, to the nearest."""
    whole, milliseconds = divmod(round(max(0.0, seconds) * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{mark}{milliseconds:03}"
