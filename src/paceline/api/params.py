"""``SamplingParams``: the options of a request, with vLLM's names and defaults and some of transformers' besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from paceline.api import values
from paceline.api.structured import StructuredOutputs, read_processors, read_structured
from paceline.core.sampling import FilterOrder, Sampling

MAX_LOGPROBS = 20
MOST_SAMPLES = 16384  # of one prompt; vLLM's limit
MAX_PENALTY = 2.0  # vLLM's limit
MOST_COUNT = 2**31 - 1  # of top-k and n-grams, which is more than any vocabulary or context has
FILTER_ORDERS = {"transformers": FilterOrder.TRANSFORMERS, "vllm": FilterOrder.VLLM}
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")  # named as in core


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why only the ``default`` of a vLLM parameter is supported."""

    default: object
    reason: str

    def read(self, name: str, value: object) -> object:
        """The default. Raises ValueError for any other value."""
        if value != self.default:
            raise ValueError(f"{name}={value!r} is not supported: {self.reason}; leave it at {self.default!r}")
        return self.default


NOT_YET: dict[str, Refusal] = {
    "truncate_prompt_tokens": Refusal(default=None, reason="prompts are not truncated; give the tokens to keep"),
    "spaces_between_special_tokens": Refusal(
        default=True, reason="the tokenizer decides how special tokens are spaced"
    ),
}

NOT_IN_VLLM = (
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "no_repeat_ngram_size",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "sequence_bias",
    "guidance_scale",
    "negative_prompt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling options of a prompt, with the names, defaults and meanings of vLLM's ``SamplingParams``.

    Options that vLLM lacks have the names and meanings of transformers.

    How tokens are chosen. Logits processors run first, in the order of this list, then the filters below:

    - ``guidance_scale`` (1.0): classifier-free guidance, a finite number s. Log-probabilities l become s (l - m) + m,
      where m are those of the same output after ``negative_prompt`` (2306.17806). Needs ``Engine``'s ``guidance``.
    - ``negative_prompt`` (None): a text or token ids; None is the last token of the prompt. It takes the place of what
      an encoder reads, where there is one, before the same output; None is an empty source, for encoders that read one.
    - ``logit_bias`` (None): token id to a number that is added to its logit, finite or -inf (never chosen). Unlike in
      vLLM's server, biases are not clamped to -100 and 100.
    - ``sequence_bias`` (None): [[token ids, bias], ...]; the bias is added to the logit of a sequence's last token
      wherever the other tokens precede it.
    - ``suppress_tokens`` (None): token ids that are never chosen.
    - ``bad_words_ids`` (None): sequences of token ids that are never completed.
    - ``bad_words`` (None): words that are never completed, tokenized with and without a leading space.
    - ``allowed_token_ids`` (None): the only token ids that may be chosen, at least one.
    - ``repetition_penalty`` (1.0): above 0; divides positive logits of tokens in the prompt or the output, and
      multiplies negative ones.
    - ``frequency_penalty`` (0.0), ``presence_penalty`` (0.0): -2 to 2; subtracted from a token's logit once per
      occurrence in the output, and once if it occurs in the output.
    - ``no_repeat_ngram_size`` (0): no n-gram of this size occurs twice in prompt and output.
    - ``begin_suppress_tokens`` (None): token ids that are never the first of the output.

    If these leave no token, token 0 is chosen. Filters run in this order: temperature, top-k, top-p, min-p, typical-p,
    epsilon, eta.

    - ``temperature`` (1.0): a finite number of at least 0 that divides the logits. 0 is greedy: the most probable
      token is chosen, and the filters are ignored.
    - ``top_k`` (0): keep this many of the most probable tokens; 0 and -1 keep all.
    - ``top_p`` (1.0): above 0 and at most 1; keep the smallest set of most probable tokens whose probability reaches
      it.
    - ``min_p`` (0.0): 0 to 1; drop tokens below this share of the most probable token's probability.
    - ``typical_p`` (1.0): above 0 and at most 1; keep the smallest set of tokens whose surprisal is closest to the
      entropy and whose probability reaches it.
    - ``epsilon_cutoff`` (0.0), ``eta_cutoff`` (0.0): 0 to below 1; drop tokens of a lower probability. The threshold
      of eta is lower where the entropy is high.
    - ``filter_order`` ("transformers"): as above; "vllm": min-p before top-k and top-p, as in vLLM.
    - ``seed`` (None): 0 to 2**63 - 1, the seed of the noise; equal seeds give equal outputs. None and -1: a new seed
      for every call.
    - ``n`` (1): the number of outputs per prompt, at least 1; at temperature 0 they are equal.

    When the output ends:

    - ``max_tokens`` (16): at most this many tokens, at least 1; None: until the model's context is full.
    - ``min_tokens`` (0): end-of-text tokens and ``stop_token_ids`` are banned before this many tokens; at most
      ``max_tokens``.
    - ``stop`` (None): a string or several; the output ends before the first of them.
    - ``stop_token_ids`` (None): token ids that end the output, beside the model's own end-of-text tokens.
    - ``ignore_eos`` (False): do not stop at the model's own end-of-text tokens.

    Constraints that run on the host, at every node of a draft:

    - ``structured_outputs`` (None): the format of the output, a mapping with one of "json" (a schema), "regex",
      "choice" (texts), "grammar" (Lark's or llama.cpp's) and "json_object" (True).
    - ``logits_processors`` (None): objects or functions that change logits, with two arguments as in transformers,
      (input_ids [1, L], scores [1, V]), or with three as in vLLM, (prompt ids, output ids, logits [V]).

    What is returned:

    - ``logprobs`` (None): 0 to 20; log-probabilities of every chosen token and of this many most probable ones. None:
      no log-probabilities.
    - ``prompt_logprobs`` (None): 0 to 20, the same for the prompt's tokens. None: none.
    - ``detokenize`` (True): return the text beside the token ids. ``stop`` needs it.
    - ``skip_special_tokens`` (True): leave special tokens out of the text.
    - ``include_stop_str_in_output`` (False): keep the stop string in the text.

    Refused unless left at the default: ``truncate_prompt_tokens`` (None), ``spaces_between_special_tokens`` (True).

    Values are stored in one form: numbers as float or int, lists and mappings as tuples without repeats.
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
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: object | None = None
    logits_processors: Sequence[object] | None = None
    truncate_prompt_tokens: int | None = None
    spaces_between_special_tokens: bool = True
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] | None = None
    filter_order: str = "transformers"
    guidance_scale: float = 1.0
    negative_prompt: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, read in READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))
        self.sampling(0 if self.seed is None else self.seed)  # raises for values outside their ranges
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: lower it or raise max_tokens"
            )
        if self.negative_prompt is not None and self.guidance_scale == 1:
            raise ValueError(
                f"negative_prompt={self.negative_prompt!r} with guidance_scale=1: give a guidance_scale other than 1, "
                "or leave negative_prompt out"
            )
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop={list(self.stop)} with detokenize=False: stop strings are found in the text; leave detokenize "
                "at True, or give stop_token_ids"
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` in its stored form."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """``stop_token_ids`` in their stored form."""
        return cast("tuple[int, ...]", self.stop_token_ids)

    def sampling(self, seed: int) -> Sampling:
        """The sampling options of one output with noise of ``seed``, 0 to 2**63 - 1; the caller replaces None."""
        filters: dict[str, Any] = {name: getattr(self, name) for name in FILTERS}
        return Sampling(**filters, order=FILTER_ORDERS[self.filter_order], seed=seed)

    def differing(self) -> dict[str, object]:
        """The values that differ from the defaults, by name, in the types of JSON: lists instead of tuples."""
        pairs = ((field.name, getattr(self, field.name), getattr(_DEFAULT, field.name)) for field in fields(self))
        differing = {name: _listed(value) for name, value, default in pairs if value != default}
        if self.logit_bias:
            differing["logit_bias"] = dict(cast(values.Biases, self.logit_bias))
        if isinstance(self.structured_outputs, StructuredOutputs):
            differing["structured_outputs"] = self.structured_outputs.given
        return differing

    def to_vllm(self) -> dict[str, object]:
        """Arguments of vLLM's ``SamplingParams``: the values of ``differing``.

        Raises ValueError for options that vLLM lacks, and for ``filter_order`` where it is not vLLM's and matters.
        """
        differing = self.differing()
        lacking = [f"{name}={value!r}" for name, value in differing.items() if name in NOT_IN_VLLM]
        if self.filter_order != "vllm" and _depends_on_order(differing):
            lacking.append(f"filter_order={self.filter_order!r}")
        if lacking:
            raise ValueError(f"vLLM has no {', '.join(lacking)}: leave them at their defaults")
        return {name: value for name, value in differing.items() if name != "filter_order"}

    @classmethod
    def from_vllm(cls, mapping: Mapping[str, Any]) -> "SamplingParams":
        """From arguments of vLLM's ``SamplingParams``, with vLLM's filter order where it matters.

        Raises ValueError for unknown names.
        """
        order = {"filter_order": "vllm"} if _depends_on_order(mapping) else {}
        return cls().updated({**order, **mapping})

    def updated(self, mapping: Mapping[str, Any]) -> "SamplingParams":
        """A copy with the values in ``mapping``. Raises ValueError for unknown names."""
        known = [field.name for field in fields(self)]
        unknown = [name for name in mapping if name not in known]
        if unknown:
            raise ValueError(f"unknown sampling parameters: {', '.join(map(str, unknown))}; known: {', '.join(known)}")
        return replace(self, **mapping)


def _depends_on_order(given: Mapping[str, Any]) -> bool:
    """Whether top-p keeps other tokens if min-p runs first."""
    return bool(given.get("min_p", 0)) and given.get("top_p", 1) != 1 and given.get("temperature", 1) != 0


def _listed(value: object) -> object:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def _off(off: int, stored: int | None, *, most: float = values.INF, optional: bool = False) -> values.Reader:
    """A reader of integers up to ``most`` in which ``off`` is stored as ``stored``."""

    def read(name: str, value: object) -> object:
        found = values.integer(name, value, optional=optional)
        if found is not None and found > most:
            raise ValueError(f"{name}={found}: give at most {most}")
        return stored if found == off else found

    return read


_penalty = values.number(
    lambda value: abs(value) <= MAX_PENALTY, f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g} (0 is off)"
)
_logprobs = values.count(0, f"a count from 0 to {MAX_LOGPROBS}, or None (off)", most=MAX_LOGPROBS, optional=True)

# How each parameter is read. ``Sampling`` checks the ranges of the filters.
READERS: dict[str, values.Reader] = {
    **{name: refusal.read for name, refusal in NOT_YET.items()},
    **dict.fromkeys(FILTERS, values.real),
    "temperature": values.number(
        lambda value: value == 0 or 1 / values.LARGEST <= value < values.INF,
        f"a finite number of at least 0 (0 is greedy), others from {1 / values.LARGEST:g}",
    ),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _penalty),
    **dict.fromkeys(("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"), values.flag),
    **dict.fromkeys(("stop_token_ids", "suppress_tokens", "begin_suppress_tokens"), values.ids),
    **dict.fromkeys(("stop", "bad_words"), values.strings),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), _logprobs),
    "top_k": _off(-1, 0, most=MOST_COUNT),
    "seed": _off(-1, None, optional=True),
    "n": values.count(1, f"from 1 to {MOST_SAMPLES}", most=MOST_SAMPLES),
    "max_tokens": values.count(1, "at least 1, or None (until the context is full)", optional=True),
    "min_tokens": values.count(0, "0 or a positive count"),
    "repetition_penalty": values.number(
        lambda value: 1 / values.LARGEST <= value <= values.LARGEST,
        f"a finite number above 0, from {1 / values.LARGEST:g} to {values.LARGEST:g} (1 is off)",
    ),
    "no_repeat_ngram_size": values.count(0, f"0 (off) or a length of at most {MOST_COUNT}", most=MOST_COUNT),
    "logit_bias": values.biases,
    "sequence_bias": values.list_biases,
    "bad_words_ids": values.token_lists,
    "allowed_token_ids": values.some_ids,
    "guidance_scale": values.number(
        lambda value: abs(value) <= values.LARGEST,
        f"a finite number (1 is off), from -{values.LARGEST:g} to {values.LARGEST:g}",
    ),
    "negative_prompt": values.text_or_ids,
    "filter_order": values.word(*FILTER_ORDERS),
    "structured_outputs": read_structured,
    "logits_processors": read_processors,
}
_DEFAULT = SamplingParams()
