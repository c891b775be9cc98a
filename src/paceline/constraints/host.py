"""Applies host constraints at every node of a draft: grammars and external logits processors.

Without constrained rows, nothing is read from the device. R rows, r rows with grammars, N nodes, V vocabulary.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.constraints.token_masks import Draft, commit, masks, prune
from paceline.core.batch import Batch
from paceline.core.constraint import Grammar, Processor
from paceline.core.errors import without_frames
from paceline.core.host import table
from paceline.core.request import NEVER, Request
from paceline.core.scores import TokenMask
from paceline.core.tree import Draw, Tree, path_tokens

logger = logging.getLogger("paceline")


@dataclass(slots=True, kw_only=True)
class _RowConstraints:
    """The constraints of one row."""

    request: Request
    seen: int  # tokens that the grammars have advanced by, and the prompt's
    grammars: list[Grammar] = field(default_factory=list[Grammar])
    processors: list[Processor] = field(default_factory=list[Processor])


# The nodes of a row and the tokens that its grammars allow after them, bool [n, V]; or the error that was raised.
_Masks: TypeAlias = "tuple[list[int], Tensor] | Exception"


@final
class HostConstraints:
    """The constraints of the rows of one batch. With ``replaces``, forced tokens replace the drafter's.

    A constraint that raises fails only its row: the error is kept in ``failures`` until it is taken, and the row runs
    unconstrained until it is released; its tokens from that step on are to be dropped.
    """

    def __init__(self, *, batch: Batch, replaces: bool = False) -> None:
        self.batch = batch
        self._replaces = replaces
        self.failures: dict[int, Exception] = {}
        self._rows: dict[int, _RowConstraints] = {}  # by row
        self._drafts: dict[int, Draft] = {}  # of the step, rows that run
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[dict[int, _Masks]] | None = None

    @property
    def busy(self) -> bool:
        """Whether any row has constraints. Such steps read from the device and cannot be recorded."""
        return bool(self._rows)

    def admit(self, rows: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin the constraints of ``requests``. If one raises, nothing has changed."""
        begun = {row: _begin(request) for row, request in zip(rows, requests, strict=True) if request.constraints}
        self.release(rows)
        self._rows.update(begun)

    def release(self, rows: Iterable[int]) -> None:
        """Drop the constraints of ``rows``."""
        for row in rows:
            self._rows.pop(row, None)
            self.failures.pop(row, None)

    def take_failures(self) -> dict[int, Exception]:
        """Errors that constraints have raised since the last call, by row."""
        failures, self.failures = self.failures, {}
        return failures

    def prune(self, tree: Tree) -> Tree:
        """``tree`` without the nodes that a grammar forbids; token masks are computed while the target runs.

        The remaining nodes have the distribution that they were drawn from, given that the token is allowed; verifiers
        restrict draft probabilities accordingly.
        """
        self._drafts.clear()
        if not self._rows:
            return tree
        self._wait()
        kept: dict[int, list[bool]] = {}
        forced: dict[int, int] = {}  # number of forced tokens at the beginning of a draft
        replaced = False
        for row, (tokens, draft) in self._read(tree).items():
            own = self._rows[row]
            try:
                commit(own.grammars, tokens)
                own.seen += len(tokens)
                if own.grammars:
                    if self._replaces and tree.chain:
                        proposed, (draft, forced[row]) = draft, draft.begun(own.grammars[0].forced(), most=_room(own))
                        replaced = replaced or draft is not proposed
                    kept[row] = prune(own.grammars, draft)
                    draft = replace(draft, valid=kept[row])
                self._drafts[row] = draft
            except Exception as error:
                kept.pop(row, None)
                forced.pop(row, None)
                self._fail(row, error)
        if not kept:
            return tree
        asked = {row: (self._rows[row].grammars, self._drafts[row]) for row in kept}
        if self._worker is None:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paceline-grammars")
        size = self.batch.processing.vocab_size
        self._pending = self._worker.submit(_find_masks, asked, size)
        tree = self._with_forced(tree, forced, replaced) if any(forced.values()) else tree
        return self._with_valid(tree, kept)

    def mask(self, tree: Tree, logits: Tensor) -> tuple[Tensor, TokenMask | None]:
        """``logits`` [R, N, V] after every row's constraints at each of its nodes, and the grammars' token mask."""
        if not self._drafts:
            return logits, None
        masked = logits.to(torch.promote_types(logits.dtype, torch.float32))
        masked = masked.clone() if masked is logits else masked
        self._call_processors(tree, masked)
        found = self._take_masks()
        if not found:
            return masked, None
        rows = list(found)
        index = torch.tensor(rows, device=masked.device)
        allowed = torch.ones(len(rows), *masked.shape[1:], dtype=torch.bool)
        ends = torch.zeros(allowed.shape[:2], dtype=torch.bool)  # nodes at which the output may be complete
        for place, (row, (nodes, one)) in enumerate(found.items()):
            allowed[place, nodes] = one
            ends[place, nodes] = self._may_end(self._rows[row].request, one)
        allowed, ends = allowed.to(masked.device), ends.to(masked.device)
        own = masked[index].masked_fill(~allowed, NEVER)
        left = (own > NEVER).any(-1)
        own[..., 0] = torch.where(left, own[..., 0], 0.0)
        masked[index] = own
        return masked, TokenMask(rows=index, allowed=allowed, starved=~left & ~ends & tree.valid[index])

    def _read(self, tree: Tree) -> dict[int, tuple[list[int], Draft]]:
        """The running rows' new tokens since the last call, and their drafts. One transfer to the host."""
        batch, rows = self.batch, list(self._rows)
        index = torch.tensor(rows, device=batch.device)
        width, nodes = batch.max_depth + 1, tree.num_nodes  # width: the most tokens of a step
        length = batch.length[index, None]
        at = (length - width + torch.arange(width, device=batch.device)).clamp(min=0)
        parts = (tree.tokens[index], tree.parents[index], tree.valid[index].long())
        head = (length, batch.active[index, None].long(), batch.tokens[index].gather(1, at))
        found: dict[int, tuple[list[int], Draft]] = {}
        for row, entry in zip(rows, table(torch.cat((*head, *parts), dim=1)), strict=True):
            length, active, newest, entry = entry[0], entry[1], entry[2 : 2 + width], entry[2 + width :]
            if not active:
                continue
            draft = Draft(
                tokens=entry[:nodes],
                parents=entry[nodes : 2 * nodes],
                valid=[bool(flag) for flag in entry[2 * nodes :]],
            )
            found[row] = (newest[width - (length - self._rows[row].seen) :], draft)
        return found

    def _with_forced(self, tree: Tree, forced: dict[int, int], replaced: bool) -> Tree:
        """``tree`` with the first ``forced`` tokens of rows as fixed choices, even where the drafter drew the same."""
        device = tree.tokens.device
        index, number = (torch.tensor(list(some), device=device)[:, None] for some in (forced, forced.values()))
        node = torch.arange(tree.num_nodes, device=device)
        fixed = torch.zeros_like(tree.valid)
        fixed[index[:, 0]] = (node > 0) & (node <= number)
        tokens = tree.tokens
        if replaced:
            tokens = tokens.clone()
            tokens[index[:, 0]] = torch.tensor([self._drafts[row].tokens for row in forced], device=device)
        draw, source = torch.where(fixed, int(Draw.FIXED), tree.draw), torch.where(fixed, -1, tree.source)
        # The drafter's hidden states belong to the tokens that were replaced.
        return replace(tree, tokens=tokens, draw=draw, source=source, resume=None if replaced else tree.resume)

    def _with_valid(self, tree: Tree, kept: dict[int, list[bool]]) -> Tree:
        valid = tree.valid.clone()
        index = torch.tensor(list(kept), device=valid.device)
        valid[index] = torch.tensor(list(kept.values()), device=valid.device)
        return replace(tree, valid=valid)

    def _call_processors(self, tree: Tree, scores: Tensor) -> None:
        """Apply each row's processors to its ``scores`` [R, N, V] at every valid node."""
        called = [row for row in self._drafts if self._rows[row].processors]
        if not called:
            return
        ways = path_tokens(tree)
        for row in called:
            own, draft = self._rows[row], self._drafts[row]
            known = self.batch.tokens[row, : own.seen]
            try:
                for node, valid in enumerate(draft.valid):
                    if valid:
                        way = ways[row, node]
                        tokens = torch.cat((known, way[: draft.depth(node)]))
                        scores[row, node] = _processed(own.processors, tokens, scores[row, node])
            except Exception as error:
                self._fail(row, error)

    def _take_masks(self) -> dict[int, tuple[list[int], Tensor]]:
        """The masks of rows whose grammars have not failed."""
        asked, self._pending = self._pending, None
        found: dict[int, tuple[list[int], Tensor]] = {}
        for row, one in ({} if asked is None else asked.result()).items():
            if row not in self._rows:
                continue
            if isinstance(one, Exception):
                self._fail(row, one)
            else:
                found[row] = one
        return found

    def _wait(self) -> None:
        """Wait for the worker, which may still use the grammars after an interrupted step."""
        if self._pending is not None:
            self._pending.exception()
            self._pending = None

    def _fail(self, row: int, error: Exception) -> None:
        logger.debug("where the constraints of row %d failed", row, exc_info=error)
        self.failures[row] = without_frames(error)
        del self._rows[row]
        self._drafts.pop(row, None)

    @staticmethod
    def _may_end(request: Request, allowed: Tensor) -> Tensor:
        """Where no token need be allowed [n]: the output is complete, but has no stop token or lacks ``min_tokens``."""
        if request.min_tokens:
            allowed = allowed.clone()
            allowed[:, [token for token in request.stop_tokens if token < allowed.shape[1]]] = False
        return ~allowed.any(-1)


def _begin(request: Request) -> _RowConstraints:
    own = _RowConstraints(request=request, seen=len(request.tokens))
    for constraint in request.constraints:
        state = constraint.begin(request.tokens)
        if isinstance(state, Grammar):
            own.grammars.append(state)
        else:
            own.processors.append(state)
    return own


def _find_masks(asked: dict[int, tuple[list[Grammar], Draft]], vocab_size: int) -> dict[int, _Masks]:
    """The masks of each row, or its error."""
    found: dict[int, _Masks] = {}
    for row, (grammars, draft) in asked.items():
        try:
            found[row] = masks(grammars, draft, vocab_size)
        except Exception as error:
            found[row] = error
    return found


def _room(own: _RowConstraints) -> int:
    """The most draft tokens that the row's limits allow."""
    request = own.request
    room = len(request.tokens) + request.max_tokens - own.seen - 1
    return room if request.num_draft_tokens is None else min(room, request.num_draft_tokens)


def _processed(processors: Sequence[Processor], tokens: Tensor, logits: Tensor) -> Tensor:
    """``logits`` [V] after all processors, in order. Raises ValueError if one returns no valid logits."""
    shape = logits.shape
    for processor in processors:
        given = processor.process(tokens.clone(), logits.clone())
        if not isinstance(given, Tensor) or given.shape != shape or not given.is_floating_point():
            form = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(f"a logits processor gave {form}: it must give logits {list(shape)}")
        if bool((given.isnan() | (given == torch.inf)).any()) or not bool((given > NEVER).any()):
            raise ValueError("a logits processor gave NaN, infinity or no token at all: it must leave one to follow")
        logits = given.to(logits)
    return logits
