"""What is asked of one prompt's continuation, under vLLM's names and defaults. Knows nothing of models or decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from paceline.api import values
from paceline.api.structured import StructuredOutputs, read_processors, read_structured
from paceline.core.sampling import FilterOrder, Sampling

MAX_LOGPROBS = 20
MAX_PENALTY = 2.0  # of vLLM
FILTER_ORDERS = {"transformers": FilterOrder.TRANSFORMERS, "vllm": FilterOrder.VLLM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a parameter of vLLM has one value only, its ``default``."""

    default: object
    reason: str


NOT_YET: dict[str, Refusal] = {
    "truncate_prompt_tokens": Refusal(default=None, reason="no prompt is cut; give the tokens that are wanted"),
    "spaces_between_special_tokens": Refusal(default=True, reason="the tokenizer spells special tokens as it does"),
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

# Names of one kind.
REALS = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
PENALTIES = ("presence_penalty", "frequency_penalty")
FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
IDS = ("stop_token_ids", "suppress_tokens", "begin_suppress_tokens")
STRINGS = ("stop", "bad_words")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt is continued, with the names, defaults and meaning of vLLM's ``SamplingParams``.

    How tokens are chosen. What has a name of transformers means what it means there. First logits are changed, in the
    order of this list; then the filters below apply to them.

    - ``guidance_scale`` (1.0): a finite number s; log-probabilities l become s (l - m) + m, with m those of the same
      text after ``negative_prompt`` (2306.17806). Takes a second row (``Engine``'s ``guidance``).
    - ``negative_prompt`` (None): a text or token ids; None is the last token of the prompt.
    - ``logit_bias`` (None): token id to a number that is added to its logit, finite or -inf (never chosen). Unlike in
      vLLM's server, numbers are not clamped to -100 and 100.
    - ``sequence_bias`` (None): the same for the last token of a sequence, [[token ids, bias], ...], wherever the
      others stand right before it.
    - ``suppress_tokens`` (None): token ids that are never chosen.
    - ``bad_words_ids`` (None): sequences of token ids that are never completed.
    - ``bad_words`` (None): words that are never completed, as tokenized with a space before and without.
    - ``allowed_token_ids`` (None): the only token ids that may be chosen, at least one.
    - ``repetition_penalty`` (1.0): above 0; logits of tokens in the prompt or the text are divided by it where positive
      and multiplied where not.
    - ``frequency_penalty`` (0.0), ``presence_penalty`` (0.0): -2 to 2; taken from a token's logit for every time that
      it stands in the new text, and once if it does.
    - ``no_repeat_ngram_size`` (0): no run of this many tokens comes twice in prompt and text.
    - ``begin_suppress_tokens`` (None): token ids that are not the first of the new text.

    Where these leave no token, token 0 is chosen. Filters apply in this order: temperature, top-k, top-p, min-p,
    typical-p, epsilon, eta.

    - ``temperature`` (1.0): a finite number of at least 0; logits are divided by it. 0 is greedy: the likeliest token,
      and the filters are ignored.
    - ``top_k`` (0): keep this many of the likeliest tokens; 0 and -1 keep all.
    - ``top_p`` (1.0): above 0 and at most 1; keep the smallest set of likeliest tokens whose probability reaches it.
    - ``min_p`` (0.0): 0 to 1; drop tokens below this share of the likeliest token's probability.
    - ``typical_p`` (1.0): above 0 and at most 1; keep the smallest set of tokens whose surprise is nearest to the
      expected one and whose probability reaches it.
    - ``epsilon_cutoff`` (0.0), ``eta_cutoff`` (0.0): 0 to below 1; drop tokens of a smaller probability, the latter
      less where the distribution is spread widely.
    - ``filter_order`` ("transformers"): as above; "vllm": min-p before top-k and top-p, as vLLM has it.
    - ``seed`` (None): 0 to 2**63 - 1, of the noise; equal seeds give equal texts. None and -1: a fresh one every call.
    - ``n`` (1): how many continuations of the prompt, at least 1; at temperature 0 they are equal.

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

    Not supported, and refused by name unless left at the default: ``truncate_prompt_tokens`` (None),
    ``spaces_between_special_tokens`` (True).

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
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in _normalised(given).items():
            object.__setattr__(self, name, value)
        self.sampling(0 if self.seed is None else self.seed)  # refuses what lies outside its ranges
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
        """``stop`` as it is stored."""
        return values.strings("stop", self.stop)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """``stop_token_ids`` as they are stored."""
        return values.ids("stop_token_ids", self.stop_token_ids)

    def sampling(self, seed: int) -> Sampling:
        """The distribution of one continuation, with noise of ``seed``, 0 to 2**63 - 1; the caller decides what None
        means.
        """
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            epsilon_cutoff=self.epsilon_cutoff,
            eta_cutoff=self.eta_cutoff,
            order=FILTER_ORDERS[self.filter_order],
            seed=seed,
        )

    def differing(self) -> dict[str, object]:
        """The values that differ from the defaults, by name, as JSON has them: lists for tuples."""
        pairs = ((field.name, getattr(self, field.name), getattr(_DEFAULT, field.name)) for field in fields(self))
        differing = {name: _listed(value) for name, value, default in pairs if value != default}
        if self.logit_bias:
            differing["logit_bias"] = dict(values.biases("logit_bias", self.logit_bias))
        if isinstance(self.structured_outputs, StructuredOutputs):
            differing["structured_outputs"] = self.structured_outputs.given
        return differing

    def to_vllm(self) -> dict[str, object]:
        """The arguments of vLLM's ``SamplingParams``, those that differ from the defaults; tuples become lists.

        Raises ValueError naming what vLLM does not have, and ``filter_order`` where the distribution depends on it and
        is not vLLM's."""
        differing = self.differing()
        lacking = [f"{name}={value!r}" for name, value in differing.items() if name in NOT_IN_VLLM]
        if self.filter_order != "vllm" and _is_order_felt(differing):
            lacking.append(f"filter_order={self.filter_order!r}")
        if lacking:
            raise ValueError(f"vLLM has no {', '.join(lacking)}: leave them at their defaults")
        return {name: value for name, value in differing.items() if name != "filter_order"}

    @classmethod
    def from_vllm(cls, mapping: Mapping[str, Any]) -> "SamplingParams":
        """From arguments of vLLM's ``SamplingParams``, whose filters apply in vLLM's order where that matters.

        Raises ValueError for names that are not known here.
        """
        order = {"filter_order": "vllm"} if _is_order_felt(mapping) else {}
        return cls().updated({**order, **mapping})

    def updated(self, mapping: Mapping[str, Any]) -> "SamplingParams":
        """With other values for the names in ``mapping``. Raises ValueError for names that are not known here."""
        known = [field.name for field in fields(self)]
        unknown = [name for name in mapping if name not in known]
        if unknown:
            raise ValueError(f"unknown sampling parameters: {', '.join(map(str, unknown))}; known: {', '.join(known)}")
        return replace(self, **mapping)


def _is_order_felt(given: Mapping[str, Any]) -> bool:
    """Whether top-p reaches its mass with other tokens where min-p comes first."""
    return bool(given.get("min_p", 0)) and given.get("top_p", 1) != 1 and given.get("temperature", 1) != 0


def _listed(value: object) -> object:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def _normalised(given: Mapping[str, Any]) -> dict[str, object]:
    """The values in the form in which they are stored. Raises ValueError for wrong types and counts."""
    for name, refusal in NOT_YET.items():
        if given[name] != refusal.default:
            raise ValueError(
                f"{name}={given[name]!r} is not supported: {refusal.reason}; leave it at {refusal.default!r}"
            )
    top_k = values.integer("top_k", given["top_k"])
    seed, max_tokens = values.optional("seed", given["seed"]), values.optional("max_tokens", given["max_tokens"])
    min_tokens = values.integer("min_tokens", given["min_tokens"])
    ngram = values.integer("no_repeat_ngram_size", given["no_repeat_ngram_size"])
    return {
        **{name: refusal.default for name, refusal in NOT_YET.items()},
        **{name: values.real(name, given[name]) for name in REALS},
        **{name: values.between(-MAX_PENALTY, MAX_PENALTY, name, given[name]) for name in PENALTIES},
        **{name: values.flag(name, given[name]) for name in FLAGS},
        **{name: values.ids(name, given[name]) for name in IDS},
        **{name: values.strings(name, given[name]) for name in STRINGS},
        **{name: values.at_most(MAX_LOGPROBS, name, given[name]) for name in ("logprobs", "prompt_logprobs")},
        "top_k": 0 if top_k == -1 else top_k,
        "seed": None if seed == -1 else seed,
        "n": values.at_least(1, "n", values.integer("n", given["n"]), "at least 1"),
        "max_tokens": values.at_least(1, "max_tokens", max_tokens, "at least 1, or None (until the context is full)"),
        "min_tokens": values.at_least(0, "min_tokens", min_tokens, "0 or a positive count"),
        "repetition_penalty": values.factor("repetition_penalty", given["repetition_penalty"]),
        "no_repeat_ngram_size": values.at_least(0, "no_repeat_ngram_size", ngram, "0 (off) or a positive length"),
        "logit_bias": values.biases("logit_bias", given["logit_bias"]),
        "sequence_bias": values.list_biases("sequence_bias", given["sequence_bias"]),
        "bad_words_ids": values.token_lists("bad_words_ids", given["bad_words_ids"]),
        "allowed_token_ids": values.some_ids("allowed_token_ids", given["allowed_token_ids"]),
        "guidance_scale": values.finite("guidance_scale", given["guidance_scale"]),
        "negative_prompt": values.text_or_ids("negative_prompt", given["negative_prompt"]),
        "filter_order": values.word("filter_order", given["filter_order"], tuple(FILTER_ORDERS)),
        "structured_outputs": read_structured(given["structured_outputs"]),
        "logits_processors": read_processors(given["logits_processors"]),
    }


_DEFAULT = SamplingParams()
