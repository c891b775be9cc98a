"""``generate`` and ``stream``: one call with an engine that is made for it."""

from typing import TYPE_CHECKING, Unpack

from paceline.api.build import check_options
from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.engine_for import engine_for
from paceline.api.profiles import ProfileLike
from paceline.api.prompts import Prompts, check_prompts, kind_of, read_prompt
from paceline.api.requests import ParamsLike, guidance, per_prompt
from paceline.api.results import Result
from paceline.api.sampling_options import SamplingOptions, with_options
from paceline.api.streams import Stream
from paceline.api.targets import TargetLike, check_target, loaded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def generate(
    target: TargetLike,
    prompts: Prompts,
    params: ParamsLike = None,
    *,
    drafter: DrafterLike = None,
    verifier: VerifierLike = "coupled",
    num_draft_tokens: NumDraftTokens = "auto",
    batch_size: int | None = None,
    profile: ProfileLike = "auto",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    **options: Unpack[SamplingOptions],
) -> list[Result]:
    """Generate from every prompt; results in order, the ``n`` samples of a prompt together.

    - ``target``: what ``paceline.load`` returns; a transformers model, which is used in place; or a directory or Hub
      id, which is loaded for this call with the defaults of ``load``.
    - ``prompts``: a text, token ids or chat messages; or a list of these.
    - ``params`` (None, which is ``SamplingParams()``: 16 tokens at temperature 1): one for all prompts, or one for
      each. A seed for all is split per prompt and sample, so that their noise is independent: ``Engine.submit``.
    - ``**options``: fields of ``SamplingParams``, such as ``max_tokens=64, temperature=0``: in place of ``params`` or
      beside them, for fields that ``params`` leave at their defaults.
    - ``drafter`` (None: plain decoding): a registered name, with options if wanted ("ngram:max_ngram=4"), a loaded
      draft model, a directory, a Drafter or HostDrafter, or vLLM's speculative_config as a dictionary or JSON. With
      the verifier "coupled" the tokens do not depend on it.
    - ``verifier`` ("coupled"): decides how many drafted tokens are accepted: a name, with options as in
      "lossy_typical:epsilon=0.3,delta=0.09", or a Verifier.
    - ``num_draft_tokens`` ("auto": as many as pay, at most 8): drafted tokens per step, cut to what ``max_tokens`` has
      room for; or a Plan.
    - ``batch_size`` (None: one row per sequence, at most 16 and what half of the free memory holds): rows that run
      together. It changes no token.
    - ``profile`` ("auto"): what the controller of draft lengths begins with, as in ``Engine``.
    - ``tokenizer`` (None: that of the model's directory): one of transformers, for a model without such a directory.

    Raises ValueError, naming the prompt or parameter, and TypeError for unknown keywords: before the model is loaded
    where they are wrong for every model, and before any work. On Ctrl-C, Interrupted with the results so far.
    """
    return stream(
        target,
        prompts,
        with_options(generate, params, options),
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        profile=profile,
        tokenizer=tokenizer,
    ).drain()


def stream(
    target: TargetLike,
    prompts: Prompts,
    params: ParamsLike = None,
    *,
    drafter: DrafterLike = None,
    verifier: VerifierLike = "coupled",
    num_draft_tokens: NumDraftTokens = "auto",
    batch_size: int | None = None,
    profile: ProfileLike = "auto",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    rejected: bool = False,
    **options: Unpack[SamplingOptions],
) -> Stream:
    """``generate``, token by token: iterate over the pieces as they are committed; ``close`` ends it early.

    ``rejected`` (False) is as in ``Engine.submit``.
    """
    params = with_options(stream, params, options)
    listed = check_prompts(prompts)
    each = per_prompt(params, len(listed))
    check_options(drafter, verifier, num_draft_tokens, 1 if batch_size is None else batch_size)
    check_target(target, tokenizer)
    target = loaded(target, tokenizer, texts=any(kind_of(prompt) in (str, dict) for prompt in listed))
    encoded = [read_prompt(target, prompt, name=f"prompt {index}") for index, prompt in enumerate(listed)]
    guides = [guidance(target, prompt.tokens, option) for prompt, option in zip(encoded, each, strict=True)]
    longest = [max(len(prompt.tokens), len(g.prompt) if g else 0) for prompt, g in zip(encoded, guides, strict=True)]
    wanted = [
        None if option.max_tokens is None else length + option.max_tokens
        for length, option in zip(longest, each, strict=True)
    ]
    counted = [length for length in wanted if length is not None]
    limits = [option.max_tokens for option in each if option.max_tokens is not None]
    engine = engine_for(
        target,
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        profile=profile,
        num_texts=sum(option.n for option in each),
        guidance=any(guide is not None for guide in guides),
        max_length=None if len(counted) < len(wanted) else min(target.lm.max_positions, max(counted)),
        max_tokens=None if len(limits) < len(each) else max(limits),
    )
    return engine.submit(encoded, params, rejected=rejected)
