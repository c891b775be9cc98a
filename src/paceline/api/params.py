"""What is asked of one prompt's continuation, under vLLM's names and defaults. Knows nothing of models or decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from paceline.api.structured import StructuredOutputs, read_structured
from paceline.constraints.foreign import rule_of
from paceline.core.sampling import Sampling

MAX_LOGPROBS = 20

# Parameters of vLLM that are not built yet: name -> the only value that is accepted, vLLM's default.
NOT_YET: dict[str, object] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "truncate_prompt_tokens": None,
    "spaces_between_special_tokens": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt is continued, with the names, defaults and meaning of vLLM's ``SamplingParams``.

    How tokens are chosen. Filters apply in this order: temperature, top-k, top-p, min-p.

    - ``temperature`` (1.0): a finite number of at least 0; logits are divided by it. 0 is greedy: the likeliest token,
      and ``top_k``, ``top_p`` and ``min_p`` are ignored.
    - ``top_k`` (0): keep this many of the likeliest tokens; 0 and -1 keep all.
    - ``top_p`` (1.0): above 0 and at most 1; keep the smallest set of likeliest tokens whose probability reaches it.
    - ``min_p`` (0.0): 0 to 1; drop tokens below this share of the likeliest token's probability.
    - ``seed`` (None): 0 to 2**63 - 1, of the noise; equal seeds give equal texts. None and -1: a fresh one every call.
    - ``n`` (1): how many continuations of the prompt, at least 1; more than one needs a temperature above 0.

    When a continuation ends:

    - ``max_tokens`` (16): at most this many tokens, at least 1; None: until the model's context is full.
    - ``min_tokens`` (0): no end-of-text token and none of ``stop_token_ids`` is chosen before this many tokens; at most
      ``max_tokens``.
    - ``stop`` (None): a string or several; the text ends before the first of them that appears in it.
    - ``stop_token_ids`` (None): token ids that end the text, beside the model's own end-of-text tokens.
    - ``ignore_eos`` (False): go on past the model's own end-of-text tokens.

    What only the host can say, asked at every node of a draft:

    - ``structured_outputs`` (None): what the text must look like, a mapping with one of "json" (a schema), "regex",
      "choice" (texts), "grammar" (Lark's or llama.cpp's) and "json_object" (True).
    - ``logits_processors`` (None): objects or functions that change logits, of two arguments as in transformers,
      (input_ids [1, L], scores [1, V]), or of three as in vLLM, (prompt ids, output ids, logits [V]).

    What comes back:

    - ``logprobs`` (None): 0 to 20; log-probabilities of every chosen token and of this many of the likeliest. None: no
      log-probabilities.
    - ``prompt_logprobs`` (None): 0 to 20, the same of the prompt's tokens. None: none.
    - ``detokenize`` (True): give the text beside the token ids. ``stop`` needs it.
    - ``skip_special_tokens`` (True): leave special tokens out of the text.
    - ``include_stop_str_in_output`` (False): leave the stop string in the text.

    Not supported yet, and refused by name unless left at the default: ``presence_penalty`` (0.0),
    ``frequency_penalty`` (0.0), ``repetition_penalty`` (1.0), ``logit_bias`` (None), ``allowed_token_ids`` (None),
    ``bad_words`` (None), ``truncate_prompt_tokens`` (None),
    ``spaces_between_special_tokens`` (True).

    Values are stored in one form: numbers as float or int, ``stop`` and ``stop_token_ids`` as tuples without repeats.
    Raises ValueError for values of a wrong type or outside their range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: object | None = None
    logits_processors: Sequence[object] | None = None
    truncate_prompt_tokens: int | None = None
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in _normalised(given).items():
            object.__setattr__(self, name, value)
        self.sampling(0 if self.seed is None else self.seed)  # refuses what lies outside its ranges
        if self.n > 1 and self.temperature == 0:
            raise ValueError(
                f"n={self.n} with temperature=0: greedy decoding has one text; give n=1, or a temperature above 0"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: lower it or raise max_tokens"
            )
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop={list(self.stop)} with detokenize=False: stop strings are found in the text; leave detokenize "
                "at True, or give stop_token_ids"
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as it is stored."""
        return _strings("stop", self.stop)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """``stop_token_ids`` as they are stored."""
        return _ids("stop_token_ids", self.stop_token_ids)

    def sampling(self, seed: int) -> Sampling:
        """The law of one continuation, with noise of ``seed``, 0 to 2**63 - 1; the caller decides what None means."""
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=seed)

    def to_vllm(self) -> dict[str, object]:
        """The arguments of vLLM's ``SamplingParams``, those that differ from the defaults; tuples become lists."""
        pairs = ((field.name, getattr(self, field.name), getattr(_DEFAULT, field.name)) for field in fields(self))
        differing = {name: value for name, value, default in pairs if value != default}
        if isinstance(self.structured_outputs, StructuredOutputs):
            differing["structured_outputs"] = self.structured_outputs.given
        return {name: list(value) if isinstance(value, tuple) else value for name, value in differing.items()}

    @classmethod
    def from_vllm(cls, mapping: Mapping[str, Any]) -> "SamplingParams":
        """From arguments of vLLM's ``SamplingParams``. Raises ValueError for names that are not known here."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in mapping if name not in known]
        if unknown:
            raise ValueError(f"unknown sampling parameters: {', '.join(map(str, unknown))}; known: {', '.join(known)}")
        return cls(**mapping)


def _normalised(given: Mapping[str, Any]) -> dict[str, object]:
    """The values in the form in which they are stored. Raises ValueError for wrong types and counts."""
    for name, default in NOT_YET.items():
        if given[name] != default:
            raise ValueError(f"{name}={given[name]!r} is not supported yet: leave it at {default!r}")
    reals = {name: _real(name, given[name]) for name in ("temperature", "top_p", "min_p")}
    flags = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
    top_k = _integer("top_k", given["top_k"])
    seed, max_tokens = _optional("seed", given["seed"]), _optional("max_tokens", given["max_tokens"])
    return {
        **NOT_YET,
        **reals,
        **{name: _flag(name, given[name]) for name in flags},
        "top_k": 0 if top_k == -1 else top_k,
        "seed": None if seed == -1 else seed,
        "n": _at_least(1, "n", _integer("n", given["n"]), "at least 1"),
        "stop": _strings("stop", given["stop"]),
        "stop_token_ids": _ids("stop_token_ids", given["stop_token_ids"]),
        "max_tokens": _at_least(1, "max_tokens", max_tokens, "at least 1, or None (until the context is full)"),
        "min_tokens": _at_least(0, "min_tokens", _integer("min_tokens", given["min_tokens"]), "0 or a positive count"),
        "logprobs": _few("logprobs", given["logprobs"]),
        "prompt_logprobs": _few("prompt_logprobs", given["prompt_logprobs"]),
        "structured_outputs": read_structured(given["structured_outputs"]),
        "logits_processors": _processors(given["logits_processors"]),
    }


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r}: give a number")
    return float(value)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give an integer")
    return int(value)


def _optional(name: str, value: object) -> int | None:
    return None if value is None else _integer(name, value)


def _at_least(least: int, name: str, value: int | None, way_out: str) -> int | None:
    if value is not None and value < least:
        raise ValueError(f"{name}={value}: give {way_out}")
    return value


def _few(name: str, value: object) -> int | None:
    count = _optional(name, value)
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise ValueError(f"{name}={count}: give a count from 0 to {MAX_LOGPROBS}, or None (off)")
    return count


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: give True or False")
    return value


def _processors(value: object) -> tuple[object, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence):
        raise ValueError(f"logits_processors={value!r}: give a list of logits processors")
    for index, one in enumerate(value):
        try:
            rule_of(one)
        except ValueError as error:
            raise ValueError(f"logits_processors[{index}]: {error}") from error
    return tuple(value) or None


def _strings(name: str, value: object) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(values, Sequence) or not all(isinstance(one, str) and one for one in values):
        raise ValueError(f"{name}={value!r}: give a string or several, none of them empty")
    return tuple(dict.fromkeys(values))


def _ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{name}={value!r}: give a list of token ids")
    ids = tuple(dict.fromkeys(_integer(name, one) for one in value))
    if any(token < 0 for token in ids):
        raise ValueError(f"{name}={list(ids)}: give token ids of at least 0")
    return ids


_DEFAULT = SamplingParams()
