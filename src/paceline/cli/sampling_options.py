"""The options of ``paceline generate`` that change the law of a token, each with its help, and how values are spelled.

Loads no torch.
"""

from collections.abc import Sequence
from typing import Annotated

import typer

FAVOURING, FILTERS = "Which tokens are favoured", "Further filters"

LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        help="Added to a token's logit, such as 42=1.5 or 42=-inf; may be repeated.",
        metavar="ID=VALUE",
        rich_help_panel=FAVOURING,
    ),
]
SequenceBias = Annotated[
    list[str] | None,
    typer.Option(
        help="The same for the last of several tokens in a row, such as 42,7=-2; may be repeated.",
        metavar="ID,ID=VALUE",
        rich_help_panel=FAVOURING,
    ),
]
AllowedTokenId = Annotated[
    list[int] | None,
    typer.Option(help="Choose among these tokens alone; may be repeated.", rich_help_panel=FAVOURING),
]
SuppressTokenId = Annotated[
    list[int] | None, typer.Option(help="Never choose this token; may be repeated.", rich_help_panel=FAVOURING)
]
BeginSuppressTokenId = Annotated[
    list[int] | None, typer.Option(help="Do not begin with this token; may be repeated.", rich_help_panel=FAVOURING)
]
BadWord = Annotated[
    list[str] | None, typer.Option(help="Never write this word; may be repeated.", rich_help_panel=FAVOURING)
]
BadWordIds = Annotated[
    list[str] | None,
    typer.Option(
        help="Never write these tokens in a row; may be repeated.", metavar="ID,ID", rich_help_panel=FAVOURING
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        help="Divide logits of tokens in prompt and text by it, or multiply negative ones; 1 is off.",
        rich_help_panel=FAVOURING,
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(help="Taken from the logits of tokens in the new text, -2 to 2; 0 is off.", rich_help_panel=FAVOURING),
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="The same for every time that they stand there; 0 is off.", rich_help_panel=FAVOURING)
]
NoRepeatNgramSize = Annotated[
    int, typer.Option(help="Write no run of this many tokens twice; 0 is off.", rich_help_panel=FAVOURING)
]
GuidanceScale = Annotated[
    float,
    typer.Option(
        help="Weigh the law after the prompt this much against the one after --negative-prompt; 1 is off.",
        rich_help_panel=FAVOURING,
    ),
]
NegativePrompt = Annotated[
    str | None,
    typer.Option(
        help="What --guidance-scale sets the prompt against; without it the prompt's last token.",
        rich_help_panel=FAVOURING,
    ),
]

TypicalP = Annotated[
    float,
    typer.Option(
        help="Sample among the tokens of the most expected surprise that reach this mass; 1 is off.",
        rich_help_panel=FILTERS,
    ),
]
EpsilonCutoff = Annotated[
    float, typer.Option(help="Drop tokens of a smaller probability; 0 is off.", rich_help_panel=FILTERS)
]
EtaCutoff = Annotated[
    float, typer.Option(help="The same, less where the law is spread widely; 0 is off.", rich_help_panel=FILTERS)
]
FilterOrder = Annotated[
    str,
    typer.Option(
        help="transformers: top-k, top-p, min-p; vllm: min-p, top-k, top-p.",
        autocompletion=lambda: ["transformers", "vllm"],
        rich_help_panel=FILTERS,
    ),
]


def read_biases(option: str, words: Sequence[str] | None) -> list[tuple[int, float]]:
    """``ID=VALUE`` each. Raises ValueError naming ``option``."""
    pairs = read_list_biases(option, words, form="ID=VALUE, such as 42=1.5 or 42=-inf")
    several = [tokens for tokens, _ in pairs if len(tokens) > 1]
    if several:
        shown = ",".join(map(str, several[0]))
        raise ValueError(f"{option} {shown}=...: give one token; several in a row go to --sequence-bias")
    return [(tokens[0], value) for tokens, value in pairs]


def read_list_biases(
    option: str, words: Sequence[str] | None, *, form: str = "ID,ID=VALUE, such as 42,7=-2"
) -> list[tuple[list[int], float]]:
    """``ID,ID=VALUE`` each. Raises ValueError naming ``option``."""
    pairs: list[tuple[list[int], float]] = []
    for word in words or ():
        tokens, _, value = word.partition("=")
        try:
            pairs.append(([int(token) for token in tokens.split(",")], float(value)))
        except ValueError as error:
            raise ValueError(f"{option} {word}: give {form}") from error
    return pairs


def read_lists(option: str, words: Sequence[str] | None) -> list[list[int]]:
    """``ID,ID`` each. Raises ValueError naming ``option``."""
    try:
        return [[int(token) for token in word.split(",")] for word in words or ()]
    except ValueError as error:
        raise ValueError(f"{option} {' '.join(words or ())}: give token ids, such as 42,7") from error
