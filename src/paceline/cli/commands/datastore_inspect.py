"""``paceline datastore inspect``: what a datastore holds, and whether it fits a model."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_OK, Command
from paceline.cli.console import make_table
from paceline.cli.options import MODEL, MODEL_PATH, POSITIONAL, Json
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.drafters.datastore import Datastore


@dataclass(frozen=True, slots=True)
class DatastoreInspect(Command):
    """Show the counts, the tokenizer and the size of a datastore, and whether a model can draft from it.

    Examples:

        paceline datastore inspect store --model DIR
        paceline datastore inspect store --verify --json
    """

    datastore: Annotated[Path, POSITIONAL]
    """Directory of the datastore."""
    _: KW_ONLY
    model: Annotated[str | None, Parameter(group=MODEL), MODEL_PATH] = None
    """A target: directory or Hub id; exit code 1 if the datastore is of another tokenizer."""
    verify: bool = False
    """Read all of it and compare checksums; exit code 1 if they differ."""
    json: Json = False

    def run(self) -> int:
        """Open it and compare."""
        from paceline.drafters.datastore import Datastore

        store = Datastore(self.datastore)
        header = store.header
        facts: dict[str, object] = {
            "documents": header.num_documents,
            "tokens": header.num_tokens,
            "bytes": sum(header.lengths.values()),
            "vocab_size": header.vocab_size,
            "tokenizer": header.vocabulary,
        }
        fits = self._fits(store) if self.model is not None else None
        if fits is not None:
            facts["fits"], facts["reason"] = fits
        damaged = _damaged(store) if self.verify else None
        if damaged is not None:
            facts["damaged"] = damaged
        if self.json:
            print(to_json(facts))
        else:
            rows = [(name, _text(value)) for name, value in facts.items() if value is not None]
            Console(highlight=False).print(make_table(("datastore", str(self.datastore)), rows, num_left=2), crop=False)
        return EXIT_DIFFERENT if damaged or (fits is not None and not fits[0]) else EXIT_OK

    def _fits(self, store: "Datastore") -> tuple[bool, str | None]:
        from paceline.drafters.datastore import DatastoreError
        from paceline.train.data.corpus import read_model_vocabulary

        assert self.model is not None
        found = read_model_vocabulary(self.model)
        try:
            store.check(vocab_size=found.size, vocabulary=None if found.tokenizer is None else found.tokenizer.digest)
        except DatastoreError as error:
            return False, str(error)
        return True, None


def _damaged(store: "Datastore") -> list[str]:
    """The files whose content is not what was written."""
    from paceline.train.data.datastore import hash_file

    return [name for name, sha256 in store.header.sha256.items() if hash_file(store.folder / name) != sha256]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return f"{value:,}" if isinstance(value, int) else str(value)
