"""Which draft tree suits a model and its draft: acceptance by rank measured on texts, and the topology that follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api.build import build_shaped
from paceline.api.drafter_like import VerifierLike
from paceline.api.generate import generate
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.api.results import total
from paceline.core.plan import Fixed
from paceline.drafters.tree.optimal import best_topology, expected_length
from paceline.drafters.tree.rank_acceptance import RankAcceptanceDrafter, caterpillar
from paceline.drafters.tree.shapes import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One tree, what it should give by the measured rates, and what it gave."""

    topology: Topology
    expected: float  # tokens per step
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was measured, the best tree of that size, and the best chain of at most as many nodes and levels."""

    rates: list[float]  # how often the child of each rank is accepted where its parent is
    tree: Candidate
    chain: Candidate


def advise_tree(
    target: Loaded,
    draft: str | Path | Loaded,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    num_drafted: int,
    depth: int,
    width: int,
    verifier: VerifierLike = "coupled",
) -> Advice:
    """Find the best tree of ``num_drafted`` nodes and ``depth`` levels that a model or a head drafts for ``prompts``.

    It first measures with a caterpillar of ``width``. Then the prompts are decoded with the best tree and
    with a chain of as many levels as it may have, at most as many nodes. Raises ValueError for counts below 1, a draft
    that cannot draft for the target, and what generating refuses.
    """
    for name, value in (("num_drafted", num_drafted), ("depth", depth), ("width", width)):
        if value < 1:
            raise ValueError(f"{name}={value}: give at least 1")

    def decode(shape: Topology) -> tuple[list[float], float]:
        drafter = RankAcceptanceDrafter(drafter=build_shaped(draft, target=target, shape=shape), width=width)
        given = [list(prompt) for prompt in prompts]
        results = generate(
            target, given, params, drafter=drafter, verifier=verifier, num_draft_tokens=Fixed(shape.depth)
        )
        return drafter.acceptance_by_rank(), total(results).mean_acceptance_length

    rates, _ = decode(caterpillar(min(width, target.lm.vocab_size), depth))

    def candidate(shape: Topology) -> Candidate:
        return Candidate(topology=shape, expected=expected_length(shape, rates), measured=decode(shape)[1])

    chain = Topology.chain(min(num_drafted, depth))
    return Advice(rates=rates, tree=candidate(best_topology(rates, num_drafted, depth)), chain=candidate(chain))
