"""The sampling options of ``paceline generate``, and how they are written on a command line. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import BIASES, FILTERS, OUTPUT, SAMPLING, STOPPING, completing

Temperature = Annotated[float, Parameter(help="0 is greedy decoding.", group=SAMPLING)]
TopK = Annotated[int, Parameter(help="Sample from the k most likely tokens; 0 is off.", group=SAMPLING)]
TopP = Annotated[
    float, Parameter(help="Sample from the most likely tokens that reach this probability; 1 is off.", group=SAMPLING)
]
MinP = Annotated[
    float,
    Parameter(help="Drop tokens below this fraction of the most likely token's probability; 0 is off.", group=SAMPLING),
]
Seed = Annotated[int, Parameter(help="The same seed gives the same output; -1 takes a fresh seed.", group=SAMPLING)]
MaxTokens = Annotated[int, Parameter(help="Maximum number of new tokens.", group=STOPPING)]
IgnoreEos = Annotated[bool, Parameter(help="Continue past the model's end-of-text tokens.", group=STOPPING)]

STRUCTURE = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "choice": "choice"}


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Every field is one of ``SamplingParams``, except those of STRUCTURE, which give ``structured_outputs``."""

    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    seed: Seed = 0
    n: Annotated[int, Parameter(alias="-n")] = 1
    """Samples per prompt; all equal at temperature 0."""
    json_schema: Path | None = None
    """File with a JSON schema that the output must follow."""
    regex: str | None = None
    """Regular expression that the whole output must match."""
    grammar: Path | None = None
    """File with a grammar (Lark or llama.cpp) that the output must follow."""
    choice: tuple[str, ...] = ()
    """The output is one of the choices; may be repeated."""

    logit_bias: Annotated[tuple[str, ...], Parameter(metavar="ID=VALUE", group=BIASES)] = ()
    """Add to a token's logit, such as 42=1.5 or 42=-inf; may be repeated."""
    sequence_bias: Annotated[tuple[str, ...], Parameter(metavar="ID,ID=VALUE", group=BIASES)] = ()
    """The same for the last token of a sequence, such as 42,7=-2; may be repeated."""
    allowed_token_ids: Annotated[tuple[int, ...], Parameter(name="--allowed-token-id", group=BIASES)] = ()
    """Sample only from these tokens; may be repeated."""
    suppress_tokens: Annotated[tuple[int, ...], Parameter(name="--suppress-token-id", group=BIASES)] = ()
    """Never generate this token; may be repeated."""
    begin_suppress_tokens: Annotated[tuple[int, ...], Parameter(name="--begin-suppress-token-id", group=BIASES)] = ()
    """Do not begin with this token; may be repeated."""
    bad_words: Annotated[tuple[str, ...], Parameter(name="--bad-word", group=BIASES)] = ()
    """Never generate this word; may be repeated."""
    bad_words_ids: Annotated[tuple[str, ...], Parameter(name="--bad-word-ids", metavar="ID,ID", group=BIASES)] = ()
    """Never generate this token sequence; may be repeated."""
    repetition_penalty: Annotated[float, Parameter(group=BIASES)] = 1.0
    """Divide the logits of tokens in prompt and output by it where positive, multiply where negative; 1 is off."""
    presence_penalty: Annotated[float, Parameter(group=BIASES)] = 0.0
    """Subtract from the logits of tokens that occur in the output, -2 to 2; 0 is off."""
    frequency_penalty: Annotated[float, Parameter(group=BIASES)] = 0.0
    """The same for every occurrence; 0 is off."""
    no_repeat_ngram_size: Annotated[int, Parameter(group=BIASES)] = 0
    """Generate no n-gram of this length twice; 0 is off."""
    guidance_scale: Annotated[float, Parameter(group=BIASES)] = 1.0
    """Weight of the prompt's distribution against that of --negative-prompt; 1 is off."""
    negative_prompt: Annotated[str | None, Parameter(group=BIASES)] = None
    """What --guidance-scale steers away from; the prompt's last token by default."""

    typical_p: Annotated[float, Parameter(group=FILTERS)] = 1.0
    """Sample from the locally typical tokens that reach this probability; 1 is off."""
    epsilon_cutoff: Annotated[float, Parameter(group=FILTERS)] = 0.0
    """Drop tokens of a smaller probability; 0 is off."""
    eta_cutoff: Annotated[float, Parameter(group=FILTERS)] = 0.0
    """The same with a cutoff that falls with the entropy; 0 is off."""
    filter_order: Annotated[str, Parameter(group=FILTERS), completing(("transformers", "vllm"))] = "transformers"
    """transformers: top-k, top-p, min-p; vllm: min-p, top-k, top-p."""

    max_tokens: MaxTokens = 128
    min_tokens: Annotated[int, Parameter(group=STOPPING)] = 0
    """No end-of-text or stop token before this many tokens."""
    stop: Annotated[tuple[str, ...], Parameter(group=STOPPING)] = ()
    """Stop before this string; may be repeated."""
    stop_token_ids: Annotated[tuple[int, ...], Parameter(name="--stop-token-id", group=STOPPING)] = ()
    """Stop at this token; may be repeated."""
    ignore_eos: IgnoreEos = False
    include_stop_str_in_output: Annotated[bool, Parameter(name="--include-stop", group=STOPPING)] = False
    """Keep the stop string in the output."""

    skip_special_tokens: Annotated[bool, Parameter(name="--skip-special", negative="--keep-special", group=OUTPUT)] = (
        True
    )
    """Leave special tokens out of the text, or keep them."""
    logprobs: Annotated[int | None, Parameter(group=OUTPUT)] = None
    """With --json or --prompt-file: log-probabilities of every token and of this many of the most likely ones."""

    def params(self) -> dict[str, object]:
        """The values by their names in ``SamplingParams``. Raises ValueError naming an option that cannot be read."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        structured = _structured({name: given.pop(name) for name in STRUCTURE})
        given["logit_bias"] = _read_biases(self.logit_bias)
        given["sequence_bias"] = _read_pairs("--sequence-bias", self.sequence_bias, "ID,ID=VALUE, such as 42,7=-2")
        given["bad_words_ids"] = _read_ids(self.bad_words_ids)
        given = {
            name: list(value) or None if isinstance(value, tuple | list) else value for name, value in given.items()
        }
        return {**given, "structured_outputs": structured}


def _structured(options: dict[str, object]) -> dict[str, object] | None:
    """The option given, files read. Raises ValueError for several, and for a file that cannot be read."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if len(given) > 1:
        raise ValueError(f"{' and '.join(map(_flag, given))}: give one of them")
    for name, value in given.items():
        if isinstance(value, tuple):
            return {STRUCTURE[name]: list(value)}
        return {STRUCTURE[name]: _read_text(_flag(name), value) if isinstance(value, Path) else value}
    return None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_text(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {path}: cannot be read as text ({error})") from error


def _read_biases(words: Sequence[str]) -> list[tuple[int, float]]:
    pairs = _read_pairs("--logit-bias", words, "ID=VALUE, such as 42=1.5 or 42=-inf")
    for tokens, _ in pairs:
        if len(tokens) > 1:
            shown = ",".join(map(str, tokens))
            raise ValueError(f"--logit-bias {shown}=...: give one token; use --sequence-bias for several")
    return [(tokens[0], value) for tokens, value in pairs]


def _read_pairs(option: str, words: Sequence[str], form: str) -> list[tuple[list[int], float]]:
    pairs: list[tuple[list[int], float]] = []
    for word in words:
        tokens, _, value = word.partition("=")
        try:
            pairs.append(([int(token) for token in tokens.split(",")], float(value)))
        except ValueError as error:
            raise ValueError(f"{option} {word}: give {form}") from error
    return pairs


def _read_ids(words: Sequence[str]) -> list[list[int]]:
    try:
        return [[int(token) for token in word.split(",")] for word in words]
    except ValueError as error:
        raise ValueError(f"--bad-word-ids {' '.join(words)}: give token ids, such as 42,7") from error
