"""Every option of ``SamplingParams``: what it is called elsewhere, where it works, and what keeps it. Data alone.

What is refused is not repeated here: it is what ``params.NOT_YET`` and ``generation_fields.REFUSED`` refuse by.
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.api.generation_fields import REFUSED, Refusal
from paceline.api.hf_inputs import ARGUMENTS
from paceline.api.params import NOT_YET
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

    ``flag`` of ``paceline generate`` and ``field`` of transformers' ``GenerationConfig``: None where there is none.
    ``drafts``: whether a draft model draws from its own law under the option too, so that its drafts fit.
    """

    name: str
    flag: str | None = None
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
    return Option(name=name, flag=f"--{name.replace('_', '-')}", field=name, keeping=keeping)


def _host(name: str, *, flag: str | None = None, field: str | None = None, place: Place = Place.HOST) -> Option:
    """An option that changes no law."""
    return Option(name=name, flag=flag, field=field, place=place, drafts=False, keeping=Keeping.EVERY)


OPTIONS: tuple[Option, ...] = (
    Option(name="guidance_scale", flag="--guidance-scale", field="guidance_scale", drafts=False),
    Option(name="negative_prompt", flag="--negative-prompt", drafts=False),
    Option(name="logit_bias", flag="--logit-bias"),
    _same("sequence_bias"),
    Option(name="suppress_tokens", flag="--suppress-token-id", field="suppress_tokens", keeping=Keeping.EVERY),
    Option(name="bad_words_ids", flag="--bad-word-ids", field="bad_words_ids", keeping=Keeping.EVERY),
    Option(name="bad_words", flag="--bad-word", keeping=Keeping.EVERY),
    Option(name="allowed_token_ids", flag="--allowed-token-id", keeping=Keeping.EVERY),
    _same("repetition_penalty"),
    Option(name="frequency_penalty", flag="--frequency-penalty"),
    Option(name="presence_penalty", flag="--presence-penalty"),
    _same("no_repeat_ngram_size", keeping=Keeping.EVERY),
    Option(
        name="begin_suppress_tokens",
        flag="--begin-suppress-token-id",
        field="begin_suppress_tokens",
        keeping=Keeping.EVERY,
    ),
    Option(name="min_tokens", flag="--min-tokens", field="min_new_tokens", keeping=Keeping.EVERY),
    _same("temperature"),
    _same("top_k"),
    _same("top_p"),
    _same("min_p"),
    _same("typical_p"),
    _same("epsilon_cutoff"),
    _same("eta_cutoff"),
    Option(name="filter_order", flag="--filter-order"),
    Option(name="seed", flag="--seed", keeping=Keeping.SAME_TOKENS),
    Option(name="structured_outputs", flag="--json-schema", place=Place.LANE, drafts=False, keeping=Keeping.EVERY),
    Option(name="logits_processors", place=Place.LANE, drafts=False),
    _host("n", flag="--n", field="num_return_sequences"),
    _host("max_tokens", flag="--max-tokens", field="max_new_tokens", place=Place.STEP),
    _host("stop_token_ids", flag="--stop-token-id", field="eos_token_id", place=Place.STEP),
    _host("ignore_eos", flag="--ignore-eos", place=Place.STEP),
    _host("stop", flag="--stop", field="stop_strings"),
    _host("include_stop_str_in_output", flag="--include-stop"),
    _host("logprobs", flag="--logprobs", place=Place.STEP),
    _host("prompt_logprobs", place=Place.PROMPT),
    _host("detokenize"),
    _host("skip_special_tokens", flag="--skip-special"),
    _host("truncate_prompt_tokens"),
    _host("spaces_between_special_tokens"),
)


DROP_IN: dict[str, Refusal] = {**REFUSED, **ARGUMENTS}  # fields and arguments of transformers' ``generate``
