"""``paceline data regenerate``: texts by the target itself, as lines that training reads. Decodes through the API."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from paceline.api import SamplingParams
from paceline.cli.batch import STDOUT, Batch
from paceline.cli.commands.data import DataRegenerate
from paceline.cli.commands.generate import Generate
from paceline.cli.console import open_notes
from paceline.cli.data_inputs import read_corpus, read_rows
from paceline.cli.exit_codes import EXIT_INTERRUPTED
from paceline.cli.journal import Line, check_writable
from paceline.cli.models import check_drafting
from paceline.cli.options import OutputOptions
from paceline.cli.prompts import Entry, read_prompts
from paceline.cli.work import Sink
from paceline.text.loops import is_looping
from paceline.train.data.manifest import Split
from paceline.train.data.prepare import digest

ARRAY = ".npy"
PARAMS = ("max_tokens", "top_k", "top_p", "min_p", "seed", "ignore_eos")


def regenerate(options: DataRegenerate) -> int:
    """Generate what is missing, then say how much there is."""
    notes = open_notes(quiet=options.quiet, log_level=options.log_level)
    params = SamplingParams(**{name: getattr(options, name) for name in PARAMS})
    path, temperatures = _check(options), _temperatures(options.temperature)
    entries = _entries(options)
    code = Batch(
        options=Generate(
            prompt_file=options.prompt_file,
            model=options.model,
            drafting=options.drafting,
            batch_size=options.batch_size,
            output=OutputOptions(output=path, overwrite=options.overwrite, quiet=options.quiet),
        ),
        params=params,
        notes=notes,
        entries=[_at(entry, temperatures[entry.index % len(temperatures)]) for entry in entries],
        into=TrainingLines,
    ).run()
    return code if code == EXIT_INTERRUPTED else _conclude(options, path, code)


def _check(options: DataRegenerate) -> Path:
    """The file of lines, which an array is made of; refused before anything is loaded if it cannot be written."""
    check_drafting(options.drafting)
    path = options.output
    if path == STDOUT:
        raise ValueError("--output: give FILE.jsonl or FILE.npy, for the work is to outlive an interruption")
    if path.suffix not in (".jsonl", ARRAY):
        raise ValueError(f"--output {path}: give FILE.jsonl, or FILE.npy for an array of token ids")
    if options.corpus.given == (options.prompt_file is not None):
        raise ValueError("give either --prompt-file, or texts whose beginnings are continued (--text, CONFIG.yaml ...)")
    if options.system is not None and not options.as_chat:
        raise ValueError("--system without --as-chat: give --as-chat too, for a line is then a user's message")
    check_writable(path)
    return path.with_suffix(".jsonl")


def _entries(options: DataRegenerate) -> Sequence[Entry]:
    if options.prompt_file is not None:
        return read_prompts(options.prompt_file, chat=options.as_chat, system=options.system)
    corpus = read_corpus(options.corpus, length=2 * options.prompt_tokens)
    found = read_rows(corpus, options.model.model)
    prompts = found.prompts(options.num_prompts, options.prompt_tokens, split=Split.TRAIN, seed=options.seed)
    if len(prompts) < options.num_prompts and not options.quiet:
        print(f"the texts have {len(prompts)} prompts of {options.prompt_tokens} tokens", file=sys.stderr)
    return [Entry(index=index, prompt=prompt.tolist(), digest=digest(prompt)) for index, prompt in enumerate(prompts)]


def _conclude(options: DataRegenerate, path: Path, code: int) -> int:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    kept = [line for line in lines if "left_out" not in line]
    if not kept:
        raise ValueError(
            f"{path}: all {len(lines)} texts loop or failed; train the target further, or raise --temperature"
        )
    written = path
    if options.output.suffix == ARRAY:
        written = options.output
        _save(written, kept)
    if not options.quiet:
        looping = sum(line.get("left_out") == LOOPS for line in lines)
        num_tokens = sum(sum(line["loss_mask"]) for line in kept)
        print(
            f"{len(kept)} texts, {num_tokens} tokens of the target's own, in {written}; "
            f"{looping} that loop are left out",
            file=sys.stderr,
        )
    return code


LOOPS = "it loops"


@final
class TrainingLines:
    """Takes lines of results and passes on what training reads: input_ids, loss_mask; or why a text is left out."""

    def __init__(self, sink: Sink, prompts: Sequence[list[int] | str]) -> None:
        self._sink, self._prompts = sink, prompts

    def put(self, line: Line) -> None:
        """One finished prompt."""
        self._sink.put({**_place(line), **self._outcome(line)})

    def put_cancelled(self, line: Line) -> None:
        """Half a text is of no use."""

    def close(self, *, complete: bool) -> None:
        """As the file does."""
        self._sink.close(complete=complete)

    def _outcome(self, line: Line) -> dict[str, object]:
        if "error" in line:
            return {"left_out": "it failed", "error": line["error"]}
        prompt, tokens = self._prompts[line["index"]], line["samples"][0]["tokens"]
        assert isinstance(prompt, list)
        if is_looping(tokens):
            return {"left_out": LOOPS}
        mask = [0] * len(prompt) + [1] * len(tokens)
        return {
            "input_ids": [*prompt, *tokens],
            "loss_mask": mask,
            "finish_reason": line["samples"][0]["finish_reason"],
        }


def _place(line: Line) -> dict[str, Any]:
    """What says whose line it is."""
    return {name: line[name] for name in ("index", "id", "run", "prompt_hash") if name in line}


def _at(entry: Entry, temperature: float) -> Entry:
    """``entry`` sampled at ``temperature``, unless its line says otherwise."""
    params = {"temperature": temperature, **entry.params}
    return replace(entry, params=params, digest=f"{entry.digest[:16]}-{params['temperature']}")


def _save(path: Path, lines: Sequence[Mapping[str, list[int]]]) -> None:
    """All texts in one array, one behind the other."""
    ids = np.concatenate([np.asarray(line["input_ids"], dtype=np.int64) for line in lines])
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, ids.astype(np.min_scalar_type(int(ids.max()))))
    part.replace(path)


def _temperatures(given: str) -> list[float]:
    try:
        found = [float(part) for part in given.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value < float("inf") for value in found):
        raise ValueError(f"--temperature {given}: give numbers from 0, such as 0,0.7,1")
    return found
