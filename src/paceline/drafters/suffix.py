"""Drafts what followed the sequence's last tokens before, in itself and in earlier outputs (SuffixDecoding).

R rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from paceline.core.context import token_source
from paceline.core.host_draft import HostDraft
from paceline.core.request import Request
from paceline.core.token_index import (
    MAX_DRAFT,
    PlainTokenIndex,
    SuffixOptions,
    TokenIndex,
    draft_from_plain,
)
from paceline.drafters.base import DrafterContext
from paceline.drafters.host import HostDrafter
from paceline.drafters.token_store import TokenStore, TokenStoreError, new_index
from paceline.kernels.cpu.token_index import KernelSuffixDrafts, KernelTokenIndex

SUFFIX = ".outputs"  # of a store's file


@final
class SuffixDrafter(HostDrafter):
    """Copies from the sequence, from its encoder's tokens, and from earlier outputs what most often followed its last
    tokens (2411.04975).

    Of the latest occurrences of the last tokens, ``min_match`` (1) to ``max_match`` (64) of them, it takes those whose
    continuations promise most accepted tokens by their counts. A draft has at most ``factor`` (2.0) times as many
    tokens as match, plus ``offset`` (0), and only tokens whose probability by the counts is at least ``min_prob``
    (0.1). ``max_depth`` (None: no limit) limits a draft and its match together. ``tree`` (false) drafts several
    continuations at once; few verifiers take that.

    Outputs that end are kept, at most ``max_tokens`` (1,000,000) tokens of them (0: none) and ``max_outputs`` (None: no
    limit), and later requests copy from them: their speed then tells what others have asked, so requests of different
    tenants belong in stores of other names (``Request.draft_store``). Under a verifier whose tokens depend on drafts
    nothing is kept, so that a seed gives the same tokens again. ``store`` (None: memory) is a directory in which each
    store is a file, which is there again after a restart or a kill; ``vocabulary`` names the target's tokens in it.
    Raises ValueError for options out of range.
    """

    origins = ("suffix",)
    copies = True

    def __init__(
        self,
        *,
        min_match: int = 1,
        max_match: int = 64,
        factor: float = 2.0,
        offset: float = 0.0,
        min_prob: float = 0.1,
        max_depth: int | None = None,
        tree: bool = False,
        max_tokens: int = 1_000_000,
        max_outputs: int | None = None,
        store: str | None = None,
        vocabulary: str | None = None,
    ) -> None:
        if not 1 <= min_match <= max_match <= MAX_DRAFT:
            raise ValueError(
                f"min_match={min_match}, max_match={max_match}: need 1 <= min_match <= max_match <= {MAX_DRAFT}"
            )
        if not 0 <= factor < float("inf") or not 0 <= offset < float("inf"):
            raise ValueError(f"factor={factor}, offset={offset}: give numbers of at least 0")
        if not 0 <= min_prob <= 1:
            raise ValueError(f"min_prob={min_prob}: give a probability, from 0 to 1")
        if max_depth is not None and max_depth <= min_match:
            raise ValueError(f"max_depth={max_depth}: give more than min_match={min_match}, so that a draft has room")
        if max_tokens < 0:
            raise ValueError(f"max_tokens={max_tokens}: give 0 (keep no outputs) or a positive count")
        if max_outputs is not None and max_outputs < 0:
            raise ValueError(f"max_outputs={max_outputs}: give 0 (keep no outputs) or a positive count")
        if store is not None and Path(store).is_file():
            raise ValueError(f"store={store} is a file: give a directory, in which each store is a file")
        self.options = SuffixOptions(
            min_match=min_match,
            max_match=max_match if max_depth is None else min(max_match, max_depth - 1),
            factor=factor,
            offset=offset,
            min_prob=min_prob,
            branches=tree,
            max_depth=max_depth,
        )
        self.branches, self.max_tokens, self.max_outputs = tree, max_tokens, max_outputs
        self.folder, self.vocabulary = None if store is None else Path(store), vocabulary
        self.stores: dict[str, TokenStore] = {}

    def start(self, context: DrafterContext) -> None:
        """An empty index for every row; stores stay.

        Raises ValueError for a store of another vocabulary, and for one where tokens depend on drafts.
        """
        if self.folder is not None and not context.same_tokens:
            raise ValueError(
                f"store={self.folder} and a verifier whose tokens depend on what is drafted: a seed would not give the "
                "same tokens again; leave the store out, or give the verifier 'coupled'"
            )
        self._keeps = self.max_tokens > 0 and self.max_outputs != 0 and context.same_tokens
        self._indices = [new_index() for _ in range(context.rows)]
        self._num_known = [0] * context.rows  # tokens of each row that its index has
        self._prompt_length, self._store_name = [0] * context.rows, [""] * context.rows
        self._input = token_source(context.target.context_inputs)
        self._names = self.vocabulary or f"{context.vocab_size} tokens"
        self._kernel = None
        if context.max_draft_tokens and isinstance(self._indices[0], KernelTokenIndex):
            width = min(MAX_DRAFT, context.max_draft_tokens)
            self._kernel = KernelSuffixDrafts(rows=context.rows, width=width, options=self.options)
        self._store("")

    def begin(self, row: int, request: Request) -> None:
        """Index the prompt, behind what an encoder reads."""
        self._indices[row].clear()
        if self._input is not None:
            self._indices[row].append(request.source(self._input))
        self._indices[row].append(request.tokens)
        self._num_known[row] = self._prompt_length[row] = len(request.tokens)
        self._store_name[row] = request.draft_store
        self._store(request.draft_store)

    def end(self, row: int, sequence: Sequence[int]) -> None:
        """Keep the output for later requests."""
        store = self._store(self._store_name[row])
        if store is not None:
            store.append(sequence[self._prompt_length[row] :])

    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, HostDraft]:
        """The drafts that promise most accepted tokens."""
        added: list[Sequence[int]] = []
        for row, tokens in sequences.items():
            added.append(tokens[self._num_known[row] :])
            self._num_known[row] = len(tokens)
        own = [self._indices[row] for row in sequences]
        kept = [self._store(self._store_name[row]) for row in sequences]
        stores = [None if store is None else store.index for store in kept]
        found = self._draft(own, stores, added, num_draft_tokens)
        return {row: draft for row, draft in zip(sequences, found, strict=True) if draft.tokens}

    def _draft(
        self,
        own: Sequence[TokenIndex],
        stores: Sequence[TokenIndex | None],
        added: Sequence[Sequence[int]],
        most: int,
    ) -> list[HostDraft]:
        if self._kernel is not None:
            return self._kernel.draft(own, stores, added, [most] * len(own))
        found: list[HostDraft] = []
        for index, store, tokens in zip(own, stores, added, strict=True):
            assert isinstance(index, PlainTokenIndex) and isinstance(store, PlainTokenIndex | None)
            index.append(tokens)
            found.append(draft_from_plain(index, store, most=most, options=self.options))
        return found

    def _store(self, name: str) -> TokenStore | None:
        """The store of a name, opened when it is first asked for; None if outputs are not kept."""
        if not self._keeps:
            return None
        if name not in self.stores:
            path = None if self.folder is None else self.folder / f"{_file_name(name)}{SUFFIX}"
            self.stores[name] = TokenStore(
                path=path, vocabulary=self._names, max_tokens=self.max_tokens, max_outputs=self.max_outputs
            )
        return self.stores[name]


def _file_name(name: str) -> str:
    """A file name that no other name has, and that leaves no directory."""
    if not name:
        return "shared"
    if len(name) > 100:
        raise TokenStoreError(f"draft_store={name[:20]!r}...: a name of {len(name)} characters; give at most 100")
    return "named-" + "".join(one if one.isalnum() and one.isascii() else f"%{ord(one):x}%" for one in name)
