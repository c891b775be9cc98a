"""Reads sound: files by soundfile or by ffmpeg's libraries (av), and arrays; always one channel at the wanted rate.

Channels are averaged, and other rates are resampled by ffmpeg's libswresample, as ffmpeg itself does it.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from av.container import InputContainer

Samples: TypeAlias = NDArray[np.float32]
AudioLike: TypeAlias = str | os.PathLike[str] | NDArray[Any] | Tensor | Mapping[str, object]

SOUNDFILE = (".wav", ".flac", ".ogg", ".oga", ".aiff", ".aif", ".au", ".w64", ".rf64", ".caf")  # what it reads first
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
        path = Path(source)
        samples, own_rate = _read_file(path)
        name = str(path)
    elif isinstance(source, Mapping):
        samples, own_rate = _read_mapping(source)
        name = "array"
    else:
        samples, own_rate, name = _read_array(source), rate, "array"
    if not len(samples):
        raise AudioError(f"{name}: no samples in it; give a sound that is longer than nothing")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: some samples are NaN or infinite; repair the recording, or convert it to integers")
    return Sound(samples=resample(samples, own_rate, rate), rate=rate)


def name_of(source: AudioLike, index: int) -> str:
    """What messages and outputs call it: the path, or the number of the array."""
    return str(source) if isinstance(source, str | os.PathLike) else f"array {index}"


def resample(samples: Samples, own_rate: int, rate: int) -> Samples:
    """``samples`` [n] at another rate. Raises AudioError without av, which holds the resampler."""
    if own_rate == rate:
        return samples
    if find_spec("av") is None:
        raise AudioError(
            f"{own_rate} samples per second: the model takes {rate}, and resampling needs av; "
            "pip install 'paceline[speech]', or convert the sound"
        )
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    parts: list[Samples] = []
    for start in range(0, len(samples), BLOCK):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + BLOCK], format="flt", layout="mono")
        frame.sample_rate = own_rate
        parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    parts += [part.to_ndarray()[0] for part in resampler.resample(None)]
    return np.concatenate(parts)


def _read_file(path: Path) -> tuple[Samples, int]:
    """Samples and rate of a file: soundfile first for the formats it is made for, av for the others and for what
    soundfile refuses.
    """
    if not path.exists():
        raise AudioError(f"{path}: no such file")
    if not path.is_file():
        raise AudioError(f"{path}: not a file; give the files in it one by one")
    if not path.stat().st_size:
        raise AudioError(f"{path}: the file is empty")
    readers: list[Callable[[Path], tuple[Samples, int]]] = []
    if find_spec("soundfile") is not None and path.suffix.lower() in SOUNDFILE:
        readers.append(_by_soundfile)
    if find_spec("av") is not None:
        readers.append(_by_av)
    if not readers:
        needed = "soundfile or av" if path.suffix.lower() in SOUNDFILE else "av"
        raise AudioError(f"{path}: reading it needs {needed}; pip install 'paceline[speech]'")
    for reader in readers[:-1]:
        try:
            return reader(path)
        except AudioError:
            continue
    return readers[-1](path)


def _by_soundfile(path: Path) -> tuple[Samples, int]:
    import soundfile

    try:
        channels, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{path}: not a sound that soundfile reads ({error.error_string}); convert it") from error
    return _mixed(np.asarray(channels.T, np.float32)), rate


def _by_av(path: Path) -> tuple[Samples, int]:
    import av
    import av.error

    try:
        with av.open(str(path), mode="r", metadata_errors="ignore") as container:
            if not container.streams.audio:
                kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "none"
                raise AudioError(f"{path}: no audio stream in it (streams: {kinds}); give a file with sound")
            rate = container.streams.audio[0].rate
            parts = list(_decoded(container))
    except av.error.FFmpegError as error:
        raise AudioError(
            f"{path}: not a sound that ffmpeg's libraries read ({error.strerror}); convert it: ffmpeg -i FILE out.wav"
        ) from error
    return np.concatenate(parts) if parts else np.empty(0, np.float32), rate


def _decoded(container: "InputContainer") -> Iterator[Samples]:
    """The mixed samples of every frame of the first audio stream."""
    import av

    planes = av.AudioResampler(format="fltp")
    for frame in container.decode(audio=0):
        for part in planes.resample(frame):
            yield _mixed(np.asarray(part.to_ndarray(), np.float32))


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
    return _mixed(array.astype(np.float32))


def _mixed(channels: Samples) -> Samples:
    """The mean [n] of ``channels`` [C, n]."""
    return channels[0] if len(channels) == 1 else channels.mean(axis=0, dtype=np.float32)
