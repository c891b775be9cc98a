"""The options of ``paceline data`` that say what is read."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import AT_LEAST_1, POSITIONAL

if TYPE_CHECKING:
    from paceline.train.data.corpus import Corpus

HELP = "Prepare training data: tokens, outputs of the target, its hidden states."
CORPUS = Group("Corpus", sort_key=0)
Length = Annotated[
    int | None, Parameter(help="Tokens per row; from the configuration, or 512, by default."), AT_LEAST_1
]


@Parameter(name="*", group=CORPUS)
@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What is read: a configuration, or files."""

    config: Annotated[Path | None, POSITIONAL] = None
    """YAML file: a training run, or only its section data."""
    _: KW_ONLY
    text: tuple[str, ...] = ()
    """Plain text: a file, folder or glob; may be repeated."""
    jsonl: tuple[str, ...] = ()
    """Lines of {"text": ...}; may be repeated."""
    chat: tuple[str, ...] = ()
    """Lines of {"messages": ...}; may be repeated."""
    tokens: tuple[str, ...] = ()
    """Token ids, .npy or 16-bit .bin; may be repeated."""
    library: bool = False
    """Python's standard library."""
    bytes: bool = False
    """Bytes as tokens, without a tokenizer."""
    validation_share: float = 0.0
    """Fraction of the files given by options that is held out; a configuration has its own setting."""
    cache: Path | None = None
    """Cache of token ids; paceline/data in the user's cache by default."""

    @property
    def given(self) -> bool:
        """Whether there is anything to read."""
        return self.config is not None or bool(self.sources())

    def sources(self) -> list[dict[str, object]]:
        """The files, as the section ``data`` of a configuration names them."""
        named: dict[str, Sequence[str]] = {
            "text": self.text,
            "jsonl": self.jsonl,
            "chat": self.chat,
            "tokens": self.tokens,
        }
        found: list[dict[str, object]] = [{"kind": kind, "paths": paths} for kind, paths in named.items() if paths]
        return [*found, {"kind": "standard_library"}] if self.library else found

    def read(self, *, length: int | None) -> "Corpus":
        """The corpus. Raises ValueError for what is wrong with it."""
        from paceline.train.data.corpus import read_corpus

        sources = self.sources()
        if (self.config is None) == (not sources):
            raise ValueError(
                "give either a configuration, CONFIG.yaml, or texts by --text, --jsonl, --chat, --tokens or --library"
            )
        made = {"sources": sources, "validation": {"share": self.validation_share}}
        return read_corpus(self.config or made, length=length, byte_tokens=self.bytes, cache=self.cache)
