"""``paceline data features``: hidden states of the target, one file per text."""

import sys

from rich.console import Console
from rich.progress import TimeRemainingColumn

from paceline.cli.commands.data import DataFeatures
from paceline.cli.console import make_progress
from paceline.cli.data_inputs import read_corpus, read_vocabulary
from paceline.cli.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.fingerprint import model_hash
from paceline.cli.models import load_target
from paceline.models.base import max_sequence_length
from paceline.train.data.batches import make_encoder
from paceline.train.data.manifest import Split
from paceline.train.data.sources.feature_extraction import (
    check_taps,
    chunk_documents,
    compute_hidden_states,
    prepare_folder,
)
from paceline.train.data.sources.features import save_rows
from paceline.train.data.sources.readers import open_reader
from paceline.train.data.store import default_cache, open_split
from paceline.train.data.tokenise import tokenise


def compute_features(options: DataFeatures) -> int:
    """Compute what is missing."""
    wanted = _taps(options.taps)
    corpus = read_corpus(options.corpus, length=options.length)
    vocabulary = read_vocabulary(corpus, options.model.model)
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
    found = (open_split(one.folder, Split(options.split)) for one in made)
    pieces = chunk_documents([stored for stored in found if stored is not None], length=corpus.length)
    if not pieces:
        raise ValueError(f"--split {options.split}: no document of two tokens in it; give more text")
    target = load_target(options.model)
    limit = max_sequence_length(target.lm)
    if corpus.length > limit:
        raise ValueError(f"--length {corpus.length}: the target's limit is {limit} tokens; give a lower one")
    taps = check_taps(wanted, target.lm)
    identity = {"target": target.name, "target_hash": model_hash(options.model), "dtype": str(target.dtype)}
    missing = prepare_folder(options.output, pieces, taps=taps, identity=identity)
    bar = make_progress(Console(stderr=True), TimeRemainingColumn(), shown=not options.quiet)
    try:
        with bar as progress:
            task = progress.add_task("texts", total=len(pieces), completed=len(pieces) - len(missing))
            compute_hidden_states(
                target.lm,
                pieces,
                missing,
                taps=taps,
                folder=options.output,
                batch_size=options.batch_size,
                done=lambda count: progress.advance(task, count),
            )
    except KeyboardInterrupt:
        _note(f"interrupted; the same command continues in {options.output}")
        return EXIT_INTERRUPTED
    saved = save_rows(options.output)
    if not options.quiet:
        num_tokens = sum(len(piece.tokens) for piece in pieces)
        _note(f"{len(pieces)} texts, {num_tokens} tokens, layers {', '.join(map(str, taps))}, in {options.output}")
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
