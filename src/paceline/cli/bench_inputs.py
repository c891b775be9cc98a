"""The prompts and lists of numbers of ``paceline bench``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api import Loaded
from paceline.api.draft_heads import is_head
from paceline.api.prompts import Prompt, encode
from paceline.bench.suites import categories_of, choose, prompts_of, read_questions
from paceline.cli.prompts import read_prompts

NUM_PROMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPrompts:
    """Token ids of the prompts, and the category of each where they have categories."""

    tokens: Sequence[Sequence[int]]
    categories: Sequence[str] | None


def choose_prompts(
    target: Loaded, *, suite: str, prompt_file: Path | None, questions: Path | None, count: int | None, seed: int
) -> ChosenPrompts:
    """The prompts that the seed chooses: of ``prompt_file``, ``questions`` or the suite, the first that is given.

    ``count`` None is all of a prompt file, and NUM_PROMPTS of the others. Raises ValueError for files that cannot be
    read, unknown suites, and more prompts than there are.
    """
    prompts: list[Prompt]
    categories: list[str] | None = None
    wanted = count or NUM_PROMPTS
    if prompt_file is not None:
        entries = read_prompts(prompt_file, chat=False, system=None)
        errors = [entry.error for entry in entries if entry.error is not None]
        if errors:
            raise ValueError(f"--prompt-file {prompt_file}: {errors[0]}")
        prompts = [entry.prompt for entry in entries if entry.prompt is not None]
        wanted = count or len(prompts)
    elif questions is not None:
        found = read_questions(questions)
        chat = target.tokenizer is not None and target.tokenizer.has_chat_template
        prompts = [[{"role": "user", "content": turn}] if chat else turn for _, turn in found]
        categories = [category for category, _ in found]
    else:
        prompts = list(prompts_of(suite, wanted, seed=seed))
        categories = categories_of(suite, wanted)
    order = list(range(len(prompts)))
    if len(order) != wanted:
        order = choose(order, wanted, seed=seed)
    return ChosenPrompts(
        tokens=[encode(target, prompts[at], name=f"prompt {at}") for at in order],
        categories=None if categories is None else [categories[at] for at in order],
    )


def find_heads(drafters: Sequence[str]) -> dict[str, Path]:
    """The directories of draft heads among ``drafters``, by name. Raises ValueError where two have the same name."""
    found: dict[str, Path] = {}
    for path in (Path(name) for name in dict.fromkeys(drafters) if is_head(name)):
        if path.resolve().name in found:
            raise ValueError(
                f"--drafter {path}: another draft head has the same name; give directories of different names"
            )
        found[path.resolve().name] = path
    return found


def read_counts(text: str, *, option: str) -> list[int]:
    """Counts of at least 1 such as "1,2,4" or "1-8". Raises ValueError, naming ``option``, for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
        if first < 1 or last < first:
            raise ValueError(f"{option} {text}: give counts of at least 1, such as 1,2,4 or 1-8")
        found.extend(range(first, last + 1))
    return list(dict.fromkeys(found))


def read_peer_counts(texts: Sequence[str]) -> dict[str, list[int]]:
    """Draft lengths by peer or mode, such as "vllm=3,5" or "vllm-lookup=none". Raises ValueError for anything else."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, counts = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--peer-k {text}: give a peer or one of its modes, such as vllm=3,5 or vllm-lookup=none")
        found[name] = [] if counts == "none" else read_counts(counts, option=f"--peer-k {name}")
    return found


def check_peer_counts(counts: Mapping[str, Sequence[int]], *, known: Sequence[str], missing: Sequence[str]) -> None:
    """Raise ValueError for draft lengths of what is neither a peer nor one of the ``known`` modes.

    Modes of the peers that are ``missing`` pass, for they are unknown.
    """
    for name in counts:
        if name not in (*known, *missing) and not any(name.startswith(f"{peer}-") for peer in missing):
            raise ValueError(f"--peer-k {name}: no such peer or mode here; there are {', '.join(known) or 'none'}")


def read_temperatures(text: str) -> list[float]:
    """Temperatures such as "0,0.8". Raises ValueError for anything else."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value < float("inf") for value in found):
        raise ValueError(f"--temperature {text}: give numbers of at least 0, such as 0,0.8")
    return list(dict.fromkeys(found))
