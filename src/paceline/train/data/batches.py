"""From the section ``data`` to training batches, held-out batches and prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from paceline.text.tokenizer import Tokenizer
from paceline.train.data.config import DataConfig, FeaturesSource
from paceline.train.data.encoders import NUM_BYTES, ByteEncoder, Encoder, NoTokenizer, TokenizerEncoder
from paceline.train.data.manifest import Manifest, Split, check_disjoint
from paceline.train.data.mixture import ConcatenatedRows, RowBatches
from paceline.train.data.packing import PACKINGS, Packing, Rows
from paceline.train.data.prompts import choose_prompts
from paceline.train.data.sources.features import RowsWithHidden
from paceline.train.data.sources.readers import open_reader
from paceline.train.data.store import default_cache, open_split
from paceline.train.data.tokenise import TokenisedSource, tokenise

HELD_OUT_SEED = 0  # every run is validated on the same rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """Counts of one split."""

    num_rows: int
    num_unused: int  # tokens that fill no row


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The data of a run."""

    batches: RowBatches
    held_out: RowBatches | None  # None if nothing is held out
    manifest: Manifest
    counts: Mapping[Split, SplitCounts]
    packings: Mapping[Split, Sequence[Packing]]  # of every source

    def prompts(self, count: int, length: int, *, split: Split = Split.VALIDATION, seed: int = 0) -> np.ndarray:
        """Prefixes [count, length] of rows of ``split``, chosen by ``seed``; fewer if there are fewer.

        Each is of one document. If some tokens are not learned, it ends before the first learned one, provided
        ``length`` tokens are before it. Raises ValueError if no row has ``length`` tokens of one document.
        """
        prompts = list(islice(choose_prompts(self.packings[split], length=length, seed=seed), count))
        if not prompts:
            raise ValueError(
                f"data: no document of the split {split.value} has a prompt of {length} tokens; ask for shorter ones, "
                "or hold out more"
            )
        return np.stack(prompts)


def make_batches(
    config: DataConfig,
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    end_of_text: int | None,
    rows: int,
    length: int,
    seed: int,
) -> PreparedData:
    """Batches of ``rows`` rows of ``length`` + 1 tokens, for a target of ``vocab_size`` tokens.

    ``tokenizer`` is the target's, ``end_of_text`` the id that ends its texts. Everything is tokenised before it
    returns, unless it is in the cache. Raises ValueError for a corpus that is missing, empty, unreadable, shorter than
    a row, of another vocabulary, or without learned tokens.
    """
    encoder = make_encoder(config, tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end_of_text)
    cache = config.cache or default_cache()
    have_share = {source.share is not None for source in config.sources}
    if len(have_share) > 1:
        raise ValueError("data: some sources have a share and others none; give one to all, or to none")
    sources = [
        tokenise(source, open_reader(source, encoder), encoder, config.validation, cache) for source in config.sources
    ]
    if len({isinstance(source, FeaturesSource) for source in config.sources}) > 1:
        raise ValueError("data: hidden states for some sources and not for others; compute them for all, or for none")
    check_disjoint(file for source in sources for file in source.splits)
    splits = {
        split: [_rows(source, split, config, length) for source in sources] for split in (Split.TRAIN, Split.VALIDATION)
    }
    training, held_out = splits[Split.TRAIN], splits[Split.VALIDATION]
    _check(sources, training, config, length)
    batches, validation = _batches(training, rows=rows, seed=seed), _batches(held_out, rows=rows, seed=HELD_OUT_SEED)
    assert batches is not None
    if validation is None and any(_held_out_tokens(source) for source in sources):
        raise ValueError(
            f"data: what is held out fills no row of {length + 1} tokens; hold out more, or lower the length"
        )
    settings = {
        "encoder": encoder.fingerprint,
        "packing": config.packing,
        "segments": str(config.segments),
        "length": str(length),
    }
    return PreparedData(
        batches=batches,
        held_out=validation,
        manifest=Manifest(
            files=tuple(record for source in sources for record in source.records), settings=tuple(settings.items())
        ),
        counts={split: _counts(parts) for split, parts in splits.items()},
        packings={split: _present(parts) for split, parts in splits.items()},
    )


def make_encoder(
    config: DataConfig, *, tokenizer: Tokenizer | None, vocab_size: int, end_of_text: int | None
) -> Encoder:
    """The encoder of the section. Raises ValueError if it does not fit the target."""
    end = config.end_of_text if config.end_of_text is not None else end_of_text
    if config.tokenizer == "bytes":
        if vocab_size < NUM_BYTES:
            raise ValueError(f"data: tokenizer: bytes needs a target of {NUM_BYTES} tokens; it has {vocab_size}")
        return ByteEncoder(name="bytes", vocab_size=vocab_size, end_of_text=end)
    if tokenizer is None:
        return NoTokenizer(name="the target", vocab_size=vocab_size, end_of_text=end)
    return TokenizerEncoder(tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The rows of one split of one source."""

    packing: Packing
    rows: Rows
    share: float | None


def _rows(source: TokenisedSource, split: Split, config: DataConfig, length: int) -> _Part | None:
    tokens = open_split(source.folder, split)
    if tokens is None:
        return None
    segmented = config.packing == "packed" and config.segments and len(tokens.ends) > 1
    packing = PACKINGS[config.packing](tokens, length=length, segmented=segmented)
    if not packing.num_rows:
        return None
    rows: Rows = packing
    if isinstance(source.source, FeaturesSource):
        rows = RowsWithHidden(packing, path=source.source.path, taps=source.source.taps)
    return _Part(packing=packing, rows=rows, share=source.source.share)


def _batches(parts: Sequence[_Part | None], *, rows: int, seed: int) -> RowBatches | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if any(part.share is not None for part in present):
        return RowBatches([(part.rows, part.share or 0.0) for part in present], rows=rows, seed=seed)
    pool = present[0].rows if len(present) == 1 else ConcatenatedRows([part.rows for part in present])
    return RowBatches([(pool, 1.0)], rows=rows, seed=seed)


def _check(
    sources: Sequence[TokenisedSource], training: Sequence[_Part | None], config: DataConfig, length: int
) -> None:
    """Raise ValueError for a source without training rows, and if nothing is held out although a share was given."""
    for source, part in zip(sources, training, strict=True):
        records = [record for record in source.records if record.split == Split.TRAIN.value]
        num_tokens, num_learned = sum(r.num_tokens for r in records), sum(r.num_learned for r in records)
        name = f"data: {source.records[0].name}{' and more' if len(source.records) > 1 else ''}"
        if not any(record.num_tokens for record in source.records):
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
    held_out = sum(_held_out_tokens(source) for source in sources)
    if config.validation.share and not held_out:
        raise ValueError(
            f"data: nothing falls to validation (share {config.validation.share} by {config.validation.by}); give by: "
            "document, a source with split: validation, or share: 0 for none"
        )


def _held_out_tokens(source: TokenisedSource) -> int:
    return sum(record.num_tokens for record in source.records if record.split == Split.VALIDATION.value)


def _present(parts: Sequence[_Part | None]) -> list[Packing]:
    return [part.packing for part in parts if part is not None]


def _counts(parts: Sequence[_Part | None]) -> SplitCounts:
    packings = _present(parts)
    return SplitCounts(num_rows=sum(p.num_rows for p in packings), num_unused=sum(p.num_unused for p in packings))
