"""Prompts of a benchmark: chosen by a seed from a suite, a file of questions, or given ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api import Loaded
from paceline.api.prompts import Prompt, encode
from paceline.bench.suites import categories_of, choose, prompts_of, read_questions

NUM_PROMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPrompts:
    """Token ids of the prompts, and the category of each where they have categories."""

    tokens: Sequence[Sequence[int]]
    categories: Sequence[str] | None


def choose_prompts(
    target: Loaded,
    *,
    suite: str,
    given: Sequence[Prompt] | None = None,
    questions: Path | None = None,
    count: int | None,
    seed: int,
) -> ChosenPrompts:
    """The prompts that the seed chooses: of ``given``, ``questions`` or the suite, the first that there is.

    ``count`` None is all that are given, and NUM_PROMPTS of the others. Raises ValueError for files that cannot be
    read, unknown suites, and more prompts than there are.
    """
    prompts: Sequence[Prompt]
    categories: list[str] | None = None
    wanted = count or NUM_PROMPTS
    if given is not None:
        prompts, wanted = given, count or len(given)
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
