"""``paceline score``: log-probabilities of continuations, and perplexities of texts."""

import json
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table

from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.console import make_table, open_notes
from paceline.cli.options import POSITIONAL, BatchSize, Json, LogLevel, ModelOptions, Quiet
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline import api

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


@dataclass(frozen=True, slots=True)
class Score(Command):
    """Compute the log-probability of continuations, or the perplexity of whole texts.

    Natural logarithms of the model's own distribution at temperature 1. A table on a terminal, JSON elsewhere. An
    invalid line fails alone.

    Examples:

        paceline score --model DIR "The capital of France is" " Paris"
        paceline score --model DIR --file pairs.jsonl > scores.jsonl
        paceline score --model DIR --text one.txt --text two.txt --stride 256
    """

    prompt: Annotated[str | None, POSITIONAL] = None
    """The prompt."""
    continuation: Annotated[str | None, POSITIONAL] = None
    """What is scored after it."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    file: Path | None = None
    """Lines of {"prompt": ..., "continuation": ...}, strings or token ids."""
    text: tuple[Path, ...] = ()
    """A text file whose perplexity is computed; may be repeated."""
    stride: int | None = None
    """With --text: tokens between windows over texts longer than the context; half of it by default."""
    json: Json = False
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Score and print; lines that cannot be scored fail alone."""
        open_notes(quiet=self.quiet, log_level=self.log_level)
        self._check()
        console = Console(highlight=False)
        as_json = self.json or not console.is_terminal
        if self.text:
            return self._run_texts(None if as_json else console)
        pairs = [Pair(index=0, prompt=self.prompt, continuation=self.continuation)]
        if self.file is not None:
            pairs = _read_pairs(self.file)
        target = self.model.load()
        done: list[tuple[Pair, api.Score | str]] = []
        complete = True
        try:
            for first in range(0, len(pairs), AT_ONCE):
                together = pairs[first : first + AT_ONCE]
                scored = self._score(target, together)
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

    def _check(self) -> None:
        """Refuse options that contradict each other, before anything is loaded."""
        sources = {
            "PROMPT CONTINUATION": self.prompt is not None,
            "--file": self.file is not None,
            "--text": bool(self.text),
        }
        given = [name for name, there in sources.items() if there]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'nothing to score'}: give one of PROMPT CONTINUATION, --file FILE.jsonl, and "
                "--text FILE"
            )
        if self.prompt is not None and self.continuation is None:
            raise ValueError("PROMPT without CONTINUATION: give both, or --text FILE for perplexity")
        if self.stride is not None and not self.text:
            raise ValueError(f"--stride {self.stride} without --text: it is for --text, leave it out")

    def _score(self, target: "api.Loaded", pairs: Sequence[Pair]) -> list["api.Score | str"]:
        """Scores, or reasons why there is none: one by one where a batch is refused, to find the line at fault."""
        from paceline.api import score

        good = [pair for pair in pairs if pair.error is None]
        try:
            prompts, continuations = [pair.prompt for pair in good], [pair.continuation for pair in good]
            found = iter(score(target, prompts, continuations, batch_size=self.batch_size) if good else ())
        except ValueError as error:
            if self.file is None:
                raise
            if len(pairs) > 1:
                return [found for pair in pairs for found in self._score(target, [pair])]
            return [f"{pairs[0].name}: {str(error).removeprefix('prompt 0: ')}"]
        return [next(found) if pair.error is None else pair.error for pair in pairs]

    def _run_texts(self, console: Console | None) -> int:
        """Perplexity of whole files; as JSON without a console."""
        from paceline.api import perplexity

        texts: list[str] = []
        for path in self.text:
            try:
                texts.append(_read_file(path, option="--text").decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(f"--text {path}: not UTF-8 ({error}); convert it") from error
        target = self.model.load()
        try:
            whole = perplexity(target, texts, stride=self.stride, batch_size=self.batch_size)
        except ValueError as error:
            reason = str(error)
            for index, path in enumerate(self.text):
                if reason.startswith(f"text {index}: "):
                    reason = reason.replace(f"text {index}", f"--text {path}", 1)
                    break
            raise ValueError(reason) from error
        names = list(map(str, self.text))
        rows = [(text.num_tokens, text.total, text.perplexity) for text in whole.texts]
        every = (whole.num_tokens, whole.total, whole.perplexity)
        if console is None:
            objects = [{"file": name, **_numbers(*row)} for name, row in zip(names, rows, strict=True)]
            print(to_json({**_numbers(*every), "texts": objects}))
            return EXIT_OK
        if len(rows) > 1:
            names, rows = [*names, "all"], [*rows, every]
        lines = ((name, *_cells(*row)) for name, row in zip(names, rows, strict=True))
        console.print(make_table(("text", *NUMBERS), lines))
        return EXIT_OK


def _print_objects(done: Sequence[tuple[Pair, "api.Score | str"]]) -> None:
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
        print(to_json(shown), flush=True)


def _table(done: Sequence[tuple[Pair, "api.Score | str"]]) -> Table:
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
    return {"num_tokens": num_tokens, "logprob": total, "perplexity": perplexity}


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
