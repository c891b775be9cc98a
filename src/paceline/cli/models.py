"""Loads the models and drafters that the options of a command name."""

from paceline.api import Loaded, load
from paceline.api.build import DrafterLike, build_verifier
from paceline.api.draft_heads import is_head, read_weightless
from paceline.api.named import name_of, read_named
from paceline.cli.options import DraftOptions, ModelOptions
from paceline.drafters import DRAFTERS

NUM_DRAFT_TOKENS = 5  # by default


def load_target(options: ModelOptions) -> Loaded:
    """The model. Raises what ``paceline.load`` raises."""
    return load(
        options.model,
        dtype=options.dtype,
        device=options.device,
        backend=options.backend,
        enforce_eager=options.enforce_eager,
        exact=options.exact,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        threads=options.threads,
        quantization=options.quantization,
    )


def check_draft_quantization(scheme: str | None, *, draft: str | None) -> None:
    """Raise ValueError for a scheme without a draft model."""
    if scheme is not None and draft is None:
        raise ValueError(f"--draft-quantization {scheme}: it needs a draft model, give --draft DIR")


def check_drafting(options: DraftOptions) -> None:
    """Raise ValueError for options that contradict each other, before any model is loaded."""
    given = options.drafter
    build_verifier(options.verifier)
    check_draft_quantization(options.draft_quantization, draft=options.draft)
    if options.draft is not None and options.draft_quantization is not None and is_head(options.draft):
        raise ValueError(
            f"--draft-quantization {options.draft_quantization}: {options.draft} is a draft head, which takes "
            "the target's precision; leave it out"
        )
    if options.draft is not None and given not in (None, "model"):
        raise ValueError(f"--drafter {given} and --draft {options.draft}: give one of them")
    if given is not None and name_of(given) == "model":
        if options.draft is None:
            raise ValueError(f"--drafter {given}: it needs a draft model, give --draft DIR")
        return
    if given is not None and _is_config(given):
        if options.num_draft_tokens is not None:
            raise ValueError(
                f"--num-draft-tokens {options.num_draft_tokens} and num_speculative_tokens in --drafter: give one of "
                "them"
            )
        return
    if given is None:
        return
    if name_of(given) not in DRAFTERS and is_head(given):
        return
    if name_of(given) not in DRAFTERS:
        raise ValueError(
            f"unknown drafter {given!r}; known: {', '.join(DRAFTERS)}, the directory of a draft head, or vLLM's "
            "speculative_config as JSON; a draft model is given by --draft"
        )
    if read_weightless(given) is None:
        read_named(DRAFTERS, given)


def choose_drafter(options: DraftOptions, *, target: Loaded) -> DrafterLike:
    """The drafter, loaded where it is a model; a draft head stays a path."""
    if options.draft is not None and is_head(options.draft):
        return options.draft
    if options.draft is not None:
        return load(options.draft, dtype=target.dtype, device=target.lm.device, quantization=options.draft_quantization)
    return options.drafter


def num_draft_tokens(options: DraftOptions) -> int:
    """How many tokens to draft per step, unless the drafter's own configuration says so."""
    return NUM_DRAFT_TOKENS if options.num_draft_tokens is None else options.num_draft_tokens


def _is_config(drafter: str) -> bool:
    return drafter.lstrip().startswith("{")
