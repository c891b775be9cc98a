"""What is timed for scaling: steps of a chosen size, prompts read at once, and first tokens.

B rows, N nodes, S attended slots. The cache of a step is filled with random numbers instead of those of prompts: what a
step costs does not depend on them, and reading 64 prompts would take longer than measuring.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

import torch

from benchmarks.decoders import make_decoder, resident, start_rows
from benchmarks.study import Progress, Taken, Timing, Turns, check_counts
from paceline.api import Loaded
from paceline.bench.generation import decoding
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.peers.transformers import load_peer, transformers_decoding
from paceline.bench.raw import RawFile, Record
from paceline.bench.runner import compare
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.core.batch import Batch
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.models.backend import gemm_for
from paceline.models.base import LM, LogitsFor
from paceline.models.native.decoder import DecoderLM

FORWARD, STEP, CONTROL = "forward", "step", "control"
CHAIN, TREE = "chain", "tree"
NUM_CHILDREN = 2  # of a tree's nodes
PLAIN, DRAFTED = "plain", "with the draft"
KERNEL, TORCH = "ours", "torch"
DRAFT_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step: ``rows`` rows of ``nodes`` nodes, root included, each attending to ``context`` slots. All counts >= 1.

    ``shape`` is CHAIN or TREE, in which every node has two children, level by level.
    """

    rows: int
    nodes: int
    context: int
    shape: str = CHAIN

    def __post_init__(self) -> None:
        check_counts(rows=self.rows, nodes=self.nodes, context=self.context)

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return self.nodes - 1 if self.shape == CHAIN else self.nodes.bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Points that differ in one count, timed in turn."""

    name: str
    points: tuple[Point, ...]


def axes_of(rows: Sequence[int], nodes: Sequence[int], contexts: Sequence[int]) -> list[Axis]:
    """The three axes through the smallest rows, nodes and context. Raises ValueError for none and for counts below 1.

    The axis of nodes has chains and trees; one node is both and is there once.
    """
    check_counts(rows=rows, nodes=nodes, context=contexts)
    row, node, context = min(rows), min(nodes), min(contexts)
    chains = [Point(rows=row, nodes=count, context=context) for count in sorted(set(nodes))]
    trees = [Point(rows=row, nodes=one.nodes, context=context, shape=TREE) for one in chains if one.nodes > 2]
    return [
        Axis(name="rows", points=tuple(Point(rows=count, nodes=node, context=context) for count in sorted(set(rows)))),
        Axis(name="nodes", points=(*chains, *trees)),
        Axis(
            name="context", points=tuple(Point(rows=row, nodes=node, context=count) for count in sorted(set(contexts)))
        ),
    ]


@final
class FixedTokens(StatelessDrafter):
    """Proposes the same random tokens in every step, at no cost: what is left of a step without drafting."""

    draws = frozenset({Draw.FIXED})
    branches = True

    def __init__(self, point: Point, vocab_size: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (point.rows, point.nodes)
        self._tokens = torch.randint(vocab_size, size, generator=generator).to(device)
        self._parents = ((torch.arange(point.nodes, device=device) - 1) // NUM_CHILDREN).expand(size)
        self._point = point

    def max_nodes(self, num_draft_tokens: int) -> int:
        """All of the point's."""
        return self._point.nodes

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """Random tokens below each row's newest one."""
        tokens = torch.cat((batch.root[:, None], self._tokens[:, 1:]), dim=1)
        valid = batch.active[:, None].repeat(1, self._point.nodes)
        if self._point.shape == CHAIN:
            return Tree.make_chain(tokens, valid)
        return Tree.make(tokens, self._parents, valid, max_depth=plan.num_draft_tokens)


@final
class Step:
    """A decoder before the step of a point, and what its making took."""

    def __init__(self, point: Point, target: LM) -> None:
        self.point = point
        gc.collect()
        before = resident()
        depth = point.depth
        length = point.context + depth + 2  # no row ends in the step
        self.decoder = make_decoder(
            target,
            drafter=FixedTokens(point, target.vocab_size, target.device),
            num_draft_tokens=depth,
            rows=point.rows,
            max_length=length,
        )
        tokens = [token % target.vocab_size for token in range(point.context)]
        request = Request(tokens=tokens, max_tokens=depth + 2, sampling=Sampling(temperature=0.0))
        start_rows(self.decoder.batch, [request] * point.rows)
        storage = self.decoder.cache.storage
        for store in (storage.keys, storage.values):
            store[:, : point.rows, : point.context].normal_()
        self.cache_bytes = storage.keys.nbytes + storage.values.nbytes
        self.used_bytes = point.rows * (point.context - 1 + point.nodes) * target.slot_bytes
        self._tree: Tree = self._ready()
        self.step()
        self.resident_bytes = resident() - before

    def step(self) -> None:
        """One whole step, verification and commit included."""
        self.decoder.step()

    @torch.inference_mode()
    def forward(self) -> None:
        """The target's forward of that step."""
        self.decoder.target.unguided(self._tree, self.decoder.cache, logits_for=LogitsFor.ALL)

    @torch.inference_mode()
    def rewind(self) -> None:
        """To before the step: untimed."""
        self._ready()

    @torch.inference_mode()
    def _ready(self) -> Tree:
        batch = self.decoder.batch
        batch.length.fill_(self.point.context)
        batch.finish.zero_()
        batch.active.fill_(True)
        self.decoder.cache.truncate(self.point.context - 1)
        return self.decoder.drafter.propose(batch, self.decoder.plan())


def axis_turns(axis: Axis, target: LM) -> Turns:
    """Forwards and whole steps of all points of an axis; the first one's step runs twice in each turn."""
    Step(axis.points[-1], target)  # what is made once in a process is not a point's own
    steps = [Step(point, target) for point in axis.points]
    calls: dict[str, Callable[[], object]] = {CONTROL: steps[0].step}
    before: dict[str, Callable[[], object]] = {CONTROL: steps[0].rewind}
    for at, step in enumerate(steps):
        calls |= {f"{FORWARD} {at}": step.forward, f"{STEP} {at}": step.step}
        before |= {f"{FORWARD} {at}": step.rewind, f"{STEP} {at}": step.rewind}

    def found(taken: Taken) -> Record:
        points = [
            {
                FORWARD: list(taken[f"{FORWARD} {at}"]),
                STEP: list(taken[f"{STEP} {at}"]),
                "cache_bytes": step.cache_bytes,
                "used_bytes": step.used_bytes,
                "resident_bytes": step.resident_bytes,
            }
            for at, step in enumerate(steps)
        ]
        return {"control": median(paired_ratios(taken[f"{STEP} 0"], taken[CONTROL])), "found": points}

    return Turns(calls=calls, before=before, controls={f"{STEP} 0": CONTROL}, found=found)


def measure_prefill(
    lengths: Sequence[int], *, target: LM, eager: DecoderLM, raw: RawFile, run: str, timing: Timing, say: Progress
) -> None:
    """Put into ``raw``, unless it is there, what a forward over as many nodes as a prompt has takes, and its products.

    The products are those of the first layer, ours and torch's in turn, at as many rows.
    """
    identity = {"kind": "prefill", "run": run, "lengths": list(lengths)}
    if raw.has(identity):
        return
    say("prompts read at once")
    forwards = {f"{length}": _reading(target, length) for length in lengths}
    taken = time_in_turn(forwards, repeats=min(3, timing.repeats), seconds=0.0, clock=timing.clock)
    products: list[dict[str, Any]] = []
    for name, weight in _matrices(eager):
        ours = gemm_for(weight)
        for length in lengths:
            say(f"products of {length} rows: {name}")
            x = torch.randn(length, weight.shape[1]).to(weight.dtype)
            both: dict[str, Callable[[], object]] = {
                KERNEL: lambda x=x, ours=ours: ours(x),
                TORCH: lambda x=x, weight=weight: torch.nn.functional.linear(x, weight),
            }
            elapsed = time_in_turn(both, repeats=timing.repeats, seconds=0.0, clock=timing.clock)
            flops = 2 * length * weight.numel()
            rates = {side: [flops / one for one in values] for side, values in elapsed.items()}
            products.append({"matrix": name, "shape": list(weight.shape), "rows": length, "flops": rates})
    raw.append({**identity, "seconds": [list(values) for values in taken.values()], "products": products})


def _reading(target: LM, length: int) -> Callable[[], object]:
    cache = target.new_cache(1, length).view()
    tokens = torch.randint(target.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    tree = Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return lambda: target(tree, cache, logits_for=LogitsFor.NONE)


def _matrices(lm: DecoderLM) -> list[tuple[str, torch.Tensor]]:
    """Of the first layer, as they are multiplied with."""
    prefix, state = "blocks.0.", lm.state_dict()
    names = [name for name in state if name.startswith(prefix) and state[name].dim() == 2]
    return [(name.removeprefix(prefix).removesuffix(".weight"), state[name]) for name in names]


def measure_first(
    num_tokens: int,
    *,
    target: Loaded,
    draft: Loaded | None,
    path: Path,
    raw: RawFile,
    run: str,
    timing: Timing,
    say: Progress,
) -> None:
    """Put into ``raw``, unless it is there, seconds from a prompt of ``num_tokens`` to its first token, by each side.

    One token is generated, greedily; caches are made and the prompt is read within the time. transformers, which runs
    twice as the control, loads the model of ``path``. Raises ValueError for a prompt that the target cannot hold.
    """
    if not 1 <= num_tokens < target.lm.max_positions:
        raise ValueError(
            f"a prompt of {num_tokens} tokens and a first one leave the target's context of {target.lm.max_positions}; "
            "give a shorter one"
        )
    identity = {"kind": "first", "run": run, "num_tokens": num_tokens, "drafts": draft is not None}
    if raw.has(identity):
        return
    say(f"first token after {num_tokens}: loading transformers' model")
    random = torch.Generator().manual_seed(0)
    prompt: list[int] = torch.randint(target.lm.vocab_size, (num_tokens,), generator=random).tolist()
    peer = load_peer(path, dtype=target.dtype, device=target.lm.device)
    one = {"prompts": [prompt], "num_tokens": 1}
    sides = [transformers_decoding(PEER, model=peer, **one), decoding(PLAIN, target=target, **one)]
    if draft is not None:
        sides.append(decoding(DRAFTED, target=target, **one, drafter=draft, num_draft_tokens=DRAFT_TOKENS))
    compared = compare(
        [*sides, transformers_decoding(CONTROL, model=peer, **one)],
        baseline=PEER,
        repeats=timing.repeats,
        clock=timing.clock,
        progress=lambda what: say(f"first token after {num_tokens}: {what}"),
    )
    raw.append(
        {
            **identity,
            "void": is_void(compared[CONTROL].speedup.values),
            "seconds": {measured.name: list(measured.seconds.values) for measured in compared.measured},
            "same": {measured.name: measured.identical for measured in compared.measured},
        }
    )
