"""Drafts what follows the sequence's last tokens in a datastore of texts (REST, 2311.08252).

R rows.
"""

from collections.abc import Mapping, Sequence
from typing import final

from paceline.core.host_draft import HostDraft
from paceline.core.token_index import MAX_DRAFT, SuffixOptions, likeliest
from paceline.drafters.base import DrafterContext
from paceline.drafters.datastore import BUILD, Datastore
from paceline.drafters.host import HostDrafter

MAX_NODES = 64  # of a draft
MAX_PLACES = 64  # occurrences that a draft is made from


@final
class RetrievalDrafter(HostDrafter):
    """Copies from a datastore what most often follows the last tokens there; needs no model.

    ``store`` is the directory that ``paceline datastore build`` wrote. Of the last ``max_match`` (64) tokens, the
    longest suffix that occurs in it is taken, of at least ``min_match`` (2) tokens. A draft has at most ``factor``
    (2.0) times as many tokens as match, plus ``offset`` (0), and never more than 64; only tokens whose probability by
    the counts is at least ``min_prob`` (0.1) are drafted. ``tree`` (false) drafts several continuations at once; few
    verifiers take that. ``vocabulary`` names the target's tokens; without it only their number is compared.

    Raises ValueError for options out of range, and DatastoreError for a store that is missing, not whole, or of another
    tokenizer.
    """

    origins = ("retrieval",)
    copies = True

    def __init__(
        self,
        *,
        store: str = "",
        min_match: int = 2,
        max_match: int = 64,
        factor: float = 2.0,
        offset: float = 0.0,
        min_prob: float = 0.1,
        tree: bool = False,
        vocabulary: str | None = None,
    ) -> None:
        if not store:
            raise ValueError(f"the drafter retrieval needs a datastore: give retrieval:DIR, built by {BUILD}")
        if not 1 <= min_match <= max_match <= MAX_DRAFT:
            raise ValueError(
                f"min_match={min_match}, max_match={max_match}: need 1 <= min_match <= max_match <= {MAX_DRAFT}"
            )
        if not 0 <= factor < float("inf") or not 0 <= offset < float("inf"):
            raise ValueError(f"factor={factor}, offset={offset}: give numbers of at least 0")
        if not 0 <= min_prob <= 1:
            raise ValueError(f"min_prob={min_prob}: give a probability, from 0 to 1")
        self.options = SuffixOptions(
            min_match=min_match, max_match=max_match, factor=factor, offset=offset, min_prob=min_prob, branches=tree
        )
        self.branches, self.vocabulary = tree, vocabulary
        self.store = Datastore(store)
        if vocabulary is not None:
            self.store.check(vocab_size=self.store.header.vocab_size, vocabulary=vocabulary)

    def start(self, context: DrafterContext) -> None:
        """Raises DatastoreError for a store of another vocabulary than the target's."""
        self.store.check(vocab_size=context.vocab_size, vocabulary=self.vocabulary)

    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, HostDraft]:
        """The likeliest continuations of the longest match of each row."""
        drafts: dict[int, HostDraft] = {}
        for row, tokens in sequences.items():
            draft = self._draft(tokens, min(num_draft_tokens, MAX_NODES))
            if draft is not None:
                drafts[row] = draft
        return drafts

    def _draft(self, sequence: Sequence[int], most: int) -> HostDraft | None:
        options, tokens = self.options, self.store.tokens
        found = self.store.find(sequence, min_match=options.min_match, max_match=options.max_match)
        if found is None:
            return None
        draft = likeliest(
            lambda place, number: tokens[place + 1 + number],
            self.store.places(found, MAX_PLACES),
            match=found.match,
            most=most,
            options=options,
        )
        return draft if draft.tokens else None
