"""The whole of a data section as batches, held-out batches and prompts. Knows nothing of models.

T inputs of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from paceline.text.tokenizer import Tokenizer
from paceline.train.data.config import DataConfig, FeaturesSource
from paceline.train.data.encoders import NUM_BYTES, Bytes, Encoder, NoWords, Words
from paceline.train.data.features import WithHidden
from paceline.train.data.manifest import Manifest, Split, check_apart
from paceline.train.data.mixture import Pool, RowBatches
from paceline.train.data.packing import PACKINGS, Packing, Rows
from paceline.train.data.prepare import Made, tokenise
from paceline.train.data.prompts import choose_prompts
from paceline.train.data.readers import open_reader
from paceline.train.data.store import default_cache, open_split

HELD_OUT_SEED = 0  # the same rows validate every run


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of one split."""

    num_rows: int
    num_unused: int  # tokens at the end that fill no row


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that a run reads."""

    batches: RowBatches
    held_out: RowBatches | None  # to validate on; None where nothing is held out
    manifest: Manifest
    counts: Mapping[Split, Counts]
    packings: Mapping[Split, Sequence[Packing]]  # of every source

    def prompts(self, count: int, length: int, *, split: Split = Split.VALIDATION, seed: int = 0) -> np.ndarray:
        """Windows [count, length] of rows of ``split``, fewer where there are not so many, chosen by ``seed``.

        Each is of one document and begins where its row does. Where not all tokens are learned, it ends before the
        first that is, if ``length`` tokens are before it. Raises ValueError where no row has so many of one document.
        """
        found = list(islice(choose_prompts(self.packings[split], length=length, seed=seed), count))
        if not found:
            raise ValueError(
                f"data: no document of the split {split.value} has a prompt of {length} tokens; ask for shorter ones, "
                "or hold out more"
            )
        return np.stack(found)


def make_batches(
    config: DataConfig,
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    end_of_text: int | None,
    rows: int,
    length: int,
    seed: int,
) -> Prepared:
    """Batches of ``rows`` rows of ``length`` + 1 tokens, for a target of ``vocab_size`` tokens.

    ``tokenizer`` is the target's, ``end_of_text`` the id that ends its texts. Everything is read and tokenised before
    it returns, or found in the cache. Raises ValueError for a corpus that is missing, empty, unreadable, shorter than
    a row, of another vocabulary, or of which nothing is learned.
    """
    encoder = make_encoder(config, tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end_of_text)
    cache = config.cache or default_cache()
    shared = [source.share is not None for source in config.sources]
    if any(shared) and not all(shared):
        raise ValueError("data: some sources have a share and others none; give one to all, or to none")
    made = [
        tokenise(source, open_reader(source, encoder), encoder, config.validation, cache) for source in config.sources
    ]
    features = [isinstance(source, FeaturesSource) for source in config.sources]
    if any(features) and not all(features):
        raise ValueError("data: hidden states for some sources and not for others; compute them for all, or for none")
    check_apart(file for one in made for file in one.assigned)
    splits = {split: [_rows(one, split, config, length) for one in made] for split in (Split.TRAIN, Split.VALIDATION)}
    training, held_out = splits[Split.TRAIN], splits[Split.VALIDATION]
    _check(made, training, config, length)
    found, validation = _batches(training, rows=rows, seed=seed), _batches(held_out, rows=rows, seed=HELD_OUT_SEED)
    assert found is not None
    if validation is None and any(_held_out_tokens(one) for one in made):
        raise ValueError(
            f"data: what is held out fills no row of {length + 1} tokens; hold out more, or lower the length"
        )
    settings = {
        "encoder": encoder.fingerprint,
        "packing": config.packing,
        "segments": str(config.segments),
        "length": str(length),
    }
    return Prepared(
        batches=found,
        held_out=validation,
        manifest=Manifest(
            files=tuple(record for one in made for record in one.records), settings=tuple(settings.items())
        ),
        counts={split: _counts(parts) for split, parts in splits.items()},
        packings={split: _present(parts) for split, parts in splits.items()},
    )


def make_encoder(
    config: DataConfig, *, tokenizer: Tokenizer | None, vocab_size: int, end_of_text: int | None
) -> Encoder:
    """What turns texts to ids. Raises ValueError where it does not fit the target."""
    end = config.end_of_text if config.end_of_text is not None else end_of_text
    if config.tokenizer == "bytes":
        if vocab_size < NUM_BYTES:
            raise ValueError(f"data: tokenizer: bytes needs a target of {NUM_BYTES} tokens; it has {vocab_size}")
        return Bytes(name="bytes", vocab_size=vocab_size, end_of_text=end)
    if tokenizer is None:
        return NoWords(name="the target", vocab_size=vocab_size, end_of_text=end)
    return Words(tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The rows of a split of a source."""

    packing: Packing
    rows: Rows
    share: float | None


def _rows(made: Made, split: Split, config: DataConfig, length: int) -> _Part | None:
    stored = open_split(made.folder, split)
    if stored is None:
        return None
    segmented = config.packing == "packed" and config.segments and len(stored.ends) > 1
    packing = PACKINGS[config.packing](stored, length=length, segmented=segmented)
    if not packing.num_rows:
        return None
    rows: Rows = packing
    if isinstance(made.source, FeaturesSource):
        rows = WithHidden(packing, path=made.source.path, taps=made.source.taps)
    return _Part(packing=packing, rows=rows, share=made.source.share)


def _batches(parts: Sequence[_Part | None], *, rows: int, seed: int) -> RowBatches | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if any(part.share is not None for part in present):
        return RowBatches([(part.rows, part.share or 0.0) for part in present], rows=rows, seed=seed)
    pool = present[0].rows if len(present) == 1 else Pool([part.rows for part in present])
    return RowBatches([(pool, 1.0)], rows=rows, seed=seed)


def _check(made: Sequence[Made], training: Sequence[_Part | None], config: DataConfig, length: int) -> None:
    """Raise ValueError for a source that gives nothing to train on, and for a validation that was wanted and is not."""
    for one, part in zip(made, training, strict=True):
        records = [record for record in one.records if record.split == Split.TRAIN.value]
        num_tokens, num_learned = sum(r.num_tokens for r in records), sum(r.num_learned for r in records)
        name = f"data: {one.records[0].name}{' and more' if len(one.records) > 1 else ''}"
        if not any(record.num_tokens for record in one.records):
            raise ValueError(f"{name}: no text in it; give a corpus that is not empty")
        if part is not None or not num_tokens:
            continue
        if not num_learned:
            raise ValueError(
                f"{name}: none of its {num_tokens} tokens is learned; check loss_mask, or whose turns these are"
            )
        raise ValueError(
            f"{name}: {num_tokens} tokens to train on, and a row has {length + 1}; give more text, a lower length, or "
            "packing: documents"
        )
    if not any(part is not None for part in training):
        raise ValueError("data: everything is held out; give a source to train on, or a smaller validation share")
    held_out = sum(_held_out_tokens(one) for one in made)
    if config.validation.share and not held_out:
        raise ValueError(
            f"data: nothing falls to validation (share {config.validation.share} by {config.validation.by}); give by: "
            "document, a source with split: validation, or share: 0 for none"
        )


def _held_out_tokens(made: Made) -> int:
    return sum(record.num_tokens for record in made.records if record.split == Split.VALIDATION.value)


def _present(parts: Sequence[_Part | None]) -> list[Packing]:
    return [part.packing for part in parts if part is not None]


def _counts(parts: Sequence[_Part | None]) -> Counts:
    packings = _present(parts)
    return Counts(num_rows=sum(p.num_rows for p in packings), num_unused=sum(p.num_unused for p in packings))
