"""Readers of pairs for encoder-decoders: of texts, and of sounds and their transcripts.

S tokens that an encoder reads, T of an output.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor

from paceline.speech.audio import read_sound
from paceline.speech.checkpoint import read_checkpoint
from paceline.speech.features import Features
from paceline.speech.options import SpeechOptions
from paceline.speech.start import read_start
from paceline.train.data.config import PairsSource, SoundsSource
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File
from paceline.train.data.pair_encoder import PairEncoder
from paceline.train.data.sources.documents import Document, FileReader, Tokens, find_files
from paceline.train.data.sources.text_files import LEFT_OUT, Row, are_integers, field_of, parse_row, read_objects

logger = logging.getLogger("paceline")
READ_AT_ONCE = 256  # lines that are encoded in one call
Numbered = tuple[int, str, Row]


@final
class PairLines(FileReader):
    """A document is what the encoder reads [S], and behind it the start tokens and the output [T]."""

    def __init__(self, source: PairsSource, encoder: Encoder) -> None:
        super().__init__(source, encoder)
        self._encoder = check_pairs(encoder, kind=source.kind, reads_sound=False)
        self._source, self._output = source.source, source.output

    def documents(self, index: int) -> Iterator[Document]:
        """One for each line that is not left out."""
        lines = kept_objects(self._paths[index])
        while part := list(islice(lines, READ_AT_ONCE)):
            sources = self._sources(part)
            for (number, name, _), source, output in zip(
                part, sources, outputs_of(part, self._output, self._encoder), strict=True
            ):
                if len(source) < self._encoder.model.min_source:
                    raise ValueError(f"{name}: {self._source} has no tokens, and an encoder reads at least one")
                yield Tokens(
                    name=name,
                    tokens=np.concatenate([source, output.tokens]),
                    learned=np.concatenate([np.zeros(len(source), bool), learned_of(output)]),
                    origin=number,
                    num_source=len(source),
                )

    def _sources(self, part: Sequence[Numbered]) -> list[np.ndarray]:
        """Of texts, or of token ids."""
        values = [source_of(row, self._source, name) for _, name, row in part]
        encoded = iter(self._encoder.encode_many([value for value in values if isinstance(value, str)]))
        return [next(encoded) if isinstance(value, str) else np.asarray(value, dtype=np.int64) for value in values]


@final
class SoundLines(FileReader):
    """A document is the output [T], behind the tokens of language and task; its sound is read when a batch needs it."""

    def __init__(self, source: SoundsSource, encoder: Encoder) -> None:
        super().__init__(source, encoder)
        self._encoder = check_pairs(encoder, kind=source.kind, reads_sound=True)
        self._audio, self._output = source.audio, source.output
        self._sounds = SoundFeatures(self._encoder)
        checkpoint = self._sounds.checkpoint
        start = read_start(checkpoint, SpeechOptions(language=source.language, task=source.task))
        self._start = None if start.detects else start.tokens(None, checkpoint.no_timestamps)

    def files(self) -> list[File]:
        """Each file, with a hash over its content and the sizes of the sounds that it names."""
        found: list[File] = []
        for index, file in enumerate(super().files()):
            digest, size = hashlib.sha256(file.sha256.encode()), file.num_bytes
            for number, path in self.sounds(index).items():
                num_bytes = path.stat().st_size
                digest.update(f"{number} {num_bytes};".encode())
                size += num_bytes
            found.append(replace(file, num_bytes=size, sha256=digest.hexdigest()))
        return found

    def documents(self, index: int) -> Iterator[Document]:
        """One for each line with a sound that fits a window; others are counted in a warning."""
        paths, num_long = self.sounds(index), 0
        for line in kept_objects(self._paths[index]):
            number, name, _ = line
            if self._sounds.exceeds_window(paths[number]):
                num_long += 1
                continue
            if self._start is None and "input_ids" not in line[2]:
                raise ValueError(
                    f"{name}: {self._encoder.model.folder} knows several languages; give that of the transcripts, such "
                    "as language: en"
                )
            (output,) = outputs_of([line], self._output, self._encoder, start=self._start)
            yield replace(output, name=name, learned=learned_of(output), origin=number)
        if num_long:
            logger.warning(
                f"{self._paths[index]}: {num_long} sounds are left out, for they are longer than a window of "
                f"{self._sounds.window_seconds:g} s; cut them into pieces to learn from them"
            )

    def sounds(self, index: int) -> dict[int, Path]:
        """The path of every line's sound, by the number of the line. Raises ValueError for one that is not there."""
        return dict(sounds_in(self._paths[index], self._audio))


@final
class SoundFeatures:
    """Features [W, F] of the sounds in files, by the checkpoint's own extractor. Raises CheckpointError without one."""

    def __init__(self, encoder: PairEncoder) -> None:
        model = encoder.model
        name = str(model.folder)
        self.checkpoint = read_checkpoint(model.folder, model.raw, name=name, vocab_size=encoder.vocab_size)
        mels = model.raw.get("num_mel_bins", 80)
        assert isinstance(mels, int)
        self._features = Features(model.folder, mels=mels, frames=self.checkpoint.frames)

    @property
    def window_seconds(self) -> float:
        """The longest sound that the encoder reads."""
        return self._features.num_samples / self._features.rate

    def exceeds_window(self, path: Path) -> bool:
        """Whether the sound in ``path`` is too long. Raises AudioError for what is no sound."""
        return len(read_sound(path, self._features.rate).samples) > self._features.num_samples

    def __call__(self, path: Path) -> Tensor:
        """Of one window, silence behind the sound included."""
        return self._features(read_sound(path, self._features.rate))


def read_sources(source: PairsSource) -> Iterator[str | list[int]]:
    """The texts or token ids of every line of ``source``. Raises ValueError naming a wrong line."""
    for path in find_files(source.paths):
        for _, name, row in kept_objects(path):
            yield source_of(row, source.source, name)


def read_sounds(source: SoundsSource) -> Iterator[Path]:
    """The paths of every line of ``source``. Raises ValueError for one that is not there."""
    for path in find_files(source.paths):
        for _, sound in sounds_in(path, source.audio):
            yield sound


def source_of(row: Row, field: str, name: str) -> str | list[int]:
    """What an encoder reads: a text, or token ids. Raises ValueError, beginning with ``name``, for anything else."""
    value = field_of(row, field, name)
    if not isinstance(value, str) and not are_integers(value):
        raise ValueError(f"{name}: {field} is a {type(value).__name__}; give a text, or token ids")
    return value


def sounds_in(path: Path, field: str) -> Iterator[tuple[int, Path]]:
    """The number and the sound of every line of ``path``. Raises ValueError for one that is not there."""
    for number, name, row in kept_objects(path):
        value = field_of(row, field, name)
        if not isinstance(value, str):
            raise ValueError(f"{name}: {field} is a {type(value).__name__}; give the path of a sound")
        sound = path.parent / value
        if not sound.is_file():
            raise ValueError(f"{name}: {sound}: no such file; paths begin at the folder of {path}")
        yield number, sound


def check_pairs(encoder: Encoder, *, kind: str, reads_sound: bool) -> PairEncoder:
    """``encoder`` itself. Raises ValueError unless it is that of an encoder-decoder that reads such sources."""
    if not isinstance(encoder, PairEncoder):
        raise ValueError(f"data: sources of kind {kind} are pairs for an encoder-decoder, and the target is none")
    if encoder.model.reads_sound != reads_sound:
        wanted = (
            "sound: give sources of kind sounds" if encoder.model.reads_sound else "text: give sources of kind pairs"
        )
        raise ValueError(f"data: sources of kind {kind}, and {encoder.model.folder} reads {wanted}")
    return encoder


def kept_objects(path: Path) -> Iterator[Numbered]:
    """The lines of ``path`` but those that say why they are left out."""
    return (line for line in read_objects(path) if LEFT_OUT not in line[2])


def outputs_of(
    part: Sequence[Numbered],
    field: str,
    encoder: PairEncoder,
    *,
    start: Sequence[int] | None = None,
) -> Iterator[Tokens]:
    """Of each line the tokens ``start`` (None: the model's), which are not learned, and its output: input_ids of the
    target, or a text.
    """
    texts = [(name, None if "input_ids" in row else field_of(row, field, name)) for _, name, row in part]
    for name, text in texts:
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name}: {field} is a {type(text).__name__}; give a text, or input_ids and loss_mask")
    encoded = iter(encoder.outputs([text for _, text in texts if isinstance(text, str)]))
    begin = np.asarray(encoder.model.start if start is None else start, dtype=np.int64)
    for (number, name, row), (_, text) in zip(part, texts, strict=True):
        if text is None:
            yield parse_row(row, field, name, number)
            continue
        output = next(encoded)
        learned = np.arange(len(begin) + len(output)) >= len(begin)
        yield Tokens(name=name, tokens=np.concatenate([begin, output]), learned=learned, origin=number)


def learned_of(output: Tokens) -> np.ndarray:
    """Which tokens of an output are learned; not its first, for nothing is read before it."""
    learned = np.ones(len(output.tokens), bool) if output.learned is None else output.learned.copy()
    learned[:1] = False
    return learned
