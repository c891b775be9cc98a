"""``paceline data features``: hidden states of the target, file by file. Trains nothing."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli.commands import EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.data_inputs import CorpusOptions, read_corpus, read_vocabulary
from paceline.cli.fingerprint import model_hash
from paceline.cli.models import check_model, load_target
from paceline.cli.options import ModelOptions
from paceline.models.base import max_sequence_length
from paceline.train.data.batches import make_encoder
from paceline.train.data.extract import begin, check_taps, compute, cut
from paceline.train.data.features import save_rows
from paceline.train.data.manifest import Split
from paceline.train.data.prepare import tokenise
from paceline.train.data.readers import open_reader
from paceline.train.data.store import default_cache, open_split

SPLITS = {split.value: split for split in (Split.TRAIN, Split.VALIDATION)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeFeatures:
    """The command's options; ``run`` returns the exit code."""

    corpus: CorpusOptions
    model: ModelOptions
    taps: str
    split: str
    length: int | None
    batch_size: int
    output: Path
    quiet: bool

    def run(self) -> int:
        """Compute what is missing."""
        check_model(self.model)
        if self.split not in SPLITS:
            raise ValueError(f"--split {self.split}: give one of {', '.join(SPLITS)}")
        if self.batch_size < 1:
            raise ValueError(f"--batch-size {self.batch_size}: give at least 1")
        wanted = _taps(self.taps)
        corpus = read_corpus(self.corpus, length=self.length)
        vocabulary = read_vocabulary(corpus, self.model.model)
        encoder = make_encoder(
            corpus.data,
            tokenizer=vocabulary.tokenizer,
            vocab_size=vocabulary.size,
            end_of_text=vocabulary.end_of_text,
        )
        cache, validation = corpus.data.cache or default_cache(), corpus.data.validation
        made = [
            tokenise(source, open_reader(source, encoder), encoder, validation, cache) for source in corpus.data.sources
        ]
        found = (open_split(one.folder, SPLITS[self.split]) for one in made)
        pieces = cut([stored for stored in found if stored is not None], length=corpus.length)
        if not pieces:
            raise ValueError(f"--split {self.split}: no document of two tokens in it; give more text")
        target = load_target(self.model)
        limit = max_sequence_length(target.lm)
        if corpus.length > limit:
            raise ValueError(f"--length {corpus.length}: the target reads {limit} tokens; give a lower one")
        taps = check_taps(wanted, target.lm)
        identity = {"target": target.name, "target_hash": model_hash(self.model), "dtype": str(target.dtype)}
        missing = begin(self.output, pieces, taps=taps, identity=identity)
        columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = not self.quiet and sys.stderr.isatty()
        try:
            with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
                task = progress.add_task("", total=len(pieces), completed=len(pieces) - len(missing))
                compute(
                    target.lm,
                    pieces,
                    missing,
                    taps=taps,
                    folder=self.output,
                    batch_size=self.batch_size,
                    done=lambda count: progress.advance(task, count),
                )
        except KeyboardInterrupt:
            _say(f"interrupted; the same command goes on in {self.output}")
            return EXIT_INTERRUPTED
        saved = save_rows(self.output)
        if not self.quiet:
            num_tokens = sum(len(piece.tokens) for piece in pieces)
            _say(f"{len(pieces)} texts, {num_tokens} tokens, layers {', '.join(map(str, taps))}, in {self.output}")
            if not saved:
                _say("without the package datasets (pip install 'paceline[datasets]') only Paceline reads the folder")
        return EXIT_OK


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _taps(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise ValueError(f"--taps {given}: give numbers of layers, such as 2,16,29") from error
