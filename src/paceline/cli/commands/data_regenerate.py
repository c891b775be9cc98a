"""``paceline data regenerate``: outputs of the target itself, as lines that training reads."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from cyclopts import Parameter

from paceline.cli.command import EXIT_INTERRUPTED, Command
from paceline.cli.console import open_notes
from paceline.cli.corpus import CorpusOptions
from paceline.cli.draft_options import DraftOptions
from paceline.cli.numbers import read_numbers
from paceline.cli.options import (
    AT_LEAST_1,
    OUTPUT,
    SAMPLING,
    BatchSize,
    LogLevel,
    ModelOptions,
    OutputOptions,
    Overwrite,
    PromptFile,
    Quiet,
)
from paceline.cli.prompt_file.journal import STDOUT, Line, check_writable
from paceline.cli.sampling_options import IgnoreEos, MaxTokens, MinP, TopK, TopP

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.api import SamplingParams
    from paceline.cli.prompt_file.prompts import Entry
    from paceline.cli.prompt_file.work import Sink
    from paceline.train.data.config import DataConfig
    from paceline.train.data.pair_encoder import PairModel

ARRAY = ".npy"
NUM_PROMPTS, PROMPT_TOKENS = 1024, 48
PARAMS = ("max_tokens", "top_k", "top_p", "min_p", "seed", "ignore_eos")


@dataclass(frozen=True, slots=True)
class DataRegenerate(Command):
    """Generate training data with the target itself.

    A drafter learns best from the target's own outputs, which differ from the corpus. Prompts are the lines of a file,
    as in `paceline generate`, or the beginnings of texts. Outputs that loop are left out and counted. After an
    interruption of any kind, the same command continues where it stopped.

    For an encoder-decoder the prompts are what its encoder reads: lines of a file, or the sources of a configuration
    whose data are pairs or sounds.

    Examples:

        paceline data regenerate --model DIR --text 'corpus/*.txt' --output own.jsonl
        paceline data regenerate --model DIR --prompt-file questions.txt --as-chat --output own.jsonl
        paceline data regenerate --model DIR run.yaml --num-prompts 4096 --draft SMALL_DIR --output own.npy
        paceline data regenerate --model WHISPER_DIR sounds.yaml --temperature 0 --output own.jsonl
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: ModelOptions
    output: Annotated[Path, Parameter(group=OUTPUT)]
    """FILE.jsonl: one output per line; FILE.npy: an array of token ids."""
    num_prompts: Annotated[int, AT_LEAST_1] = NUM_PROMPTS
    """Number of prompts cut from the texts."""
    prompt_tokens: Annotated[int, AT_LEAST_1] = PROMPT_TOKENS
    """Tokens of each prompt."""
    prompt_file: PromptFile = None
    as_chat: bool = False
    """A line of the prompt file is a user message."""
    system: str | None = None
    """With --as-chat: the system message."""
    max_tokens: MaxTokens = 208
    temperature: Annotated[str, Parameter(group=SAMPLING)] = "0,0.4,0.7,1"
    """Temperatures, taken in turn from prompt to prompt."""
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    seed: Annotated[int, Parameter(group=SAMPLING)] = 0
    """Seed of the choice of prompts and of sampling."""
    ignore_eos: IgnoreEos = False
    drafting: DraftOptions = field(default_factory=DraftOptions)
    batch_size: BatchSize = None
    overwrite: Overwrite = False
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Generate what is missing, then print counts."""
        from paceline.api import SamplingParams
        from paceline.cli.prompt_file.batch import Batch
        from paceline.train.data.pair_encoder import find_pair_model

        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        params = SamplingParams(**{name: getattr(self, name) for name in PARAMS})
        path = self._check()
        temperatures = read_numbers(self.temperature, option="--temperature", such_as="0,0.7,1")
        pairs = find_pair_model(self.model.model)
        if pairs is not None:
            self._check_pairs(pairs)
        if pairs is not None and pairs.reads_sound:
            code = self._transcribe(path, params, temperatures, notes)
            return code if code == EXIT_INTERRUPTED else self._conclude(path, code)
        found = self._entries() if pairs is None else self._sources()
        entries = [_at(entry, temperatures[entry.index % len(temperatures)]) for entry in found]
        code = Batch(
            model=self.model,
            drafting=self.drafting,
            batch_size=self.batch_size,
            output=OutputOptions(output=path, overwrite=self.overwrite, quiet=self.quiet),
            prompt_file=self.prompt_file,
            params=params,
            notes=notes,
            entries=entries,
            into=TrainingLines if pairs is None else partial(TrainingLines, start=pairs.start, entries=entries),
        ).run()
        return code if code == EXIT_INTERRUPTED else self._conclude(path, code)

    def _check(self) -> Path:
        """The file of lines, which an array is made of; refused before anything is loaded if it cannot be written."""
        self.drafting.check()
        path = self.output
        if path == STDOUT:
            raise ValueError("--output: give FILE.jsonl or FILE.npy, so that an interrupted run can be resumed")
        if path.suffix not in (".jsonl", ARRAY):
            raise ValueError(f"--output {path}: give FILE.jsonl, or FILE.npy for an array of token ids")
        if self.corpus.given == (self.prompt_file is not None):
            raise ValueError("give either --prompt-file, or texts that prompts are cut from (--text, CONFIG.yaml ...)")
        if self.system is not None and not self.as_chat:
            raise ValueError("--system without --as-chat: give --as-chat too, a line is then a user message")
        check_writable(path)
        return path.with_suffix(".jsonl")

    def _check_pairs(self, pairs: "PairModel") -> None:
        """Refuse what is for prompts that are cut from texts, or of chats."""
        if self.output.suffix == ARRAY:
            raise ValueError(f"--output {self.output}: an array holds no pairs of sources and outputs; give FILE.jsonl")
        if self.as_chat:
            raise ValueError("--as-chat: an encoder-decoder reads no chats; give lines that are sources")
        if (self.num_prompts, self.prompt_tokens) != (NUM_PROMPTS, PROMPT_TOKENS):
            raise ValueError("--num-prompts and --prompt-tokens: an encoder reads whole sources; leave them out")
        if self.corpus.sources():
            raise ValueError(
                f"{pairs.folder} is an encoder-decoder, which reads whole sources: give --prompt-file, or a "
                "configuration whose data are pairs"
            )
        if self.prompt_file is not None and pairs.reads_sound:
            raise ValueError(
                f"--prompt-file {self.prompt_file}: {pairs.folder} reads sound: give a configuration with sources of "
                "kind sounds"
            )

    def _sources(self) -> "Sequence[Entry]":
        """What the encoder of the target reads."""
        from paceline.cli.paired import source_entries
        from paceline.cli.prompt_file.prompts import read_prompts

        if self.prompt_file is not None:
            return read_prompts(self.prompt_file, chat=False, system=None)
        return source_entries(self._paired("pairs"))

    def _paired(self, kind: str) -> "DataConfig":
        """The section data. Raises ValueError unless its sources are all of ``kind``."""
        found = self.corpus.read(length=None).data
        for source in found.sources:
            if source.kind != kind:
                raise ValueError(f"data: sources of kind {source.kind}; {self.model.model} reads those of kind {kind}")
        return found

    def _transcribe(self, path: Path, params: "SamplingParams", temperatures: Sequence[float], notes: "Console") -> int:
        from paceline.cli.paired import SpokenBatch, spoken_entries

        return SpokenBatch(
            model=self.model,
            drafting=self.drafting,
            batch_size=self.batch_size,
            params=params,
            path=path,
            overwrite=self.overwrite,
            sounds=spoken_entries(self._paired("sounds"), temperatures),
            notes=notes,
            quiet=self.quiet,
        ).run()

    def _entries(self) -> "Sequence[Entry]":
        from paceline.cli.prompt_file.prompts import Entry, read_prompts
        from paceline.train.data.corpus import read_rows
        from paceline.train.data.manifest import Split
        from paceline.train.data.tokenise import hash_tokens

        if self.prompt_file is not None:
            return read_prompts(self.prompt_file, chat=self.as_chat, system=self.system)
        corpus = self.corpus.read(length=2 * self.prompt_tokens)
        found = read_rows(corpus, self.model.model)
        prompts = found.prompts(self.num_prompts, self.prompt_tokens, split=Split.TRAIN, seed=self.seed)
        if len(prompts) < self.num_prompts and not self.quiet:
            print(f"the texts have {len(prompts)} prompts of {self.prompt_tokens} tokens", file=sys.stderr)
        return [
            Entry(index=index, prompt=prompt.tolist(), digest=hash_tokens(prompt))
            for index, prompt in enumerate(prompts)
        ]

    def _conclude(self, path: Path, code: int) -> int:
        from paceline.train.data.regenerated import LONG, LOOPS, save_array

        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        good = [line for line in lines if "left_out" not in line]
        if not good:
            raise ValueError(
                f"{path}: all {len(lines)} outputs loop or failed; train the target further, or raise --temperature"
            )
        written = path
        if self.output.suffix == ARRAY:
            written = self.output
            save_array(written, good)
        if not self.quiet:
            reasons = Counter(line.get("left_out") for line in lines)
            long = f", {reasons[LONG]} that exceed a window" * bool(reasons[LONG])
            num_tokens = sum(sum(line["loss_mask"]) for line in good)
            print(
                f"{len(good)} outputs, {num_tokens} tokens generated by the target, in {written}; "
                f"{reasons[LOOPS]} that loop{long} are left out",
                file=sys.stderr,
            )
        return code


@final
class TrainingLines:
    """Takes lines of results and passes on what training reads: input_ids, loss_mask; or why an output is left out.

    With ``start`` the prompts are what an encoder reads, which comes from ``entries``, and outputs begin after that.
    """

    def __init__(
        self,
        sink: "Sink",
        prompts: Sequence[list[int] | str],
        *,
        start: Sequence[int] = (),
        entries: "Sequence[Entry]" = (),
    ) -> None:
        self._sink, self._prompts, self._start, self._entries = sink, prompts, start, entries

    def put(self, line: Line) -> None:
        """One finished prompt."""
        self._sink.put({**_place(line), **self._outcome(line)})

    def put_cancelled(self, line: Line) -> None:
        """Training does not use partial outputs."""

    def close(self, *, complete: bool) -> None:
        """As the file does."""
        self._sink.close(complete=complete)

    def _outcome(self, line: Line) -> dict[str, object]:
        from paceline.train.data.regenerated import training_row

        if "error" in line:
            return {"left_out": "it failed", "error": line["error"]}
        prompt, sample = self._prompts[line["index"]], line["samples"][0]
        assert isinstance(prompt, list)
        row = training_row(self._start or prompt, sample["tokens"], finish_reason=sample["finish_reason"])
        return {"source": self._entries[line["index"]].prompt, **row} if self._start else row


def _place(line: Line) -> dict[str, Any]:
    """The fields that identify a line."""
    return {name: line[name] for name in ("index", "id", "run", "prompt_hash") if name in line}


def _at(entry: "Entry", temperature: float) -> "Entry":
    """``entry`` sampled at ``temperature``, unless its line has its own."""
    params = {"temperature": temperature, **entry.params}
    return replace(entry, params=params, digest=f"{entry.digest[:16]}-{params['temperature']}")
