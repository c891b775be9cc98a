"""Reads sound: files by ffmpeg's libraries (av) or, without them, by soundfile; and arrays. One channel at one rate.

Files are decoded, mixed and resampled as ffmpeg does it for transformers' pipeline, block by block: however long and of
however many channels, only the result is held, once. The channels of arrays are averaged, as the pipeline does it.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from av import AudioFrame
    from av.container import InputContainer
    from av.stream import Stream

logger = logging.getLogger("paceline")

Samples: TypeAlias = NDArray[np.float32]
AudioLike: TypeAlias = str | os.PathLike[str] | NDArray[Any] | Tensor | Mapping[str, object]

SOUNDFILE = (".wav", ".flac", ".ogg", ".oga", ".aiff", ".aif", ".au", ".w64", ".rf64", ".caf")
MOST_CHANNELS = 32  # an array of more rows is one whose axes are the wrong way round
BLOCK = 1 << 16  # samples that are resampled at once
ARRAYS = ("array", "raw")  # names of the samples in a mapping, as datasets and the pipelines of transformers have them


class AudioError(ValueError):
    """A sound that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sound:
    """Samples [n] of one channel, float32, nominally in [-1, 1], at ``rate`` per second."""

    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        """Its duration."""
        return len(self.samples) / self.rate


def read_sound(source: AudioLike, rate: int) -> Sound:
    """The sound of a file, or of an array, at ``rate`` samples per second.

    An array is [n] or [channels, n], of floating-point numbers and at ``rate``; one of another rate is given as
    {"array": ..., "sampling_rate": ...}. Raises AudioError, naming the file, for a file that is missing, empty, no
    sound or without an audio stream, and for samples that are none or not finite.
    """
    if isinstance(source, str | os.PathLike):
        name, blocks = str(source), _read_file(Path(source), rate)
    elif isinstance(source, Mapping):
        samples, own_rate = _read_mapping(source)
        name, blocks = "array", resampled(_blocks(samples), own_rate, rate)
    else:
        name, blocks = "array", _blocks(_read_array(source))
    joined = bytearray()  # which grows in place, so that no second copy is made
    for block in blocks:
        joined += block.tobytes()
    samples = np.frombuffer(joined, np.float32)
    if not len(samples):
        raise AudioError(f"{name}: no samples in it; give a sound that is longer than nothing")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: some samples are NaN or infinite; repair the recording, or convert it to integers")
    return Sound(samples=samples, rate=rate)


def name_of(source: AudioLike, index: int) -> str:
    """What messages and outputs call it: the path, or the number of the array."""
    return str(source) if isinstance(source, str | os.PathLike) else f"array {index}"


def resampled(blocks: Iterable[Samples], own_rate: int, rate: int) -> Iterator[Samples]:
    """Blocks [n] of one sound at another rate. Raises AudioError without av, which holds the resampler."""
    if own_rate == rate:
        yield from blocks
        return
    if find_spec("av") is None:
        raise AudioError(
            f"{own_rate} samples per second: the model takes {rate}, and resampling needs av; "
            "pip install 'paceline[speech]', or convert the sound"
        )
    import av

    def frames() -> "Iterator[AudioFrame]":
        for block in blocks:
            frame = av.AudioFrame.from_ndarray(block[None], format="flt", layout="mono")
            frame.sample_rate = own_rate
            yield frame

    yield from mixed_by_av(frames(), rate)


def _blocks(samples: Samples) -> Iterator[Samples]:
    return (samples[start : start + BLOCK] for start in range(0, len(samples), BLOCK))


def _read_file(path: Path, rate: int) -> Iterator[Samples]:
    """The mixed samples of a file, in blocks."""
    if not path.exists():
        raise AudioError(f"{path}: no such file")
    if not path.is_file():
        raise AudioError(f"{path}: not a file; give the files in it one by one")
    if not path.stat().st_size:
        raise AudioError(f"{path}: the file is empty")
    simple = path.suffix.lower() in SOUNDFILE
    if find_spec("av") is not None:
        return _by_av(path, rate)
    if find_spec("soundfile") is not None and simple:
        return _by_soundfile(path, rate)
    needed = "soundfile or av" if simple else "av"
    raise AudioError(f"{path}: reading it needs {needed}; pip install 'paceline[speech]'")


def _by_soundfile(path: Path, rate: int) -> Iterator[Samples]:
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            blocks = file.blocks(BLOCK, always_2d=True, dtype="float32")
            # As ffmpeg mixes stereo to floating-point numbers: to the power of both channels.
            factor = np.float32(2**0.5 if file.channels == 2 else 1.0)
            mixed = (factor * _mean(np.asarray(block.T, np.float32)) for block in blocks)
            yield from resampled(mixed, file.samplerate, rate)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{path}: not a sound that soundfile reads ({error.error_string}); convert it") from error


def _by_av(path: Path, rate: int) -> Iterator[Samples]:
    import av
    import av.error

    try:
        with av.open(str(path), mode="r", metadata_errors="ignore") as container:
            best = container.streams.best("audio")
            if best is None:
                kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "none"
                raise AudioError(f"{path}: no audio stream in it (streams: {kinds}); give a file with sound")
            yield from mixed_by_av(decoded(container, best, path), rate)
    except av.error.FFmpegError as error:
        raise AudioError(
            f"{path}: not a sound that ffmpeg's libraries read ({error.strerror}); convert it: ffmpeg -i FILE out.wav"
        ) from error


def decoded(container: "InputContainer", stream: "Stream", path: str | Path) -> "Iterator[AudioFrame]":
    """The frames of an audio stream; damaged packets are passed over, as ffmpeg does, unless all are."""
    from av.error import InvalidDataError

    sound, damaged = False, None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except InvalidDataError as error:
            damaged = error
            continue
        sound |= bool(frames)
        yield from cast("list[AudioFrame]", frames)
    if damaged is not None:
        if not sound:
            raise damaged
        logger.warning("%s: some of it is damaged and left out", path)


def mixed_by_av(frames: "Iterable[AudioFrame]", rate: int) -> Iterator[Samples]:
    """The samples of frames, of one channel and at ``rate``."""
    import av

    mixer = av.AudioResampler(format="flt", layout="mono", rate=rate)
    for frame in frames:
        yield from (part.to_ndarray()[0] for part in mixer.resample(frame))
    yield from (part.to_ndarray()[0] for part in mixer.resample(None))


def _read_mapping(source: Mapping[str, object]) -> tuple[Samples, int]:
    array = next((source[name] for name in ARRAYS if name in source), None)
    rate = source.get("sampling_rate")
    if array is None or rate is None:
        raise AudioError(f"a mapping with {', '.join(map(repr, source))}: give 'array' and 'sampling_rate'")
    if not isinstance(rate, int) or isinstance(rate, bool) or rate < 1:
        raise AudioError(f"sampling_rate={rate!r}: give a positive count of samples per second")
    return _read_array(cast("NDArray[Any]", array)), rate


def _read_array(array: "NDArray[Any] | Tensor") -> Samples:
    """One channel of [n] or [channels, n]."""
    if isinstance(array, Tensor):
        array = array.detach().cpu().numpy()
    if not isinstance(array, np.ndarray):
        raise AudioError(
            f"a {type(array).__name__} is no sound: give a path, an array of samples, or a mapping with 'array' and "
            "'sampling_rate'"
        )
    if not np.issubdtype(array.dtype, np.floating):
        raise AudioError(
            f"samples of {array.dtype}: give floating-point numbers in [-1, 1]; 16-bit integers are divided by 32768"
        )
    if array.ndim == 1:
        return array.astype(np.float32)
    if array.ndim != 2 or not 1 <= len(array) <= MOST_CHANNELS:
        raise AudioError(
            f"samples {list(array.shape)}: give [n], or [channels, n] of at most {MOST_CHANNELS} channels; transpose it"
        )
    return _mean(array.astype(np.float32))


def _mean(channels: Samples) -> Samples:
    """The mean [n] of ``channels`` [C, n]."""
    return channels[0] if len(channels) == 1 else channels.mean(axis=0, dtype=np.float32)
