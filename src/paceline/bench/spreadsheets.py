"""Figures as CSV. Measures and computes nothing."""

import csv
import io
from collections.abc import Iterable, Sequence

from paceline.bench.categories import CategoryFigures
from paceline.bench.figures import PHASES, Figures
from paceline.bench.head_to_head import DuelFigures
from paceline.bench.sampled import SampledFigures

COLUMNS = (
    "run",
    "label",
    "suite",
    "drafter",
    "num_draft_tokens",
    "batch_size",
    "temperature",
    "top_p",
    "max_tokens",
    "void",
    "attempts",
    "control",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tokens_per_second",
    "plain_tokens_per_second",
    "decoding_tokens_per_second",
    "limit_tokens_per_second",
    "of_limit",
    "start_seconds",
    "tokens_per_step",
    "accepted_per_step",
    "acceptance",
    "acceptance_by_position",
    "ideal",
    "efficiency",
    *(f"{phase}_ms" for phase in PHASES),
    "plain_target_ms",
    "num_texts",
    "num_looping",
    "num_different",
    "first_difference",
)
DUEL_COLUMNS = (
    "run",
    "label",
    "suite",
    "batch_size",
    "temperature",
    "top_p",
    "max_tokens",
    "own",
    "own_num_draft_tokens",
    "other",
    "other_num_draft_tokens",
    "void",
    "attempts",
    "control",
    "ratio",
    "ratio_low",
    "ratio_high",
    "tokens_per_second",
    "other_tokens_per_second",
    "num_texts",
    "num_looping",
    "num_different",
    "first_difference",
)
CATEGORY_COLUMNS = (
    "run",
    "label",
    "suite",
    "drafter",
    "num_draft_tokens",
    "batch_size",
    "temperature",
    "top_p",
    "max_tokens",
    "category",
    "void",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tokens_per_step",
    "acceptance",
    "num_texts",
    "num_looping",
)
SAMPLED_COLUMNS = (
    "run",
    "label",
    "suite",
    "drafter",
    "num_draft_tokens",
    "batch_size",
    "temperature",
    "top_p",
    "max_tokens",
    "void",
    "ratio",
    "ratio_low",
    "ratio_high",
    "tokens_per_step",
    "greedy_tokens_per_step",
)


def to_csv(figures: Sequence[Figures]) -> str:
    """COLUMNS of every cell; empty where there is no figure. Times are there for void cells too, marked as such."""
    rows: list[Sequence[object]] = []
    for line in figures:
        cell = line.cell
        step = line.step_seconds or (None,) * len(PHASES)
        row = (
            line.run,
            line.label,
            line.suite,
            cell.drafter,
            cell.num_draft_tokens,
            cell.batch_size,
            cell.temperature,
            cell.top_p,
            cell.max_tokens,
            line.void,
            line.attempts,
            line.control,
            line.speedup.value,
            line.speedup.low,
            line.speedup.high,
            line.tokens_per_second,
            line.plain_tokens_per_second,
            line.decoding_tokens_per_second,
            line.limit_tokens_per_second,
            line.of_limit,
            line.start_seconds,
            line.tokens_per_step,
            line.accepted_per_step,
            line.acceptance,
            " ".join(f"{rate:.4f}" for rate in line.by_position),
            line.ideal,
            line.efficiency,
            *(None if seconds is None else 1e3 * seconds for seconds in step),
            1e3 * line.plain_step_seconds[1] if line.plain_step_seconds else None,
            line.num_texts,
            line.num_looping,
            line.num_different,
            line.first_difference,
        )
        rows.append(row)
    return _csv(COLUMNS, rows)


def duels_to_csv(lines: Iterable[DuelFigures]) -> str:
    """DUEL_COLUMNS of every duel. Times are there for void ones too, marked as such."""
    rows = [
        (
            line.run,
            line.label,
            line.suite,
            line.duel.own.batch_size,
            line.duel.own.temperature,
            line.duel.own.top_p,
            line.duel.own.max_tokens,
            line.duel.own.drafter,
            line.duel.own.num_draft_tokens,
            line.duel.other.drafter,
            line.duel.other.num_draft_tokens,
            line.void,
            line.attempts,
            line.control,
            line.ratio.value,
            line.ratio.low,
            line.ratio.high,
            line.tokens_per_second,
            line.other_tokens_per_second,
            line.num_texts,
            line.num_looping,
            line.num_different,
            line.first_difference,
        )
        for line in lines
    ]
    return _csv(DUEL_COLUMNS, rows)


def categories_to_csv(lines: Iterable[CategoryFigures]) -> str:
    """CATEGORY_COLUMNS of every category of every cell; empty where there is no figure."""
    rows = [
        (
            line.run,
            line.label,
            line.suite,
            line.cell.drafter,
            line.cell.num_draft_tokens,
            line.cell.batch_size,
            line.cell.temperature,
            line.cell.top_p,
            line.cell.max_tokens,
            line.category,
            line.void,
            *((None,) * 3 if line.speedup is None else (line.speedup.value, line.speedup.low, line.speedup.high)),
            line.tokens_per_step,
            line.acceptance,
            line.num_texts,
            line.num_looping,
        )
        for line in lines
    ]
    return _csv(CATEGORY_COLUMNS, rows)


def sampled_to_csv(lines: Iterable[SampledFigures]) -> str:
    """SAMPLED_COLUMNS of every line."""
    rows = [
        (
            line.run,
            line.label,
            line.suite,
            line.cell.drafter,
            line.cell.num_draft_tokens,
            line.cell.batch_size,
            line.cell.temperature,
            line.cell.top_p,
            line.cell.max_tokens,
            line.void,
            line.ratio.value,
            line.ratio.low,
            line.ratio.high,
            line.tokens_per_step,
            line.greedy_tokens_per_step,
        )
        for line in lines
    ]
    return _csv(SAMPLED_COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    return text.getvalue()
