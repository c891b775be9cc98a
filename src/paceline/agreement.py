"""Which draws a drafter and a verifier have in common, and what is said where there are none."""

from typing import cast

from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.host import HostDrafting
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier


def agree(drafter: Drafter, verifier: Verifier) -> Draw:
    """The draw that both can do, the verifier's favourite. Raises ValueError, naming who fits, when there is none."""
    found = next((draw for draw in verifier.wants if draw in drafter.draws), None)
    if found is not None and _fits(drafter, verifier):
        return found
    made = drafter.drafter if isinstance(drafter, HostDrafting) else drafter
    kind, name = DRAFTERS.name_of(type(made)), VERIFIERS.name_of(type(verifier))
    known = {other: cast(type[Verifier], VERIFIERS.find(other)) for other in VERIFIERS.builtin}
    fitting = [other for other, one in known.items() if _fits(drafter, one) and not drafter.draws.isdisjoint(one.wants)]
    if found is None:
        drawn, wanted = (" or ".join(draw.words for draw in some) for some in (sorted(drafter.draws), verifier.wants))
        reason = f"{kind} drafts tokens that are {drawn}, and {name} verifies only those that are {wanted}"
    elif verifier.branches < drafter.branches:
        reason = f"{kind} drafts trees that branch, and {name} verifies chains alone"
    else:
        reason = f"{name}'s tokens depend on the draft, and {kind}'s drafts on more than the request"
    raise ValueError(
        f"the verifier {name!r} does not fit the drafter {kind!r}: {reason}; give another drafter, or one of the "
        f"verifiers {', '.join(fitting)}"
    )


def _fits(drafter: Drafter, verifier: Verifier | type[Verifier]) -> bool:
    """Whether a verifier takes the drafter's trees, whatever the draws, and keeps the output reproducible."""
    return verifier.branches >= drafter.branches and verifier.same_tokens >= drafter.needs_same_tokens
