"""A request's choice among the drafters of its engine."""

from paceline.core.plan import Plan
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import CandidateDrafters
from paceline.engine.candidates import CandidatePlan
from paceline.engine.copy_plans import CopyPlan
from paceline.engine.mixed_plan import MixedPlan


def draft_choices(drafter: Drafter, plan: Plan) -> dict[str, frozenset[int]]:
    """What a request may name, and the numbers of ``drafter.origins`` that then draft for it.

    Several drafters, and copies of several kinds, are told apart where Paceline's own plan chooses among them. Anything
    else drafts for all requests alike.
    """
    planned = isinstance(plan, CandidatePlan | CopyPlan | MixedPlan)
    if isinstance(drafter, CandidateDrafters) and not planned:
        return {}
    parts = drafter.drafters if isinstance(drafter, CandidateDrafters) else (drafter,)
    found = dict[str, frozenset[int]]()
    for part in parts:
        numbers = drafter.numbers_of(part) if isinstance(drafter, CandidateDrafters) else range(len(part.origins))
        kinds = [(number,) for number in numbers] if planned and part.copies else [tuple(numbers)]
        for kind in kinds:
            name = "+".join(drafter.origins[number] for number in kind)
            found[name] = found.get(name, frozenset()) | frozenset(kind)
    return found


def chosen_origins(name: str | None, drafter: Drafter, plan: Plan) -> frozenset[int] | None:
    """The numbers of ``drafter.origins`` that draft for a request that names ``name``; None: all, as without one.

    Raises ValueError for any name but those of ``draft_choices``.
    """
    if name is None:
        return None
    known = draft_choices(drafter, plan)
    if name not in known:
        raise ValueError(
            f"drafter={name!r:.80}: requests of this engine choose from {', '.join(known) or 'none'}; leave it out, or "
            "give one of these"
        )
    return None if len(known) == 1 else known[name]
