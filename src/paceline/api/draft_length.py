"""``num_draft_tokens``: a number, "auto", or a Plan."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from paceline.api.loading import Loaded
from paceline.core.plan import Fixed, Plan
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.none import NoDrafter
from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from paceline.engine.copy_plans import MAX_COPIED_TOKENS, CopyPlan
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge, knowledge_of, new_knowledge
from paceline.engine.mixed_plan import MixedPlan
from paceline.engine.watch import Watch
from paceline.models.base import LM, max_sequence_length
from paceline.verifiers.base import Verifier

logger = logging.getLogger("paceline")

NumDraftTokens: TypeAlias = int | Literal["auto"] | Plan
Begin: TypeAlias = Callable[[Drafter, Knowledge], None]  # adds to what is known of a drafter where that is nothing


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
    if isinstance(drafter, CandidateDrafters) and count != "auto":
        raise ValueError(
            f'num_draft_tokens={count} with {len(drafter.drafters)} drafters: give "auto", by which one of them is '
            "chosen, or a Plan, or one drafter"
        )
    if count != "auto":
        return count
    return MAX_COPIED_TOKENS if drafter.copies else MAX_DRAFT_TOKENS


def cut_draft_length(count: NumDraftTokens, *, max_tokens: int) -> NumDraftTokens:
    """A number of draft tokens cut to what outputs of ``max_tokens`` can use, which changes no token.

    The target chooses the last token of an output itself, so drafts are at most one token shorter. Anything but a
    number is returned as it is. Cutting is logged at the level "info".
    """
    check_draft_length(count)
    most = max(1, max_tokens - 1)
    if not isinstance(count, int) or count <= most:
        return count
    logger.info(
        "num_draft_tokens=%d is cut to %d: outputs have room for %d tokens, of which the target adds the last itself",
        count,
        most,
        max_tokens,
    )
    return most


def is_controlled(count: NumDraftTokens, *, drafter: Drafter, verifier: Verifier) -> bool:
    """Whether a single controller chooses draft lengths by what is known of the target and the drafter."""
    one = not isinstance(drafter, CandidateDrafters) and not drafter.copies
    return count == "auto" and verifier.same_tokens and one and longest_draft(count, drafter) > 0


def plan_of(
    count: NumDraftTokens,
    *,
    target: LM,
    drafter: Drafter,
    verifier: Verifier,
    rows: int,
    begin: Begin | None = None,
) -> Plan:
    """The plan of an engine. ``begin`` adds to what is known of a drafter where that is nothing.

    A number is watched where plain steps change no token. The controller is timed there too; elsewhere it decides by
    each request's own acceptance alone, so that the same seed gives the same tokens.
    """
    if isinstance(count, Plan):
        return count
    most = longest_draft(count, drafter)
    if most == 0:
        return Fixed(0)
    if count == "auto" and isinstance(drafter, CandidateDrafters):
        if not verifier.same_tokens:
            raise ValueError(
                f"{len(drafter.drafters)} drafters and a verifier whose tokens depend on what is drafted: which one "
                "drafts depends on the clock, so a seed would not give the same tokens; give one drafter, or the "
                "verifier coupled"
            )
        alone = drafter.drafters[1:] if drafter.copies else drafter.drafters
        controllers = [_controller(target, one, verifier, rows=rows, postpones=False, begin=begin) for one in alone]
        numbers = [drafter.numbers_of(one) for one in alone]
        others = controllers[0] if len(controllers) == 1 else CandidatePlan(controllers, origins=numbers)
        if not drafter.copies:
            return others
        copies = _copy_plan(target, verifier, controllers[0].knowledge, rows=rows)
        origins = range(numbers[0].start, numbers[-1].stop)
        return MixedPlan(copies=copies, others=others, joins=[one.joins for one in alone], origins=origins)
    if count == "auto" and drafter.copies:
        known = new_knowledge(target.device, MAX_DRAFT_TOKENS)
        return _copy_plan(target, verifier, knowledge_of(target, drafter) if verifier.same_tokens else known, rows=rows)
    if count == "auto":
        return _controller(target, drafter, verifier, rows=rows, postpones=drafter.postpones, begin=begin)
    return Watch(plan=Fixed(most)) if verifier.same_tokens else Fixed(most)


def _copy_plan(target: LM, verifier: Verifier, knowledge: Knowledge, *, rows: int) -> CopyPlan:
    return CopyPlan(rows=rows, knowledge=knowledge, timed=verifier.same_tokens, sizes=target.device.type != "cpu")


def _controller(
    target: LM, drafter: Drafter, verifier: Verifier, *, rows: int, postpones: bool, begin: Begin | None
) -> Controller:
    most, timed = MAX_DRAFT_TOKENS, verifier.same_tokens
    known = new_knowledge(target.device, most)
    if timed:
        known = knowledge_of(
            target, drafter, max_draft_tokens=most, begin=None if begin is None else partial(begin, drafter)
        )
    return Controller(
        rows=rows,
        max_draft_tokens=most,
        num_nodes=[drafter.max_nodes(depth) - 1 for depth in range(most + 1)],
        num_unverified=drafter.num_unverified,
        knowledge=known,
        ends_early=drafter.ends_early,
        postpones=postpones,
        num_search_nodes=drafter.num_search_nodes,
        timed=timed,
    )


def room(target: Loaded, num_nodes: int) -> int:
    """The longest sequence that ``target`` takes beside a draft of ``num_nodes``. Raises ValueError below two."""
    found = max_sequence_length(target.lm, num_nodes=num_nodes)
    if found < 2:
        raise ValueError(
            f"drafts of {num_nodes} tokens, their root included, leave no room for a sequence in the "
            f"{target.lm.max_slots} that {target.name} attends to: lower num_draft_tokens"
        )
    return found
