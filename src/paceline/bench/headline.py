"""What a report opens with: one sentence, and the speeds it is about. Measures, reads and draws nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.figures import acceptances_of, figures_of
from paceline.bench.head_to_head import head_to_head_figures
from paceline.bench.line import Line
from paceline.bench.missing_peers import peers_of
from paceline.bench.raw import Record
from paceline.bench.statistics import Estimate
from paceline.bench.sweep import describe_sampling, on_set

OURS = "Paceline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one engine writes, without a draft or with its best one."""

    engine: str
    draft: str  # what drafts, and how much; empty without a draft
    tokens_per_second: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The sentence, and of the same setting the speed of every engine; none where nothing sound was timed."""

    sentence: str
    setting: str = ""  # in words
    speeds: Sequence[Speed] = ()
    num_void: int = 0  # cells of the setting that are left out
    num_cells: int = 0


def headline_of(records: Sequence[Record]) -> Headline:
    """Of the last run, at its lowest temperature and its smallest batch. Raises ValueError for no cells at all."""
    figures, peers = figures_of(records), tuple({line.name: None for line in peers_of(records)})
    if not figures:
        return Headline(sentence=_counted(acceptances_of(records)))
    sound = [line for line in figures if not line.void]
    if not sound:
        return Headline(
            sentence=f"All {len(figures)} cells are void: plain decoding differed from itself, so no speed is given."
        )
    first = min((line for line in sound if line.run == sound[-1].run), key=_order)
    lines = [line for line in sound if (line.run, _order(line)) == (first.run, _order(first))]
    alike = [line for line in figures if (line.run, _order(line)) == (first.run, _order(first))]
    drafted = [line for line in lines if line.cell.num_draft_tokens and _engine(line, peers) == OURS]
    best = max(drafted, key=lambda line: line.speedup.value, default=None)
    return Headline(
        sentence="No drafted cell of ours is sound: there is no speed-up to give."
        if best is None
        else _timed(best, head_to_head_figures(records)),
        setting=_setting(first),
        speeds=_speeds(lines, peers),
        num_void=len(alike) - len(lines),
        num_cells=len(alike),
    )


def _order(line: Line) -> tuple[float, float, int, int, str]:
    cell = line.cell
    return cell.temperature, cell.top_p, cell.batch_size, -cell.max_tokens, line.suite


def _timed(best: Line, pairs: Sequence[Line]) -> str:
    met = [pair for pair in pairs if (pair.run, pair.cell) == (best.run, best.cell) and not pair.void]
    closest = min(met, key=lambda pair: pair.speedup.value, default=None)
    beside = ""
    if closest is not None and closest.other is not None:
        beside = f", and {_times(closest.speedup)} as many as the fastest peer ({closest.other.way})"
    return (
        f"{OURS}, drafting with {best.cell.way}, writes {_times(best.speedup)} as many tokens per second as without a "
        f"draft{_place(best)} ({_setting(best)}){beside}."
    )


def _counted(lines: Sequence[Line]) -> str:
    """Of cells that nobody timed."""
    found = {line: line.tokens_per_step for line in lines}
    most = max(lines, key=lambda line: found[line] or 0.0, default=None)
    if most is None:
        raise ValueError("no cells in the raw figures: there is nothing to report yet; run paceline bench first")
    if found[most] is None or most.acceptance is None:
        return "No text is left to count: each of them mostly repeats itself, or nothing was drafted."
    return (
        f"{OURS}, drafting with {most.cell.way}, writes {found[most]:.2f} tokens per step of the target and keeps "
        f"{most.acceptance:.0%} of the drafted ones ({_setting(most)}); nothing was timed."
    )


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x [{ratio.low:.2f}-{ratio.high:.2f}]"


def _setting(line: Line) -> str:
    cell = line.cell
    return f"{line.label}, batch {cell.batch_size}, {describe_sampling(cell.temperature, cell.top_p)}"


def _place(line: Line) -> str:
    machine = line.conditions.get("machine")
    if machine is None:
        return ""
    on_gpu = str(line.conditions.get("device")).startswith("cuda")
    return f" on {machine['accelerator'] if on_gpu else machine['processor']}"


def _engine(line: Line, peers: Sequence[str]) -> str:
    """Who decodes."""
    drafter = line.cell.drafter
    whose = (name for name in peers if drafter == name or drafter.startswith(f"{name}-"))
    return next(whose, OURS)


def _speeds(lines: Sequence[Line], peers: Sequence[str]) -> list[Speed]:
    """Without a draft and with the fastest one, of ours and then of the peers, the fastest first."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(_engine(line, peers) + on_set(line.cell.isa), []).append(line)
    speeds: list[Speed] = []
    for engine, own in found.items():
        ours = engine.startswith(OURS)
        best = max(
            (line for line in own if line.cell.num_draft_tokens), key=lambda line: line.speedup.value, default=None
        )
        plain = next((line for line in own if not line.cell.num_draft_tokens), best if ours else None)
        if plain is not None:  # of ours that beside the best: what was timed in its repeats
            speed = (best or plain).base_speed if ours else plain.speed
            speeds.append(Speed(engine=engine, draft="", tokens_per_second=speed))
        if best is not None:
            way = best.cell.way.removesuffix(on_set(best.cell.isa))
            draft = way.removeprefix(f"{_engine(best, peers)}-")
            speeds.append(Speed(engine=engine, draft=draft, tokens_per_second=best.speed))
    fastest = {name: max(one.tokens_per_second.value for one in speeds if one.engine == name) for name in found}
    return sorted(speeds, key=lambda one: (not one.engine.startswith(OURS), -fastest[one.engine]))
