"""A drafter beside plain decoding: with its own best draft length, and with those that the controller chooses.

Half of the prompts choose the draft length, the one with the highest speed; the other half are measured. Prompts whose
plain output mostly repeats itself are left out before, because it is easy for every drafter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from benchmarks.decoders import longest
from benchmarks.even_decoding import CONTROL, PLAIN, Sides, decode_sides, flat, total
from benchmarks.study import Timing
from paceline.api import Engine, Loaded, SamplingParams, generate
from paceline.api.drafter_like import DrafterLike
from paceline.api.prompts import encode
from paceline.bench.raw import Record
from paceline.bench.statistics import pooled_ratio
from paceline.bench.suites import prompts_of
from paceline.text.loops import is_looping

AUTO, BEST = "auto", "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is decoded."""

    drafter: str
    hash: str  # of its files
    temperature: float
    batch_size: int
    max_tokens: int

    @property
    def name(self) -> str:
        return f"{self.drafter}, temperature {self.temperature:g}, batch {self.batch_size}"


class Decoding(Protocol):
    """What a cell says of how it is decoded."""

    @property
    def name(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def max_tokens(self) -> int: ...


def prompts_that_fit(
    target: Loaded, suite: str, cell: Decoding, candidates: int, *, longest_draft: int, **options: Any
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Those of ``candidates`` prompts that the target's context holds with outputs and drafts; how each is sampled."""
    room = target.lm.max_positions - cell.max_tokens - longest_draft
    encoded = (encode(target, text) for text in prompts_of(suite, candidates, seed=0))
    prompts = [tokens for tokens in encoded if len(tokens) <= room]
    return prompts, [
        SamplingParams(max_tokens=cell.max_tokens, temperature=cell.temperature, seed=seed, ignore_eos=True, **options)
        for seed in range(len(prompts))
    ]


def prompts_that_do_not_loop(
    target: Loaded, suite: str, cell: Decoding, count: int, candidates: int, *, longest_draft: int = 0, **options: Any
) -> tuple[list[list[int]], list[SamplingParams], int]:
    """``count`` prompts, how each is sampled, and how many were left out because their plain output loops.

    Raises ValueError where too few are left.
    """
    prompts, params = prompts_that_fit(target, suite, cell, candidates, longest_draft=longest_draft, **options)
    plain = generate(target, prompts, params, batch_size=min(8, len(prompts)))
    kept = [at for at, one in enumerate(plain) if not is_looping(one.token_ids)][:count]
    if len(kept) < count:
        raise ValueError(f"{cell.name}: {len(kept)} of {len(prompts)} outputs do not loop, and {count} are needed")
    looping = sum(is_looping(one.token_ids) for one in plain[: kept[-1] + 1])
    return [prompts[at] for at in kept], [params[at] for at in kept], looping


def best_depth(sides: Sides, depths: Mapping[str, int]) -> int:
    """The draft length with the highest speed of ``depths``, which names them; of equal drafts the shortest."""
    seconds, seen, best = sides.seconds, set[int](), (float("inf"), 0)
    for name, depth in depths.items():
        drafted = total(part.summary for part in sides.decoded[name][-1]).drafted
        reached = sum(count > 0 for count in drafted)  # a head may draft no deeper than it was trained for
        if reached not in seen:
            seen.add(reached)
            best = min(best, (sum(flat(seconds[name])), depth))
    return best[1]


def measure(
    cell: Cell,
    *,
    target: Loaded,
    drafter: DrafterLike,
    suite: str,
    num_prompts: int,
    together: int,
    depths: Sequence[int],
    timing: Timing,
) -> Record:
    """What the record of ``cell`` says.

    An engine decodes ``together`` prompts, so its controller learns from each of them for the next ones.
    """
    prompts, params, looping = prompts_that_do_not_loop(
        target, suite, cell, 2 * num_prompts, 6 * num_prompts, longest_draft=max(depths)
    )
    length = longest(prompts) + cell.max_tokens

    def sides_of(made: Mapping[str, int | str | None], half: slice, timing: Timing) -> Sides:
        return decode_sides(
            {
                name: partial(engine_of, target, drafter, depth, batch_size=cell.batch_size, length=length)
                for name, depth in made.items()
            },
            prompts[half],
            params[half],
            what=cell.name,
            batch_size=together,
            timing=timing,
        )

    named_depths = {str(depth): depth for depth in depths}
    once = replace(timing, repeats=1)  # lengths beside the best one are nearly as good
    searched = sides_of({PLAIN: None, **named_depths, CONTROL: None}, slice(num_prompts), once)
    depth = best_depth(searched, named_depths)
    sides = sides_of({PLAIN: None, AUTO: AUTO, BEST: depth, CONTROL: None}, slice(num_prompts, None), timing)
    plain = flat(searched.seconds[PLAIN])
    reading = {
        name: [[part.reading * part.seconds for part in parts] for parts in repeats]
        for name, repeats in sides.decoded.items()
    }
    return {
        "searched": {name: pooled_ratio(plain, flat(searched.seconds[name])).value for name in named_depths},
        "depth": depth,
        "num_looping": looping,
        "slot_bytes": engine_of(target, drafter, 1, batch_size=1, length=length).decoder.drafter.slot_bytes,
        # A request's times tell what was done for it alone, so in a batch they do not add up to the whole.
        **({"reading": reading} if cell.batch_size == 1 else {}),
        **decoded(sides),
    }


def decode_heads(
    cell: Decoding,
    target: Loaded,
    heads: Mapping[str, DrafterLike],
    depths: Mapping[str, Sequence[int]],
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    batch_size: int,
    timing: Timing,
) -> Sides:
    """Decode with each of ``heads`` and of its draft lengths: sides "HEAD LENGTH", beside ``PLAIN`` and ``CONTROL``."""

    def engine(name: str, depth: int, length: int) -> Engine:
        return engine_of(target, heads[name], depth, batch_size=batch_size, length=length)

    drafted = {f"{name} {depth}": partial(engine, name, depth) for name, chosen in depths.items() for depth in chosen}
    return decode_beside_plain(cell, target, drafted, prompts, params, batch_size=batch_size, timing=timing)


def decode_beside_plain(
    cell: Decoding,
    target: Loaded,
    drafted: Mapping[str, Callable[[int], Engine]],
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    batch_size: int,
    timing: Timing,
) -> Sides:
    """Decode with the engines that ``drafted`` makes for a length, beside ``PLAIN`` and ``CONTROL``."""
    length = longest(prompts) + cell.max_tokens
    plain = partial(engine_of, target, None, None, batch_size=batch_size, length=length)
    made = {PLAIN: plain, **{name: partial(make, length) for name, make in drafted.items()}, CONTROL: plain}
    return decode_sides(made, prompts, params, what=cell.name, batch_size=batch_size, timing=timing)


def decoded(sides: Sides) -> Record:
    """What a record says of ``sides``."""
    return {
        "void": sides.void,
        "seconds": sides.seconds,
        "drafting": {
            name: sum(part.drafting * part.seconds for parts in repeats for part in parts)  # planning and drafting
            for name, repeats in sides.decoded.items()
        },
        "summaries": {
            name: [asdict(one) for part in repeats[-1] for one in part.summaries]
            for name, repeats in sides.decoded.items()
        },
    }


def cost(record: Record, name: str) -> float | None:
    """Time of drafting a token, in plain steps; None where nothing is drafted, and where a record has no such time."""
    if "drafting" not in record:
        return None
    seconds, summaries = record["seconds"], record["summaries"]
    drafted = sum(sum(one["drafted"]) for one in summaries[name]) * len(seconds[name])
    plain_steps = sum(one["steps"] for one in summaries[PLAIN]) * len(seconds[PLAIN])
    return record["drafting"][name] / drafted / (sum(flat(seconds[PLAIN])) / plain_steps) if drafted else None


def engine_of(target: Loaded, drafter: DrafterLike, depth: int | str | None, *, batch_size: int, length: int) -> Engine:
    """An engine with drafts of ``depth``, or the controller's; without a ``depth``, one that decodes plainly."""
    if depth is None:
        return Engine(target, batch_size=batch_size, max_length=length)
    count = "auto" if isinstance(depth, str) else depth
    return Engine(target, drafter=drafter, num_draft_tokens=count, batch_size=batch_size, max_length=length)


def sampling_of(temperature: float) -> str:
    """A temperature in words."""
    return f"temperature {temperature:g}" if temperature else "greedy"


def place(temperature: float, rows: int) -> str:
    """A temperature and a batch size in words."""
    return f"{sampling_of(temperature)}, batch {rows}"
