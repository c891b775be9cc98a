"""From the section ``data`` to training batches, held-out batches and prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch import Tensor

from paceline.text.tokenizer import Tokenizer
from paceline.train.data.config import DataConfig, FeaturesSource, Source
from paceline.train.data.encoders import Encoder, make_encoder
from paceline.train.data.manifest import Manifest, Split, check_disjoint
from paceline.train.data.mixture import ConcatenatedRows, RowBatches
from paceline.train.data.order import Shuffle
from paceline.train.data.packing import PACKINGS, Packing, Rows
from paceline.train.data.pair_encoder import PairEncoder, PairModel, make_pair_encoder
from paceline.train.data.pairs import pack_pairs
from paceline.train.data.sources.features import RowsWithHidden
from paceline.train.data.store import open_split
from paceline.train.data.tokenise import TokenisedSource, tokenise_sources

COUNTED_AT_ONCE = 1 << 22  # tokens
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
    packings: Mapping[Split, Sequence[Packing]]  # of every source that has rows
    sources: Sequence[TokenisedSource]

    @property
    def counts(self) -> Mapping[Split, SplitCounts]:
        """Of training and held-out rows."""
        return {
            split: SplitCounts(
                num_rows=sum(packing.num_rows for packing in packings),
                num_unused=sum(packing.num_unused for packing in packings),
            )
            for split, packings in self.packings.items()
        }

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token [V] is learned in the training split, documents' first tokens included."""
        counts = np.zeros(vocab_size, np.int64)
        for packing in self.packings[Split.TRAIN]:
            tokens, learned = packing.split.tokens, packing.split.learned
            for start in range(0, len(tokens), COUNTED_AT_ONCE):
                part = np.asarray(tokens[start : start + COUNTED_AT_ONCE])
                if learned is not None:
                    part = part[learned[start : start + COUNTED_AT_ONCE]]
                counts += np.bincount(part, minlength=vocab_size)
        return counts

    def prompts(self, count: int, length: int, *, split: Split = Split.VALIDATION, seed: int = 0) -> np.ndarray:
        """Prefixes [count, length] of rows of ``split``, chosen by ``seed``; fewer if there are fewer.

        Each is of one document. If some tokens are not learned, it ends before the first learned one, provided
        ``length`` tokens are before it. Raises ValueError if no row has ``length`` tokens of one document.
        """
        pool = ConcatenatedRows(self.packings[split])
        order = Shuffle(size=max(1, pool.num_rows), seed=seed, epoch=0)
        places = (pool.locate(order[number]) for number in range(pool.num_rows))
        found = (packing.prompt(index, length) for packing, index in places)
        prompts = list(islice((prompt for prompt in found if prompt is not None), count))
        if not prompts:
            raise ValueError(
                f"data: no document of the split {split.value} has a prompt of {length} tokens; ask for shorter ones, "
                "or hold out more"
            )
        return np.stack(prompts)

    def openings(self, count: int, *, split: Split = Split.VALIDATION, seed: int = 0) -> list[tuple[list[int], Tensor]]:
        """Of ``count`` pairs of ``split``, chosen by ``seed``: the tokens before the learned ones, and the source."""
        pool = ConcatenatedRows(self.packings[split])
        order = Shuffle(size=max(1, pool.num_rows), seed=seed, epoch=0)
        found: list[tuple[list[int], Tensor]] = []
        for number in range(min(count, pool.num_rows)):
            row = pool.row(order[number])
            assert row.source is not None
            found.append((row.tokens[: int(np.argmax(row.learned))].tolist(), row.source))
        return found


def make_batches(
    config: DataConfig,
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    end_of_text: int | None,
    rows: int,
    length: int,
    seed: int,
    pairs_for: PairModel | None = None,
) -> PreparedData:
    """Batches of ``rows`` rows of ``length`` + 1 tokens, for a target of ``vocab_size`` tokens.

    ``tokenizer`` is the target's, ``end_of_text`` the id that ends its texts; ``pairs_for`` is the target if it has an
    encoder, and its data are pairs. Everything is tokenised before it returns, unless it is in the cache. Raises
    ValueError for a corpus that is missing, empty, unreadable, shorter than a row, of another vocabulary, or without
    learned tokens.
    """
    encoder: Encoder = (
        make_encoder(config, tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end_of_text)
        if pairs_for is None
        else make_pair_encoder(config, pairs_for, tokenizer=tokenizer, vocab_size=vocab_size)
    )
    if len({source.share is None for source in config.sources}) > 1:
        raise ValueError("data: some sources have a share and others none; give one to all, or to none")
    if len({isinstance(source, FeaturesSource) for source in config.sources}) > 1:
        raise ValueError("data: hidden states for some sources and not for others; compute them for all, or for none")
    sources = tokenise_sources(config, encoder)
    check_disjoint(file for source in sources for file in source.files)
    packed = {
        split: [(source, _pack(source, split, config, length, encoder)) for source in sources]
        for split in (Split.TRAIN, Split.VALIDATION)
    }
    _check(packed[Split.TRAIN], length)
    batches = _batches(packed[Split.TRAIN], rows=rows, seed=seed)
    held_out = _batches(packed[Split.VALIDATION], rows=rows, seed=HELD_OUT_SEED)
    if batches is None:
        raise ValueError("data: everything is held out; give a source to train on, or a smaller validation share")
    num_held_out = sum(source.num_tokens(Split.VALIDATION) for source in sources)
    if config.validation.share and not num_held_out:
        raise ValueError(
            f"data: nothing falls to validation (share {config.validation.share} by {config.validation.by}); give by: "
            "document, a source with split: validation, or share: 0 for none"
        )
    if held_out is None and num_held_out:
        raise ValueError(
            f"data: what is held out fills no row of {length + 1} tokens; hold out more, or lower the length"
        )
    settings = {
        "encoder": encoder.fingerprint,
        "packing": config.packing,
        "segments": str(config.segments),
        "length": str(length),
    }
    records = tuple(record for source in sources for record in source.records)
    return PreparedData(
        batches=batches,
        held_out=held_out,
        manifest=Manifest(files=records, settings=tuple(settings.items())),
        packings={split: [packing for _, packing in parts if packing is not None] for split, parts in packed.items()},
        sources=sources,
    )


def _pack(source: TokenisedSource, split: Split, config: DataConfig, length: int, encoder: Encoder) -> Packing | None:
    """The rows of a split; None if it has none."""
    tokens = open_split(source.folder, split)
    if tokens is None:
        return None
    if isinstance(encoder, PairEncoder):
        pairs = pack_pairs(source, split, tokens, encoder, length=length)
        return pairs if pairs.num_rows else None
    segmented = config.packing == "packed" and config.segments and len(tokens.ends) > 1
    packing = PACKINGS[config.packing](tokens, length=length, segmented=segmented)
    return packing if packing.num_rows else None


def _batches(parts: Sequence[tuple[TokenisedSource, Packing | None]], *, rows: int, seed: int) -> RowBatches | None:
    pools = [(_with_hidden(packing, part.source), part.source.share) for part, packing in parts if packing is not None]
    if not pools:
        return None
    shares = [(pool, share) for pool, share in pools if share is not None]
    return RowBatches(shares or [(ConcatenatedRows([pool for pool, _ in pools]), 1.0)], rows=rows, seed=seed)


def _with_hidden(packing: Packing, source: Source) -> Rows:
    if not isinstance(source, FeaturesSource):
        return packing
    return RowsWithHidden(packing, path=source.path, taps=source.taps)


def _check(training: Sequence[tuple[TokenisedSource, Packing | None]], length: int) -> None:
    """Raise ValueError for a source that is empty, or whose training tokens give no row."""
    for source, packing in training:
        num_tokens = source.num_tokens(Split.TRAIN)
        name = f"data: {source.records[0].name}{' and more' if len(source.records) > 1 else ''}"
        if not any(record.num_tokens for record in source.records):
            raise ValueError(f"{name}: no text in it; give a corpus that is not empty")
        if packing is not None or not num_tokens:
            continue
        if not any(record.num_learned for record in source.records if record.split == Split.TRAIN.value):
            raise ValueError(
                f"{name}: none of its {num_tokens} tokens is learned; check loss_mask, or whose turns these are"
            )
        raise ValueError(
            f"{name}: {num_tokens} tokens to train on, and a row has {length + 1}; give more text, a lower length, or "
            "packing: documents"
        )
