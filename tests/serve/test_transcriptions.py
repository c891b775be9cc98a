"""Sounds that are sent: the words of the offline transcriber, in every format; no other files are read."""

import asyncio
import io
from contextlib import asynccontextmanager
from functools import cache

import httpx
import numpy as np
import openai
import pytest
import soundfile

import paceline
from paceline.api import Engine
from paceline.serve.app import make_app
from paceline.serve.settings import Limits, Settings
from paceline.speech.uploads import kind_of
from paceline.speech.writers import to_srt, to_vtt
from tests.serve.served import running
from tests.speech.checkpoints import RATE, Whisper

PATH = "/v1/audio/transcriptions"


@cache
def whisper():
    return Whisper(1)


@cache
def sound(seconds=1.5, kind="WAV"):
    """The content of a file."""
    written = io.BytesIO()
    samples = np.random.default_rng(3).standard_normal(int(seconds * RATE)).astype(np.float32) / 9
    soundfile.write(written, samples, RATE, format=kind, subtype="PCM_16")
    return written.getvalue()


def offline(**options):
    samples, rate = soundfile.read(io.BytesIO(sound()), dtype="float32")
    assert rate == RATE
    (found,) = paceline.transcribe(samples, model=whisper().loaded, language="en", **options)
    assert found.error is None
    return found


@asynccontextmanager
async def serving(limits=None):
    served = Engine(whisper().loaded, batch_size=2)
    app = make_app(served, Settings(names=("tiny",), limits=limits or Limits()))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            yield client


async def asked(client, data=None, path=PATH, **fields):
    files = {"file": ("../../etc/passwd", sound() if data is None else data)}
    return await client.post(path, files=files, data={"language": "en", **fields})


def test_transcripts_are_those_of_the_transcriber():
    async def check():
        plain, timed = offline(), offline(return_timestamps=True)
        async with serving() as client:
            several = await asyncio.gather(*(asked(client) for _ in range(4)))
            assert [one.json()["text"] for one in several] == [plain.text.strip()] * 4 and plain.text.strip()
            assert (await asked(client, response_format="text")).text == f"{plain.text.strip()}\n"
            assert (await asked(client, response_format="srt")).text == to_srt(timed)
            assert (await asked(client, response_format="vtt")).text == to_vtt(timed)
            verbose = (await asked(client, response_format="verbose_json")).json()
            assert [one["tokens"] for one in verbose["segments"]] == [list(one.tokens) for one in timed.segments]
            assert verbose["language"] == "en" and verbose["duration"] == 1.5
            theirs = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=client, max_retries=0)
            file = ("a.wav", sound())
            found = await theirs.audio.transcriptions.create(model="tiny", file=file, language="en")
            assert found.text == plain.text.strip()
            flac = await asked(client, data=sound(kind="FLAC"))
            assert flac.json()["text"] == plain.text.strip()
            translated = await asked(client, path="/v1/audio/translations")
            assert translated.json()["text"] == offline(task="translate").text.strip()

    running(check())


REFUSED = [  # content, fields, field, what is said
    (b"#EXTM3U\nfile:///etc/passwd", {}, "file", "of no kind that is taken"),
    (b"ffconcat version 1.0\nfile /etc/passwd", {}, "file", "of no kind that is taken"),
    (b"", {}, "file", "of no kind that is taken"),
    (b"RIFF\0\0\0\0WAVE" + b"x" * 100, {}, "file", "file: "),
    (None, {"response_format": "xml"}, "response_format", "response_format='xml': give one of json"),
    (None, {"temperature": "7"}, "temperature", "temperature=7.0: give a number from 0 to 1"),
    (None, {"temperature": "nan"}, "temperature", "give a number from 0 to 1"),
    (None, {"stream": "true"}, "stream", "transcripts are whole"),
    (None, {"beams": "4"}, "beams", "no such field"),
    (None, {"language": "xx"}, None, "xx"),
    (None, {"timestamp_granularities[]": "word"}, "timestamp_granularities", "only segments have times"),
]


def test_what_is_refused_of_sounds():
    async def check():
        async with serving() as client:
            for data, fields, field, said in REFUSED:
                response = await asked(client, data, **fields)
                error = response.json()["error"]
                assert response.status_code == 400 and error["param"] == field and said in error["message"], error
        async with serving(Limits(sound_seconds=1.0)) as client:
            error = (await asked(client)).json()["error"]
            assert error["message"] == "file: longer than 1 seconds, which is what is taken"

    running(check())


@pytest.mark.parametrize("start", [b"#EXTM3U", b"ffconcat", b"v=0\r\n", b"<?xml", b"\xff\x00", b""])
def test_kinds_that_name_other_files_are_not_taken(start):
    assert kind_of(start + b" file:///etc/passwd") is None
