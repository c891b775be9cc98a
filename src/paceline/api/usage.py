"""What to type to generate with a model: the command, and the same in Python. For messages and model cards."""

import shlex
from collections.abc import Mapping

PROMPT = "def quicksort(items):"
TOKENS = "[[1, 2, 3]]"  # a prompt of a model without tokenizer
SOUND = "talk.wav"


def generate_command(
    model: str,
    *,
    draft: str | None = None,
    options: Mapping[str, str | None] | None = None,
    flags: tuple[str, ...] = (),
    tokenizer: bool = True,
) -> str:
    """The command that generates with ``model``, quoted for a shell; ``options`` by name, None where not given.

    Without a ``tokenizer`` the prompts are token ids, which the command line reads from a file.
    """
    given = {"--model": model, "--draft": draft, **(options or {})}
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    prompt = ("--stats", PROMPT) if tokenizer else ("--prompt-file", "prompts.jsonl", "--output", "outputs.jsonl")
    return shlex.join(["paceline", "generate", *words, *flags, *prompt])


def transcribe_command(model: str, *, draft: str) -> str:
    """The command that transcribes with ``model``."""
    return shlex.join(["paceline", "transcribe", SOUND, "--model", model, "--draft", draft])


def transcribe_python(model: str, *, draft: str) -> str:
    """Lines of Python that do the same."""
    return (
        "import paceline\n\n"
        f"transcripts = paceline.transcribe({SOUND!r}, model={model!r}, drafter={draft!r})\n"
        "print(transcripts[0].text)\n"
    )


def generate_python(model: str, *, draft: str | None = None, tokenizer: bool = True) -> str:
    """Lines of Python that do the same."""
    prompts = repr([PROMPT]) if tokenizer else TOKENS
    drafter = "" if draft is None else f", drafter={draft!r}"
    return (
        "import paceline\n\n"
        f"target = paceline.load({model!r})\n"
        f"results = paceline.generate(target, {prompts}, max_tokens=60, temperature=0.0{drafter})\n"
        f"print(results[0].{'text' if tokenizer else 'token_ids'})\n"
    )
