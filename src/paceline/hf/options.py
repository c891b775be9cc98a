"""Every option of ``SamplingParams``: what it is called elsewhere, where it works, and what keeps it. Data alone.

What is refused is not repeated here: it is what ``params.NOT_YET`` and ``generation_fields.REFUSED`` refuse by.
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.api.generation_fields import REFUSED, Refusal
from paceline.api.params import NOT_YET
from paceline.hf.inputs import ARGUMENTS
from paceline.verifiers import VERIFIERS


class Place(StrEnum):
    """Where an option does its work."""

    STEP = "step"  # on the device, in the step; on a CPU by the kernel where there is one
    LANE = "lane"  # on the host, while a step runs
    HOST = "host"  # on the host, between steps
    PROMPT = "prompt"  # on the device, before the first step


class Keeping(StrEnum):
    """Which verifiers keep an option's promise, for drafted texts as for plain ones."""

    EVERY = "every"
    LOSSLESS = "lossless"
    SAME_TOKENS = "same tokens"

    @property
    def verifiers(self) -> tuple[str, ...]:
        """Their names, of all that are installed with Paceline."""
        classes = {name: VERIFIERS.find(name) for name in VERIFIERS.builtin}
        if self is Keeping.LOSSLESS:
            return tuple(name for name, verifier in classes.items() if verifier.lossless)
        if self is Keeping.SAME_TOKENS:
            return tuple(name for name, verifier in classes.items() if verifier.same_tokens)
        return tuple(classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One parameter; plain decoding, chains and trees have all that are not refused.

    ``flags`` of ``paceline generate``; ``field`` is what transformers' ``generate`` takes, None where there is none.
    ``drafts``: whether a draft model draws from its own law under the option too, so that its drafts fit.
    """

    name: str
    flags: tuple[str, ...] = ()
    field: str | None = None
    place: Place = Place.STEP
    drafts: bool = True
    keeping: Keeping = Keeping.LOSSLESS

    @property
    def refusal(self) -> str | None:
        """Why it has its default alone; None: it is honoured."""
        return NOT_YET[self.name].reason if self.name in NOT_YET else None


def _same(name: str, *, keeping: Keeping = Keeping.LOSSLESS) -> Option:
    """An option of the law that has one name everywhere."""
    return Option(name=name, flags=(f"--{name.replace('_', '-')}",), field=name, keeping=keeping)


def _host(name: str, *, flags: tuple[str, ...] = (), field: str | None = None, place: Place = Place.HOST) -> Option:
    """An option that changes no law."""
    return Option(name=name, flags=flags, field=field, place=place, drafts=False, keeping=Keeping.EVERY)


OPTIONS: tuple[Option, ...] = (
    _same("guidance_scale"),
    Option(name="negative_prompt", flags=("--negative-prompt",), field="negative_prompt_ids"),
    Option(name="logit_bias", flags=("--logit-bias",)),
    _same("sequence_bias"),
    Option(name="suppress_tokens", flags=("--suppress-token-id",), field="suppress_tokens", keeping=Keeping.EVERY),
    Option(name="bad_words_ids", flags=("--bad-word-ids",), field="bad_words_ids", keeping=Keeping.EVERY),
    Option(name="bad_words", flags=("--bad-word",), keeping=Keeping.EVERY),
    Option(name="allowed_token_ids", flags=("--allowed-token-id",), keeping=Keeping.EVERY),
    _same("repetition_penalty"),
    Option(name="frequency_penalty", flags=("--frequency-penalty",)),
    Option(name="presence_penalty", flags=("--presence-penalty",)),
    _same("no_repeat_ngram_size", keeping=Keeping.EVERY),
    Option(
        name="begin_suppress_tokens",
        flags=("--begin-suppress-token-id",),
        field="begin_suppress_tokens",
        keeping=Keeping.EVERY,
    ),
    Option(name="min_tokens", flags=("--min-tokens",), field="min_new_tokens", keeping=Keeping.EVERY),
    _same("temperature"),
    _same("top_k"),
    _same("top_p"),
    _same("min_p"),
    _same("typical_p"),
    _same("epsilon_cutoff"),
    _same("eta_cutoff"),
    Option(name="filter_order", flags=("--filter-order",)),
    Option(name="seed", flags=("--seed",), keeping=Keeping.SAME_TOKENS),
    Option(
        name="structured_outputs",
        flags=("--json-schema", "--regex", "--grammar", "--choice"),
        place=Place.LANE,
        drafts=False,
        keeping=Keeping.EVERY,
    ),
    Option(name="logits_processors", field="logits_processor", place=Place.LANE, drafts=False),
    _host("n", flags=("--n",), field="num_return_sequences"),
    _host("max_tokens", flags=("--max-tokens",), field="max_new_tokens", place=Place.STEP),
    _host("stop_token_ids", flags=("--stop-token-id",), field="eos_token_id", place=Place.STEP),
    _host("ignore_eos", flags=("--ignore-eos",), place=Place.STEP),
    _host("stop", flags=("--stop",), field="stop_strings"),
    _host("include_stop_str_in_output", flags=("--include-stop",)),
    _host("logprobs", flags=("--logprobs",), place=Place.STEP),
    _host("prompt_logprobs", place=Place.PROMPT),
    _host("detokenize"),
    _host("skip_special_tokens", flags=("--skip-special",)),
    _host("truncate_prompt_tokens"),
    _host("spaces_between_special_tokens"),
)


DROP_IN: dict[str, Refusal] = {**REFUSED, **ARGUMENTS}  # fields and arguments of transformers' ``generate``
