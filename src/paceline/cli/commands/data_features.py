"""``paceline data features``: hidden states of the target, one file per text."""

import sys
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.corpus import CorpusOptions, Length
from paceline.cli.options import AT_LEAST_1, MODEL, OUTPUT, ModelOptions, Quiet, one_of

SPLITS = ("train", "validation")


@dataclass(frozen=True, slots=True)
class DataFeatures(Command):
    """Compute hidden states of the target once, in the format of vllm-project/speculators.

    One file per text, in bfloat16: a text of 1,000 tokens takes 2 MB for each 1,000 of hidden size and layer. After an
    interruption, the same command continues where it stopped. With the package `datasets`, speculators' own trainer
    reads the folder.

    Examples:

        paceline data features --model DIR --jsonl own.jsonl --taps 2,8,13 --output hidden
        paceline data features --model DIR run.yaml --split validation --taps 8 --output hidden_validation
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: ModelOptions
    output: Annotated[Path, Parameter(group=OUTPUT)]
    """Folder for the hidden states."""
    taps: str
    """After how many layers, such as 2,16,29; the last layer is always included."""
    split: Annotated[str, one_of(SPLITS)] = "train"
    """train or validation: which documents."""
    length: Length = None
    batch_size: Annotated[int, AT_LEAST_1, Parameter(group=MODEL)] = 8
    """Sequences per batch."""
    quiet: Quiet = False

    def run(self) -> int:
        """Compute what is missing."""
        from rich.progress import TimeRemainingColumn

        from paceline.cli.progress import make_progress
        from paceline.cli.prompt_file.fingerprint import model_hash
        from paceline.models.base import max_sequence_length
        from paceline.train.data.corpus import read_chunks
        from paceline.train.data.manifest import Split
        from paceline.train.data.sources.feature_extraction import check_taps, compute_hidden_states, prepare_folder
        from paceline.train.data.sources.features import save_rows

        wanted = _taps(self.taps)
        corpus = self.corpus.read(length=self.length)
        pieces = read_chunks(corpus, self.model.model, Split(self.split))
        if not pieces:
            raise ValueError(f"--split {self.split}: no document of two tokens in it; give more text")
        target = self.model.load()
        limit = max_sequence_length(target.lm)
        if corpus.length > limit:
            raise ValueError(f"--length {corpus.length}: the target's limit is {limit} tokens; give a lower one")
        taps = check_taps(wanted, target.lm)
        identity = {"target": target.name, "target_hash": model_hash(self.model), "dtype": str(target.dtype)}
        missing = prepare_folder(self.output, pieces, taps=taps, identity=identity)
        bar = make_progress(Console(stderr=True), TimeRemainingColumn(), shown=not self.quiet)
        try:
            with bar as progress:
                task = progress.add_task("texts", total=len(pieces), completed=len(pieces) - len(missing))
                compute_hidden_states(
                    target.lm,
                    pieces,
                    missing,
                    taps=taps,
                    folder=self.output,
                    batch_size=self.batch_size,
                    done=lambda count: progress.advance(task, count),
                )
        except KeyboardInterrupt:
            _note(f"interrupted; the same command continues in {self.output}")
            return EXIT_INTERRUPTED
        saved = save_rows(self.output)
        if not self.quiet:
            num_tokens = sum(len(piece.tokens) for piece in pieces)
            _note(f"{len(pieces)} texts, {num_tokens} tokens, layers {', '.join(map(str, taps))}, in {self.output}")
            if not saved:
                _note("without the package datasets (pip install 'paceline[datasets]') only Paceline reads the folder")
        return EXIT_OK


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _taps(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise ValueError(f"--taps {given}: give numbers of layers, such as 2,16,29") from error
