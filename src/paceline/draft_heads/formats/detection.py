"""Which format the files of a draft head are of, and the head in them."""

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.draft_heads.base import ReducibleConfig, reduce_by_file
from paceline.draft_heads.formats import FORMATS
from paceline.draft_heads.formats.base import Assumption, Format, FormatError, HeadFiles, Imported, listing
from paceline.draft_heads.formats.unsupported import why_unsupported
from paceline.models.draft_vocab import FILE
from paceline.models.native.decoder import DecoderLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A head of another project, its files and their format."""

    files: HeadFiles
    format: Format
    imported: Imported


def find_format(name: str) -> Format:
    """The format called ``name``. Raises FormatError, with the known names, for an unknown one."""
    if name not in FORMATS:
        raise FormatError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS.find(name)()


def detect(files: HeadFiles) -> Format:
    """The format of ``files``: by speculators_model_type, else by architectures, else by the names of tensors.

    Raises FormatError for a kind that is known and not supported, naming it and what it would need, and for files of no
    known format, naming what was looked at.
    """
    reason = why_unsupported(files)
    if reason is not None:
        raise FormatError(f"{files.path}: {reason}")
    found = [one for one in map(find_format, FORMATS) if one.matches(files)]
    if len(found) > 1:
        raise FormatError(f"{files.path} is of several formats: {', '.join(one.name for one in found)}; name one")
    if not found:
        raise FormatError(
            f"{files.path} is a head of no known format: speculators_model_type {files.speculators_type!r}, "
            f"architectures {list(files.architectures)}, tensors {listing(files.headers)}; known: {', '.join(FORMATS)}"
        )
    return found[0]


def read_foreign(
    path: str | Path, target: DecoderLM, *, pickles: bool = False, format: Format | None = None
) -> Foreign:
    """The head in the directory ``path``, as its format reads it for ``target``; ``format`` None is detected.

    Raises FormatError for files that are missing, broken or pickled (unless ``pickles``), and as ``Format.read`` does.
    """
    files = HeadFiles(path, pickles=pickles)
    of = detect(files) if format is None else format
    found = of.read(files, target)
    try:
        config, added = reduce_by_file(found.config, files.path, target_size=target.vocab_size)
    except ValueError as error:
        raise FormatError(str(error)) from error
    if isinstance(config, ReducibleConfig):
        said = Assumption("draft_vocab_size", config.draft_vocab_size, FILE if added else f"no {FILE}: all tokens")
        assumptions = (*found.assumptions, said)
        found = replace(found, config=config, state={**found.state, **added}, assumptions=assumptions)
    return Foreign(files=files, format=of, imported=found)
