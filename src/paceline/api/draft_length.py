"""``num_draft_tokens``: a number, "auto", or a Plan."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from paceline.core.plan import Fixed, Plan
from paceline.drafters.base import Drafter
from paceline.drafters.none import NoDrafter
from paceline.engine.controller import Controller
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge, knowledge_of, new_knowledge
from paceline.engine.watch import Watch
from paceline.models.base import LM
from paceline.verifiers.base import Verifier

NumDraftTokens: TypeAlias = int | Literal["auto"] | Plan


def check_draft_length(count: NumDraftTokens) -> None:
    """Raise ValueError for anything else."""
    if isinstance(count, Plan) or count == "auto":
        return
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValueError(f'num_draft_tokens={count!r}: give a number, "auto" or a Plan')
    Fixed(count)


def longest_draft(count: NumDraftTokens, drafter: Drafter) -> int:
    """The deepest draft that may come."""
    check_draft_length(count)
    if isinstance(count, Plan):
        return count.max_draft_tokens
    if isinstance(drafter, NoDrafter):
        return 0
    return MAX_DRAFT_TOKENS if count == "auto" else count


def is_controlled(count: NumDraftTokens, *, drafter: Drafter, verifier: Verifier) -> bool:
    """Whether a controller chooses draft lengths by what is known of the target and the drafter."""
    return count == "auto" and verifier.same_tokens and longest_draft(count, drafter) > 0


def plan_of(
    count: NumDraftTokens,
    *,
    target: LM,
    drafter: Drafter,
    verifier: Verifier,
    rows: int,
    begin: Callable[[Knowledge], None] | None = None,
) -> Plan:
    """The plan of an engine. ``begin`` adds to what is known of a target and a drafter where that is nothing.

    A number is watched where plain steps change no token. The controller is timed there too; elsewhere it decides by
    each request's own acceptance alone, so that the same seed gives the same tokens.
    """
    if isinstance(count, Plan):
        return count
    most = longest_draft(count, drafter)
    if most == 0:
        return Fixed(0)
    if count == "auto":
        known = new_knowledge(target.device, most)
        if verifier.same_tokens:
            known = knowledge_of(target, drafter, max_draft_tokens=most, begin=begin)
        return Controller(
            rows=rows,
            max_draft_tokens=most,
            num_nodes=[drafter.max_nodes(depth) - 1 for depth in range(most + 1)],
            knowledge=known,
            timed=verifier.same_tokens,
        )
    return Watch(plan=Fixed(most)) if verifier.same_tokens else Fixed(most)
