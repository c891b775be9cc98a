"""Drafts with a model of any tokenizer by exchanging text: string-level exact match (SLEM, 2502.05202).

R rows, n tokens of a call.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import ceil
from typing import Any, Protocol, final

import torch

from paceline.core.host import integers
from paceline.core.request import Request
from paceline.drafters.base import DrafterContext
from paceline.drafters.host import HostDrafter
from paceline.models.base import LM, LogitsFor, max_sequence_length
from paceline.models.prefill import CHUNK, read_next

SLOTS_PER_TOKEN = 2  # of the cache; a row whose text takes more of the draft's tokens is not drafted for
MAX_STEPS_PER_TOKEN = 2  # forwards of the draft for each of the target's tokens that is asked for


class Exchanged(Protocol):
    """A row's sequence in the draft's tokens, which may change at its end when it grows."""

    tokens: list[int]


class TextExchange(Protocol):
    """Converts between the target's tokens and the draft's by their text (text/retokenizer.Retokenizer)."""

    draft_tokens_per_token: float  # of an ordinary text

    def begin(self) -> Any:
        """An empty ``Exchanged``."""
        ...

    def read(self, into: Any, tokens: Sequence[int]) -> None:
        """Extend ``into`` by those of the target's ``tokens``, a whole sequence, that are new."""
        ...

    def drafted(self, sequence: Sequence[int], read: Any, tokens: Sequence[int]) -> list[int]:
        """The target's tokens after its ``sequence``, from draft ``tokens`` after what was ``read`` of it."""
        ...


@final
class SlemDrafter(HostDrafter):
    """A draft model with a tokenizer of its own, whose drafts are encoded again with the target's.

    ``text`` is what converts between the two. It drafts the most probable tokens, for all rows together, on the host's
    side of a step: what the target accepts depends on their text alone. Its cache keeps what a row's draft tokens have
    in common with those before.
    """

    origins = ("slem",)

    def __init__(self, *, lm: LM, text: TextExchange) -> None:
        self.lm, self.text = lm, text

    @property
    def slot_bytes(self) -> int:
        return SLOTS_PER_TOKEN * self.lm.slot_bytes

    def start(self, context: DrafterContext) -> None:
        """A cache for the longest sequence that both the target's rows and the draft's context allow."""
        most = max(1, MAX_STEPS_PER_TOKEN * context.max_draft_tokens)
        self.max_context = min(SLOTS_PER_TOKEN * context.max_length, max_sequence_length(self.lm, num_nodes=1) - most)
        if self.max_context < 1:
            raise ValueError(
                f"{context.max_draft_tokens} draft tokens leave no room in the draft model's context of "
                f"{self.lm.max_positions} tokens: lower num_draft_tokens"
            )
        self.rows = context.rows
        self.cache = self.lm.new_cache(context.rows, self.max_context + most + CHUNK).view()
        self.cached: list[list[int]] = [[] for _ in range(context.rows)]  # the tokens in the cache
        self.read: dict[int, Any] = {}

    def begin(self, row: int, request: Request) -> None:
        self.read[row] = self.text.begin()

    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, Sequence[int]]:
        known: dict[int, list[int]] = {}
        for row, sequence in sequences.items():
            self.text.read(self.read[row], sequence)
            tokens = self.read[row].tokens
            if 0 < len(tokens) <= self.max_context:
                known[row] = list(tokens)
        if not known:
            return {}
        steps = ceil(num_draft_tokens * min(MAX_STEPS_PER_TOKEN, max(1.0, self.text.draft_tokens_per_token)))
        with torch.inference_mode():
            drafts = self._draft(known, steps)
        return {row: self.text.drafted(sequences[row], self.read[row], draft) for row, draft in drafts.items()}

    def _draft(self, known: Mapping[int, Sequence[int]], steps: int) -> dict[int, list[int]]:
        """``steps`` greedy draft tokens after those ``known`` of each row."""
        device = self.lm.device
        for row, tokens in known.items():  # the last token is read in any case, for the logits after it
            pairs = zip(self.cached[row], tokens[:-1], strict=False)
            del self.cached[row][sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]
        self.cache.truncate(torch.tensor([len(tokens) for tokens in self.cached], device=device))
        token = self._read(known)
        drafted, count = [token], torch.zeros(self.rows, dtype=torch.int64, device=device)
        count[torch.tensor(list(known), device=device)] = 1
        for _ in range(steps - 1):
            logits = read_next(self.lm, self.cache, token[:, None], count, logits_for=LogitsFor.LAST).logits
            assert logits is not None
            token = logits[:, 0].argmax(-1)
            drafted.append(token)
        found = [integers(tokens) for tokens in torch.stack(drafted, dim=1).cpu()]
        for row, tokens in known.items():
            self.cached[row] = [*tokens, *found[row][:-1]]
        return {row: found[row] for row in known}

    def _read(self, known: Mapping[int, Sequence[int]]) -> torch.Tensor:
        """Read what the cache lacks of ``known``; the most probable token [R] after it."""
        unread = {row: list(tokens[len(self.cached[row]) :]) for row, tokens in known.items()}
        longest = max(map(len, unread.values()))
        token = torch.zeros(self.rows, dtype=torch.int64, device=self.lm.device)
        for start in range(0, longest, CHUNK):
            parts = {row: tokens[start : start + CHUNK] for row, tokens in unread.items()}
            size = max(map(len, parts.values()))
            chunk = [[*parts.get(row, ()), *[0] * (size - len(parts.get(row, ())))] for row in range(self.rows)]
            lengths = [len(parts.get(row, ())) for row in range(self.rows)]
            count = torch.tensor(lengths, device=self.lm.device)
            tokens = torch.tensor(chunk, device=self.lm.device)
            logits = read_next(self.lm, self.cache, tokens, count, logits_for=LogitsFor.LAST).logits
            assert logits is not None
            token = torch.where(count > 0, logits[:, 0].argmax(-1), token)
        return token
