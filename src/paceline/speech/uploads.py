"""Reads sounds that somebody sent: from memory, of known kinds alone, and no longer than allowed.

The kind is told by the first bytes and then given to ffmpeg's libraries. Left to guess, they would also take playlists,
which name other files and addresses.
"""

import io
from importlib.util import find_spec

import numpy as np

from paceline.speech.audio import AudioError, Sound, decoded, mixed_by_av

NAME = "file"  # in messages


def kind_of(data: bytes) -> str | None:
    """The name of ffmpeg's demuxer for a file of ``data``; None for a kind that is not taken."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if data[:3] == b"ID3" or (data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6)):
        return "mp3"
    starts = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
    return next((kind for start, kind in starts.items() if data.startswith(start)), None)


def read_upload(data: bytes, rate: int, *, most_seconds: float) -> Sound:
    """The sound of a file's content at ``rate``. Raises AudioError for what is no sound of a known kind, and as soon as
    more than ``most_seconds`` have been decoded.
    """
    kind = kind_of(data)
    if kind is None:
        raise AudioError(f"{NAME}: of no kind that is taken; give WAV, FLAC, Ogg, MP3, MP4, M4A, WebM or AIFF")
    if find_spec("av") is None:
        raise AudioError("reading sounds needs av: pip install 'paceline[speech]'")
    import av
    import av.error

    joined, most = bytearray(), int(most_seconds * rate) * 4
    try:
        with av.open(io.BytesIO(data), mode="r", format=kind, metadata_errors="ignore") as container:
            best = container.streams.best("audio")
            if best is None:
                raise AudioError(f"{NAME}: no audio stream in it; give a file with sound")
            for block in mixed_by_av(decoded(container, best, NAME), rate):
                joined += block.tobytes()
                if len(joined) > most:
                    raise AudioError(f"{NAME}: longer than {most_seconds:g} seconds, which is what is taken")
    except av.error.FFmpegError as error:
        raise AudioError(f"{NAME}: not a sound that ffmpeg's libraries read ({error.strerror})") from error
    samples = np.frombuffer(joined, np.float32)
    if not len(samples) or not np.isfinite(samples).all():
        raise AudioError(f"{NAME}: no samples in it, or some that are not finite")
    return Sound(samples=samples, rate=rate)
