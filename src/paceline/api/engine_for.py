"""An engine for one call, with as many rows as that needs."""

from paceline.api.build import build_drafting
from paceline.api.draft_length import NumDraftTokens, cut_draft_length, longest_draft, room
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.engine import Engine
from paceline.api.loading import Loaded
from paceline.api.profiles import ProfileLike
from paceline.engine.memory import fitting_rows

MOST_ROWS = 16


def engine_for(
    target: Loaded,
    *,
    drafter: DrafterLike,
    verifier: VerifierLike,
    num_draft_tokens: NumDraftTokens,
    batch_size: int | None,
    num_texts: int,
    max_length: int | None,
    max_tokens: int | None = None,
    guidance: bool = False,
    profile: ProfileLike = "auto",
) -> Engine:
    """An engine for one call of ``num_texts`` sequences: one row for each, at most 16 and what memory allows.

    ``max_length`` None: the longest that the target takes. ``max_tokens``, of the longest output, cuts the draft
    length (None: ``max_length`` does).
    """
    drafting = build_drafting(drafter, target=target)
    count = drafting.length(num_draft_tokens)
    if max_tokens is not None:
        count = cut_draft_length(count, max_tokens=max_tokens)
    most = longest_draft(count, drafting.drafter)
    length = room(target, drafting.drafter.max_nodes(most)) if max_length is None else max_length
    rows, streams = batch_size, 2 if guidance else 1
    if rows is None:
        rows = fitting_rows(
            target.lm,
            drafting.drafter,
            max_length=length,
            num_draft_tokens=most,
            most=streams * min(MOST_ROWS, num_texts),
        )
        rows = max(1, rows // streams)
    return Engine(
        target,
        drafter=drafting.drafter,
        verifier=verifier,
        num_draft_tokens=count,
        batch_size=min(rows, num_texts),
        max_length=length,
        guidance=guidance,
        profile=profile,
    )
