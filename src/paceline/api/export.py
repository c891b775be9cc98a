"""Reads draft heads of any format, and converts them between Paceline's own and those of other projects."""

from dataclasses import dataclass
from pathlib import Path

from paceline.api.draft_heads import find_head, find_layers
from paceline.api.loading import Loaded
from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.files import build_imported, load_head, save_head
from paceline.draft_heads.formats import FORMATS
from paceline.draft_heads.formats.base import FormatError
from paceline.draft_heads.formats.detection import Foreign, find_format, read_foreign
from paceline.draft_heads.formats.writing import check_new, convert, write_files
from paceline.models.directory import ModelError, is_own_head
from paceline.models.fingerprint import fingerprint
from paceline.models.native.decoder import DecoderLM

OWN = "paceline"  # the format of save_head
NUM_DRAFT_TOKENS = 5  # that files advise where nothing says how many


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHead:
    """A head as it was read for ``target``. ``foreign`` is None for one of our own."""

    head: DraftHead
    target: DecoderLM
    path: Path
    foreign: Foreign | None

    @property
    def num_draft_tokens(self) -> int:
        """As many as its files advise, else as it was trained for."""
        advised = None if self.foreign is None else self.foreign.imported.num_draft_tokens
        return advised or self.head.config.trained_depth or NUM_DRAFT_TOKENS


def read_head(path: str | Path, *, target: Loaded, pickles: bool = False, revision: str | None = None) -> ReadHead:
    """The draft head of a directory or Hub id, ours or another project's, for ``target``, which must be native.

    Of a model with layers of multi-token prediction it is these.

    ``pickles`` allows pickled weights, by torch's weights-only loader. Raises ValueError as ``load_head`` does, and for
    what is no head.
    """
    lm = target.lm
    if not isinstance(lm, DecoderLM):
        raise ModelError(
            f"{target.name} is run by transformers, and a head needs a native target: give backend='native'"
        )
    folder = find_head(path, revision, pickles=pickles) or find_layers(path, revision)
    if folder is None:
        raise FormatError(
            f"{path} is no draft head: neither its config.json nor the names of its tensors say so; give a directory "
            "that paceline train wrote, another project's head, or a model with layers of multi-token prediction"
        )
    if is_own_head(folder):
        return ReadHead(head=load_head(folder, lm, target_name=target.name), target=lm, path=folder, foreign=None)
    foreign = read_foreign(folder, lm, pickles=pickles)
    return ReadHead(head=build_imported(foreign.imported, lm, path=folder), target=lm, path=folder, foreign=foreign)


def check_export(format: str, output: str | Path) -> None:
    """Raise FormatError for an unknown format, and for a directory that is there already. Needs no model."""
    if format != OWN and format not in FORMATS:
        raise FormatError(f"unknown format {format!r}; known: {', '.join((OWN, *FORMATS))}")
    check_new(Path(output))


def export_head(
    path: str | Path,
    output: str | Path,
    *,
    target: Loaded,
    format: str = OWN,
    num_draft_tokens: int | None = None,
    pickles: bool = False,
    revision: str | None = None,
) -> ReadHead:
    """Write the head of ``path`` into the new directory ``output`` in ``format``: one of ``FORMATS``, or "paceline".

    ``target`` should be loaded with ``enforce_eager``, which keeps its weights as they are. ``num_draft_tokens`` is
    what the files advise their readers; None is what the head was trained for. The tensors have the target's precision.
    Raises ValueError as ``read_head`` and ``check_export`` do, and for a format that cannot hold the head.
    """
    check_export(format, output)
    read, output = read_head(path, target=target, pickles=pickles, revision=revision), Path(output)
    if format == OWN:
        save_head(read.head, output, target_name=target.name, fingerprint=fingerprint(read.target))
        return read
    exported = convert(
        read.head,
        find_format(format),
        target=read.target,
        target_name=target.name,
        num_draft_tokens=num_draft_tokens or read.num_draft_tokens,
    )
    write_files(exported, output, target_path=Path(target.name))
    return read
