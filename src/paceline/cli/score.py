"""``paceline score``: log-probabilities of continuations, and perplexities of texts."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.api import Loaded, Score, perplexity, score
from paceline.cli.commands.score import Score as ScoreOptions
from paceline.cli.console import make_table, open_notes
from paceline.cli.exit_codes import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.models import load_target

NUMBERS = ("tokens", "log-probability", "perplexity")
KEYS = ("prompt", "continuation", "id")
AT_ONCE = 64  # lines that are scored, and then shown, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One line of a file, or the reason why it cannot be read. The scorer checks the values."""

    index: int
    id: Any = None
    prompt: Any = None  # string, token ids, messages, or None for the beginning of a text
    continuation: Any = None  # string or token ids
    error: str | None = None

    @property
    def name(self) -> str:
        return f"line {self.index + 1}"


def score_texts(options: ScoreOptions) -> int:
    """Score and print; lines that cannot be scored fail alone."""
    open_notes(quiet=options.quiet, log_level=options.log_level)
    _check(options)
    console = Console(highlight=False)
    as_json = options.json or not console.is_terminal
    if options.text:
        return _run_texts(options, None if as_json else console)
    pairs = [Pair(index=0, prompt=options.prompt, continuation=options.continuation)]
    if options.file is not None:
        pairs = _read_pairs(options.file)
    target = load_target(options.model)
    done: list[tuple[Pair, Score | str]] = []
    complete = True
    try:
        for first in range(0, len(pairs), AT_ONCE):
            together = pairs[first : first + AT_ONCE]
            scored = _score(options, target, together)
            done += zip(together, scored, strict=True)
            if as_json:
                _print_objects(done[first:])
    except KeyboardInterrupt:
        complete = False
    if not as_json:
        console.print(_table(done))
    errors = [found for _, found in done if isinstance(found, str)]
    if errors:
        print(f"paceline: {len(errors)} of {len(pairs)} lines failed; {errors[0]}", file=sys.stderr)
    return EXIT_INTERRUPTED if not complete else EXIT_DIFFERENT if errors else EXIT_OK


def _check(options: ScoreOptions) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    sources = {
        "PROMPT CONTINUATION": options.prompt is not None,
        "--file": options.file is not None,
        "--text": bool(options.text),
    }
    given = [name for name, there in sources.items() if there]
    if len(given) != 1:
        raise ValueError(
            f"{' and '.join(given) or 'nothing to score'}: give one of PROMPT CONTINUATION, --file FILE.jsonl, and "
            "--text FILE"
        )
    if options.prompt is not None and options.continuation is None:
        raise ValueError("PROMPT without CONTINUATION: give both, or --text FILE for perplexity")
    if options.stride is not None and not options.text:
        raise ValueError(f"--stride {options.stride} without --text: it is for --text, leave it out")


def _score(options: ScoreOptions, target: Loaded, pairs: Sequence[Pair]) -> list[Score | str]:
    """Scores, or reasons why there is none: one by one where a batch is refused, to find the line at fault."""
    good = [pair for pair in pairs if pair.error is None]
    try:
        prompts, continuations = [pair.prompt for pair in good], [pair.continuation for pair in good]
        found = iter(score(target, prompts, continuations, batch_size=options.batch_size) if good else ())
    except ValueError as error:
        if options.file is None:
            raise
        if len(pairs) > 1:
            return [found for pair in pairs for found in _score(options, target, [pair])]
        return [f"{pairs[0].name}: {str(error).removeprefix('prompt 0: ')}"]
    return [next(found) if pair.error is None else pair.error for pair in pairs]


def _run_texts(options: ScoreOptions, console: Console | None) -> int:
    """Perplexity of whole files; as JSON without a console."""
    texts: list[str] = []
    for path in options.text:
        try:
            texts.append(_read_file(path, option="--text").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"--text {path}: not UTF-8 ({error}); convert it") from error
    target = load_target(options.model)
    try:
        whole = perplexity(target, texts, stride=options.stride, batch_size=options.batch_size)
    except ValueError as error:
        reason = str(error)
        for index, path in enumerate(options.text):
            if reason.startswith(f"text {index}: "):
                reason = reason.replace(f"text {index}", f"--text {path}", 1)
                break
        raise ValueError(reason) from error
    names = list(map(str, options.text))
    rows = [(text.num_tokens, text.total, text.perplexity) for text in whole.texts]
    every = (whole.num_tokens, whole.total, whole.perplexity)
    if console is None:
        objects = [{"file": name, **_numbers(*row)} for name, row in zip(names, rows, strict=True)]
        print(json.dumps({**_numbers(*every), "texts": objects}))
        return EXIT_OK
    if len(rows) > 1:
        names, rows = [*names, "all"], [*rows, every]
    lines = ((name, *_cells(*row)) for name, row in zip(names, rows, strict=True))
    console.print(make_table(("text", *NUMBERS), lines))
    return EXIT_OK


def _print_objects(done: Sequence[tuple[Pair, Score | str]]) -> None:
    """One JSON object per line."""
    for pair, found in done:
        shown: dict[str, object] = {"index": pair.index}
        if pair.id is not None:
            shown["id"] = pair.id
        if isinstance(found, str):
            shown["error"] = found
        else:
            shown |= _numbers(found.num_tokens, found.total, found.perplexity)
            shown |= {"greedy": found.greedy, "tokens": found.tokens, "logprobs": found.logprobs}
        print(json.dumps(shown), flush=True)


def _table(done: Sequence[tuple[Pair, Score | str]]) -> Table:
    rows: list[tuple[str, ...]] = []
    for pair, found in done:
        name = str(pair.index + 1 if pair.id is None else pair.id)
        if isinstance(found, str):
            rows.append((name, "-", "-", "-", "failed"))
        else:
            cells = _cells(found.num_tokens, found.total, found.perplexity)
            rows.append((name, *cells, "yes" if found.greedy else "no"))
    return make_table(("line", *NUMBERS, "greedy"), rows)


def _cells(num_tokens: int, total: float, perplexity: float) -> tuple[str, str, str]:
    return str(num_tokens), f"{total:.4f}", f"{perplexity:.4g}"


def _numbers(num_tokens: int, total: float, perplexity: float) -> dict[str, object]:
    """JSON has no infinities: what is beyond floating point is null."""
    return {
        "num_tokens": num_tokens,
        "logprob": total if math.isfinite(total) else None,
        "perplexity": perplexity if math.isfinite(perplexity) else None,
    }


def _read_pairs(path: Path) -> list[Pair]:
    """Every line of a .jsonl file. Raises ValueError for a file that is missing or has no lines."""
    lines = _read_file(path, option="--file").removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise ValueError(f'--file {path}: no lines in it; give objects like {{"prompt": "...", "continuation": "..."}}')
    return [_pair(index, line) for index, line in enumerate(lines)]


def _read_file(path: Path, *, option: str) -> bytes:
    """What a file holds. Raises ValueError, naming the option that named it, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}; give a file that can be read") from error


def _pair(index: int, line: bytes) -> Pair:
    try:
        value = json.loads(line)
    except ValueError as error:  # broken JSON, or bytes that are no text
        return Pair(index=index, error=f"line {index + 1}: not JSON ({error}): give an object")
    if not isinstance(value, dict):
        return Pair(index=index, error=f"line {index + 1}: no JSON object: give one with prompt and continuation")
    missing = [key for key in KEYS[:2] if key not in value]
    unknown = [key for key in value if key not in KEYS]
    if missing or unknown:
        reason = f"no {missing[0]}" if missing else f"unknown key {unknown[0]!r}"
        return Pair(index=index, error=f"line {index + 1}: {reason}: give {', '.join(KEYS[:2])} and, if wanted, id")
    return Pair(index=index, **{key: value.get(key) for key in KEYS})
