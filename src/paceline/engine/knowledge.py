"""What this process has learnt of pairs of a target and a drafter, for as long as the target lives.

Engines come and go, one for each call of ``generate``; the next one starts from what the last one knew, also where the
drafter is loaded anew for each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from paceline.drafters.base import Drafter
from paceline.drafters.growing import GrowingDrafter
from paceline.drafters.host import HostDrafting
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.engine.acceptance import Counts, Pool
from paceline.engine.calibration import Calibration
from paceline.engine.costs import DepthCost, StepCosts, StepWork
from paceline.engine.exploration import Exploration
from paceline.engine.probes import Probes
from paceline.engine.readiness import Readiness
from paceline.engine.row_state import RowState
from paceline.models import lazy_adapter
from paceline.models.base import LM
from paceline.models.fingerprint import memory_digest
from paceline.models.sublayers import SkippedSublayers
from paceline.models.wrapped import WrappedLM

MAX_DRAFT_TOKENS = 8
GROWTH = {"cpu": 0.08, "cuda": 0.01}  # share by which a node lengthens a forward, until it is measured


@final
class Knowledge:
    """What is known of a target and a drafter. ``growth``: by what share a node lengthens a forward, until measured.

    Greedy requests and those that sample have a pool each: how likely a draft token is accepted, also for how sure the
    drafter is of it, differs between them.
    """

    def __init__(self, *, max_draft_tokens: int = MAX_DRAFT_TOKENS, growth: float = GROWTH["cpu"]) -> None:
        self.costs = StepCosts(growth=growth)
        self.greedy, self.sampled = Pool(max_draft_tokens), Pool(max_draft_tokens)
        self.calibrations: dict[tuple[int, bool], Calibration] = {}  # by kind of batch
        self.readiness: dict[tuple[int, bool], Readiness] = {}  # by kind of batch
        self.probes = Probes(bounded=True)
        self.exploration = Exploration()
        self.num_tried = 0.0  # steps in which it was chosen among several drafters, fading

    def refresh(self) -> None:
        """Look up what was learnt of acceptance."""
        self.greedy.refresh()
        self.sampled.refresh()

    def kind(self, rows: Mapping[int, RowState]) -> tuple[int, bool]:
        """What batches that draft alike have in common: about how many rows, and whether most of them sample."""
        num_sampled = sum(state.pool is self.sampled for state in rows.values())
        return len(rows).bit_length(), 2 * num_sampled > len(rows)

    def readiness_of(self, rows: Mapping[int, RowState]) -> Readiness:
        """Whether requests like ``rows`` are kept ready."""
        kind = self.kind(rows)
        if kind not in self.readiness:
            self.readiness[kind] = Readiness(1 << kind[0] - 1)
        return self.readiness[kind]

    def calibration(self, rows: Mapping[int, RowState]) -> Calibration:
        """How much of what is expected of drafts comes true in steps of such ``rows``.

        All of it does for a single row: a factor was found to turn drafts off that pay, because a row's text differs
        more from what it was than the mean text of many rows.
        """
        return self.calibrations.setdefault(self.kind(rows), Calibration()) if len(rows) > 1 else Calibration()

    def by_depth(self, rows: int, num_nodes: Sequence[int], pool: Pool) -> tuple[DepthCost, ...]:
        """What steps of ``rows`` rows like those of ``pool`` cost and promise by the depth of their drafts, which have
        ``num_nodes``.
        """
        costs = self.costs
        if not costs.level:
            return ()
        pool.refresh()
        plain = costs(StepWork(rows, rows))
        found: list[DepthCost] = []
        for depth, (nodes, expected) in enumerate(zip(num_nodes, pool.expected(), strict=True)):
            work = StepWork(rows, rows + rows * nodes, depth, rows * depth)
            found.append(
                DepthCost(
                    depth=depth,
                    seconds=costs(work) * costs.level,
                    break_even=costs(work) / plain,
                    expected=expected,
                    times_measured=costs.score.measured(work.nodes, rows - 1),
                )
            )
        return tuple(found)

    def as_record(self) -> dict[str, object]:
        """All of it, for JSON."""
        pools = {"greedy": self.greedy, "sampled": self.sampled}
        return {
            "costs": self.costs.as_record(),
            "acceptance": {name: pool.counts.as_record() for name, pool in pools.items()},
        }

    def load(self, record: Mapping[str, Any]) -> None:
        """Know what ``as_record`` gave, and nothing else. Raises ValueError, and changes nothing, for anything else."""
        most = len(self.greedy.rates)
        try:
            costs = StepCosts.from_record(record["costs"])
            greedy, sampled = (Counts.from_record(record["acceptance"][name]) for name in ("greedy", "sampled"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no costs and acceptance of drafts that can be read ({error})") from error
        for counts in (greedy, sampled):
            if len(counts.tried) != most:
                raise ValueError(
                    f"the acceptance of {len(counts.tried)} draft tokens, where {most} are drafted at most"
                )
        self.costs = costs
        self.exploration.skip_lessons()
        for pool, counts in ((self.greedy, greedy), (self.sampled, sampled)):
            pool.counts = counts
            pool.refresh()


_KNOWN: WeakKeyDictionary[object, WeakKeyDictionary[object, dict[int, Knowledge]]] = WeakKeyDictionary()


def knowledge_of(
    target: LM,
    drafter: Drafter,
    *,
    max_draft_tokens: int = MAX_DRAFT_TOKENS,
    begin: Callable[[Knowledge], None] | None = None,
) -> Knowledge:
    """What is known of ``drafter`` for ``target``; of drafters that keep no model, by their class.

    Where nothing was known, ``begin`` (None: nothing) may add what was measured earlier.
    """
    by_drafter = _KNOWN.setdefault(unwrapped(target), WeakKeyDictionary())
    by_depth = by_drafter.setdefault(_identity(drafter), {})
    if max_draft_tokens not in by_depth:
        known = by_depth[max_draft_tokens] = new_knowledge(target.device, max_draft_tokens)
        if begin is not None:
            begin(known)
    return by_depth[max_draft_tokens]


def new_knowledge(device: torch.device, max_draft_tokens: int) -> Knowledge:
    """What is assumed before anything is known."""
    return Knowledge(max_draft_tokens=max_draft_tokens, growth=GROWTH.get(device.type, GROWTH["cuda"]))


def unwrapped(lm: LM) -> LM:
    """The model whose weights ``lm`` runs."""
    return unwrapped(lm.lm) if isinstance(lm, WrappedLM) else lm


def weights_of(lm: LM | nn.Module) -> str:
    """What tells the weights of a model or a draft head from others, loaded again or not; empty if nothing does."""
    module = lm if isinstance(lm, nn.Module) else unwrapped(lm)
    if not isinstance(module, nn.Module) and isinstance(module, lazy_adapter.lm.TransformersLM):
        module = module.model
    return memory_digest(module) if isinstance(module, nn.Module) else ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Weights:
    """A drafter by its class and its weights."""

    kind: type[Drafter]
    digest: str


@cache
def _interned(value: SkippedSublayers | _Weights) -> SkippedSublayers | _Weights:
    """One of all equal values, which lives as long as the process."""
    return value


def _identity(drafter: Drafter) -> object:
    if drafter.parts:
        return drafter
    own = drafter.own_weights if isinstance(drafter, GrowingDrafter) else None
    if own is not None:
        digest = weights_of(own)
        return _interned(_Weights(type(drafter), digest)) if digest else own
    if isinstance(drafter, LayerSkipDrafter) and drafter.on_the_fly is None:
        return _interned(drafter.sublayers)
    return type(drafter.drafter) if isinstance(drafter, HostDrafting) else type(drafter)
