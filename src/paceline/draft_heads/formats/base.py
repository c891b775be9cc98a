"""The interface of formats: how draft heads of other projects are read and written.

A format is one project's layout of config.json and tensor names. It reads files into a head's configuration, in which
every assumption is a field, and into tensors by our names; and writes the files of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead, DraftHeadConfig
from paceline.draft_heads.formats.head_files import FETCH_AGAIN
from paceline.draft_heads.formats.head_files import FormatError as FormatError
from paceline.draft_heads.formats.head_files import HeadFiles as HeadFiles
from paceline.models.native.decoder import DecoderLM

# Tensors that files may hold and nobody needs: the target's own, and angles that the config says too.
IGNORED = ("verifier_*", "input_embed_fn.weight", "*rotary_emb.inv_freq")
LISTED = 5  # names in one message


class Assumption(NamedTuple):
    """What a format takes a head to be: a field of our configuration, its value, and where that comes from."""

    name: str
    value: object
    source: str  # "config.json: fc_norm", "tensor fc.weight", "the format"; "not in the files: ..." for a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A head as a format read it: what ``DRAFT_HEADS`` and ``load_own_state`` take, and what was assumed.

    Tensors are as the files have them, in their precision, on the CPU.
    """

    kind: str
    config: DraftHeadConfig
    state: dict[str, Tensor]  # by the names of own_state
    assumptions: tuple[Assumption, ...]
    within: str = ""  # the beginning of the names of its tensors, where others in the files are the target's layers
    ignored: tuple[str, ...] = ()  # tensors of the files that are not read
    tied: tuple[str, ...] = ()  # of these, or of our names, those that are the target's own or stored once for several
    target_name: str | None = None  # the target that the files name
    num_draft_tokens: int | None = None  # that the files advise


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files of a head in a format."""

    config: Mapping[str, object]  # config.json
    tensors: Mapping[str, Tensor]
    weights: str = "model.safetensors"  # the file's name
    others: Mapping[str, str] = field(default_factory=dict[str, str])  # other files: names and text
    draft_ids: Tensor | None = None  # of a draft vocabulary that the format has no place for, and others do not read
    into_target: bool = False  # config and tensors are additions to a copy of the target's directory, as MTP layers are


class Format(ABC):
    """One project's layout of one family of heads."""

    name: ClassVar[str]  # in FORMATS
    title: ClassVar[str]  # as messages and tables call it: "EAGLE-3 (SafeAILab, SpecForge)"
    kinds: ClassVar[frozenset[str]]  # of heads that it can write

    @abstractmethod
    def matches(self, files: HeadFiles) -> bool:
        """Whether the files are of this format: by ``speculators_type``, else by ``architectures``, else by the names
        of tensors; never by their path. At most one format matches.
        """

    @abstractmethod
    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """The head in ``files`` for ``target``. Reads tensors last.

        Raises FormatError for what the head needs and the files lack, for tensors that are not known (``check_names``),
        for sizes and vocabularies that are not the target's, and for variants that are not supported.
        """

    @abstractmethod
    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """The files of ``head``, of one of ``kinds``, which was made for ``target``.

        Raises FormatError for options of the head that the format cannot express.
        """


def check_names(
    files: HeadFiles,
    wanted: Mapping[str, tuple[int, ...]],
    *,
    optional: Mapping[str, tuple[int, ...]] | None = None,
    ignored: Iterable[str] = (),
    within: str = "",
) -> tuple[str, ...]:
    """The tensors of ``files`` that are not read: those whose names match a pattern of ``ignored`` or IGNORED.

    Names that do not begin with ``within`` are the target's, and not looked at.

    Raises FormatError naming the tensors of ``wanted`` that are missing, those that are in none of the tables, and
    those of another shape.
    """
    known = {**(optional or {}), **wanted}
    patterns = (*IGNORED, *ignored)
    missing = [name for name in wanted if name not in files.headers]
    left = [name for name in files.headers if name not in known and name.startswith(within)]
    skipped = tuple(name for name in left if any(fnmatchcase(name, pattern) for pattern in patterns))
    unknown = [name for name in left if name not in skipped]
    shapes = [
        f"{name} has shape {shape}, and {known[name]} is wanted"
        for name, shape in files.shapes.items()
        if name in known and shape != known[name]
    ]
    parts = [
        *([f"they lack {listing(missing)}"] if missing else []),
        *([f"they hold {listing(unknown)}, which nothing is known of"] if unknown else []),
        *shapes[:LISTED],
    ]
    if parts:
        raise FormatError(f"{files.path}: the tensors do not fit: {'; '.join(parts)}; {FETCH_AGAIN}")
    return skipped


def check_target(
    files: HeadFiles, target: DecoderLM, *, hidden_size: int | None = None, vocab_size: int | None = None
) -> None:
    """Raise FormatError for a head whose hidden states or vocabulary are of another size than ``target``'s."""
    for what, found, own in (
        ("hidden states of", hidden_size, target.config.hidden_size),
        ("a vocabulary of", vocab_size, target.vocab_size),
    ):
        if found is not None and found != own:
            raise FormatError(
                f"{files.path} is a head of a target with {what} {found}, and this one has {own}; give its own target"
            )


def is_targets(files: HeadFiles, name: str, own: Tensor) -> bool:
    """Whether the tensor ``name`` is ``own`` of the target, in the target's precision: it need not be read."""
    if files.shapes.get(name) != tuple(own.shape):
        return False
    return torch.equal(files.tensor(name).to(own.device, own.dtype), own)


def output_matrix(target: DecoderLM) -> Tensor:
    """The matrix [V, H] of the target's output head, which may be its embedding's. Raises FormatError if quantised."""
    weight = (target.embed if target.head is None else target.head).weight
    if not weight.is_floating_point():
        raise FormatError("the target's output head is quantised, and this format holds its matrix: load it as it is")
    return weight


def listing(names: Iterable[str]) -> str:
    """Some of ``names``, and how many others there are."""
    every = list(names)
    more = len(every) - LISTED
    return ", ".join(every[:LISTED]) + (f" and {more} more" if more > 0 else "")
