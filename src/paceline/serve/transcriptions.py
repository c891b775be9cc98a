"""Routes of sounds: ``/v1/audio/transcriptions`` and ``/v1/audio/translations``, for encoder-decoders that hear."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Annotated, Any

from fastapi import FastAPI, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from paceline.serve.errors import ApiError
from paceline.serve.generation import Server
from paceline.serve.guard import client_of
from paceline.speech.async_transcription import asking, transcribed
from paceline.speech.model import SpeechModel, speech_model
from paceline.speech.options import SpeechOptions
from paceline.speech.transcript import Transcript
from paceline.speech.uploads import read_upload
from paceline.speech.writers import to_srt, to_vtt

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
TIMED = ("srt", "vtt", "verbose_json")


def add_transcription_routes(app: FastAPI, server: Server) -> None:
    """Let ``app`` transcribe by the engine of ``server``, if its model hears."""

    @cache
    def model() -> SpeechModel:
        return speech_model(server.engine.engine.target)

    async def answer(request: Request, task: str, file: UploadFile, fields: dict[str, Any]) -> Response:
        form = await request.form()
        name = next((key for key in form if key not in ("file", "timestamp_granularities[]", *fields)), None)
        if name is not None:
            raise ApiError(400, f"{name}: no such field of {task}; leave it out", param=name)
        server.check_model(fields["model"])
        shape, temperature = fields["response_format"] or "json", fields["temperature"] or 0.0
        if shape not in FORMATS:
            raise ApiError(
                400, f"response_format={shape!r:.80}: give one of {', '.join(FORMATS)}", param="response_format"
            )
        if fields["stream"]:
            raise ApiError(400, "stream=true: transcripts are whole: leave it out", param="stream")
        if not math.isfinite(temperature) or not 0 <= temperature <= 1:
            raise ApiError(400, f"temperature={temperature}: give a number from 0 to 1", param="temperature")
        for granularity in form.getlist("timestamp_granularities[]"):
            if granularity != "segment":
                reason = f"timestamp_granularities={granularity!r:.80}: only segments have times: give segment"
                raise ApiError(400, reason, param="timestamp_granularities")
        if fields["prompt"] is not None:
            server.check_text(fields["prompt"], "prompt")
        options = SpeechOptions(
            task=task,
            language=fields["language"] or None,
            prompt=fields["prompt"] or None,
            temperature=temperature,
            return_timestamps=True if shape in TIMED else None,
            seed=fields["seed"] or 0,
        )
        if not server.engine.engine.target.lm.context_inputs:
            raise ApiError(400, f"{server.settings.names[0]} reads no sound: serve a Whisper checkpoint", param="model")
        hears, limits = await asyncio.to_thread(model), server.settings.limits
        data = await file.read()
        try:
            sound = await asyncio.to_thread(read_upload, data, hears.features.rate, most_seconds=limits.sound_seconds)
        except ValueError as error:
            raise ApiError(400, str(error), param="file") from error
        generate = asking(server.engine, client=client_of(request), timeout=limits.seconds)
        return _response(await transcribed(sound, hears, options, generate), shape, task)

    def route(task: str) -> Callable[..., Awaitable[Response]]:
        async def transcribe(
            request: Request,
            file: UploadFile,
            model: Annotated[str | None, Form()] = None,
            language: Annotated[str | None, Form()] = None,
            prompt: Annotated[str | None, Form()] = None,
            response_format: Annotated[str | None, Form()] = None,
            temperature: Annotated[float | None, Form()] = None,
            seed: Annotated[int | None, Form(ge=0)] = None,
            stream: Annotated[bool | None, Form()] = None,
        ) -> Response:
            fields = {"model": model, "language": language, "prompt": prompt, "response_format": response_format}
            more = {"temperature": temperature, "seed": seed, "stream": stream}
            return await answer(request, task, file, fields | more)

        return transcribe

    for name, task in (("transcriptions", "transcribe"), ("translations", "translate")):
        app.post(f"/v1/audio/{name}", name=name)(route(task))


def _response(found: Transcript, shape: str, task: str) -> Response:
    text = found.text.strip()
    if shape == "text":
        return PlainTextResponse(f"{text}\n")
    if shape in ("srt", "vtt"):
        return PlainTextResponse(to_srt(found) if shape == "srt" else to_vtt(found))
    usage = {"type": "duration", "seconds": math.ceil(found.seconds)}
    if shape == "json":
        return JSONResponse({"text": text, "usage": usage})
    segments = [
        {
            "id": number,
            "seek": 0,
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "tokens": list(segment.tokens),
            "temperature": segment.temperature,
            "avg_logprob": segment.avg_logprob,
            "compression_ratio": segment.compression_ratio,
            "no_speech_prob": segment.no_speech_prob,
        }
        for number, segment in enumerate(found.segments)
    ]
    head = {"task": task, "language": found.language or "en", "duration": found.seconds, "text": text}
    return JSONResponse({**head, "segments": segments, "usage": usage})
