"""What one comparison says of one task, as a raw record. Measures and writes nothing."""

from collections.abc import Mapping
from dataclasses import asdict

from paceline.bench.runner import Comparison, Measured, Sample
from paceline.bench.statistics import first_difference, is_void
from paceline.text.loops import distinct_share, is_looping


def record_of(sides: Mapping[str, Measured], comparison: Comparison) -> dict[str, object]:
    """Of a base, a candidate and the base again, in this order, under the names that they have in records."""
    (base_name, base), (name, candidate), (_, control) = sides.items()
    timed = {base_name: base, name: candidate}
    return {
        "void": is_void([own / again for own, again in zip(base.seconds.values, control.seconds.values, strict=True)]),
        "num_threads": comparison.num_threads,
        "num_tokens": candidate.sample.num_tokens,
        "seconds": {side: list(measured.seconds.values) for side, measured in sides.items()},
        "part_seconds": {side: [list(parts) for parts in measured.part_seconds] for side, measured in timed.items()},
        "decode_seconds": {side: _decoding(measured) for side, measured in timed.items()},
        "phases": {side: _phases(measured) for side, measured in timed.items()},
        "steps": {side: _steps(measured) for side, measured in timed.items()},
        "rates": [dict(rates) for rates in comparison.beside],
        "repeatable": all(sample.tokens == candidate.sample.tokens for sample in candidate.samples),
        "texts": texts_of(candidate.sample, base.sample),
    }


def rests_of(candidate: Measured, base: Measured) -> list[list[int]]:
    """Of each output what follows from the first token on that differs from the base's; nothing where none does."""
    pairs = zip(candidate.sample.tokens, base.sample.tokens, strict=True)
    return [list(tokens[_or_end(first_difference(tokens, reference), tokens) :]) for tokens, reference in pairs]


def texts_of(sample: Sample, reference: Sample | None = None) -> list[dict[str, object]]:
    """Of each output its counts and, beside a ``reference``, where it first differs from it."""
    counts = sample.texts or [None] * len(sample.tokens)
    others = sample.tokens if reference is None else reference.tokens
    return [
        {
            "num_tokens": len(tokens),
            "distinct": distinct_share(tokens),
            "looping": is_looping(tokens),
            "first_difference": first_difference(tokens, other),
            "counts": None if counted is None else asdict(counted),
        }
        for tokens, other, counted in zip(sample.tokens, others, counts, strict=True)
    ]


def _or_end(at: int | None, tokens: tuple[int, ...]) -> int:
    return len(tokens) if at is None else at


def _decoding(measured: Measured) -> list[float] | None:
    taken = [sample.decode_seconds for sample in measured.samples]
    return [seconds for seconds in taken if seconds is not None] if None not in taken else None


def _phases(measured: Measured) -> list[list[float]] | None:
    taken = [sample.phases for sample in measured.samples]
    return [list(phases) for phases in taken if phases is not None] if None not in taken else None


def _steps(measured: Measured) -> int | None:
    summary = measured.sample.summary
    return None if summary is None else summary.steps
