"""A table of the options of ``SamplingParams``: their names elsewhere, where they run, which verifiers support them.

Unsupported options are listed in ``params.NOT_YET`` and ``generation_fields.REFUSED``.
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.api.generation_fields import REFUSED, Refusal
from paceline.api.params import NOT_YET
from paceline.hf.inputs import ARGUMENTS
from paceline.verifiers import VERIFIERS


class Stage(StrEnum):
    """Where and when an option takes effect."""

    STEP = "step"  # on the device, in the step; on a CPU by the kernel where there is one
    OVERLAPPED = "overlapped"  # on the host, while the device runs a step
    HOST = "host"  # on the host, between steps
    PROMPT = "prompt"  # on the device, before the first step


class Guarantee(StrEnum):
    """Which verifiers preserve the effect of an option on drafted tokens."""

    EVERY = "every"
    LOSSLESS = "lossless"
    SAME_TOKENS = "same tokens"

    @property
    def verifiers(self) -> tuple[str, ...]:
        """Names of the built-in verifiers."""
        classes = {name: VERIFIERS.find(name) for name in VERIFIERS.builtin}
        if self is Guarantee.LOSSLESS:
            return tuple(name for name, verifier in classes.items() if verifier.lossless)
        if self is Guarantee.SAME_TOKENS:
            return tuple(name for name, verifier in classes.items() if verifier.same_tokens)
        return tuple(classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One parameter. Plain decoding, chains and trees support all that are not refused.

    ``flags`` of ``paceline generate``; ``field`` is what transformers' ``generate`` takes, None where there is none.
    ``drafts``: whether the option also applies to the distributions that a draft model samples from.
    """

    name: str
    flags: tuple[str, ...] = ()
    field: str | None = None
    stage: Stage = Stage.STEP
    drafts: bool = True
    guarantee: Guarantee = Guarantee.LOSSLESS

    @property
    def refusal(self) -> str | None:
        """Why only the default is supported; None: all values are."""
        return NOT_YET[self.name].reason if self.name in NOT_YET else None


def _same(name: str, *, guarantee: Guarantee = Guarantee.LOSSLESS) -> Option:
    """An option of the next-token distribution with the same name everywhere."""
    return Option(name=name, flags=(f"--{name.replace('_', '-')}",), field=name, guarantee=guarantee)


def _host(name: str, *, flags: tuple[str, ...] = (), field: str | None = None, stage: Stage = Stage.HOST) -> Option:
    """An option that does not change the next-token distribution."""
    return Option(name=name, flags=flags, field=field, stage=stage, drafts=False, guarantee=Guarantee.EVERY)


OPTIONS: tuple[Option, ...] = (
    _same("guidance_scale"),
    Option(name="negative_prompt", flags=("--negative-prompt",), field="negative_prompt_ids"),
    Option(name="logit_bias", flags=("--logit-bias",)),
    _same("sequence_bias"),
    Option(name="suppress_tokens", flags=("--suppress-token-id",), field="suppress_tokens", guarantee=Guarantee.EVERY),
    Option(name="bad_words_ids", flags=("--bad-word-ids",), field="bad_words_ids", guarantee=Guarantee.EVERY),
    Option(name="bad_words", flags=("--bad-word",), guarantee=Guarantee.EVERY),
    Option(name="allowed_token_ids", flags=("--allowed-token-id",), guarantee=Guarantee.EVERY),
    _same("repetition_penalty"),
    Option(name="frequency_penalty", flags=("--frequency-penalty",)),
    Option(name="presence_penalty", flags=("--presence-penalty",)),
    _same("no_repeat_ngram_size", guarantee=Guarantee.EVERY),
    Option(
        name="begin_suppress_tokens",
        flags=("--begin-suppress-token-id",),
        field="begin_suppress_tokens",
        guarantee=Guarantee.EVERY,
    ),
    Option(name="min_tokens", flags=("--min-tokens",), field="min_new_tokens", guarantee=Guarantee.EVERY),
    _same("temperature"),
    _same("top_k"),
    _same("top_p"),
    _same("min_p"),
    _same("typical_p"),
    _same("epsilon_cutoff"),
    _same("eta_cutoff"),
    Option(name="filter_order", flags=("--filter-order",)),
    Option(name="seed", flags=("--seed",), guarantee=Guarantee.SAME_TOKENS),
    Option(
        name="structured_outputs",
        flags=("--json-schema", "--regex", "--grammar", "--choice"),
        stage=Stage.OVERLAPPED,
        drafts=False,
        guarantee=Guarantee.EVERY,
    ),
    Option(name="logits_processors", field="logits_processor", stage=Stage.OVERLAPPED, drafts=False),
    _host("n", flags=("--n",), field="num_return_sequences"),
    _host("max_tokens", flags=("--max-tokens",), field="max_new_tokens", stage=Stage.STEP),
    _host("stop_token_ids", flags=("--stop-token-id",), field="eos_token_id", stage=Stage.STEP),
    _host("ignore_eos", flags=("--ignore-eos",), stage=Stage.STEP),
    _host("stop", flags=("--stop",), field="stop_strings"),
    _host("include_stop_str_in_output", flags=("--include-stop",)),
    _host("logprobs", flags=("--logprobs",), stage=Stage.STEP),
    _host("prompt_logprobs", stage=Stage.PROMPT),
    _host("detokenize"),
    _host("skip_special_tokens", flags=("--skip-special",)),
    _host("truncate_prompt_tokens"),
    _host("spaces_between_special_tokens"),
)


DROP_IN: dict[str, Refusal] = {**REFUSED, **ARGUMENTS}  # fields and arguments of transformers' ``generate``
