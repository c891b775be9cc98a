"""``generate`` and ``stream``: one call with an engine that is made for it."""

from paceline.api.build import DrafterLike, VerifierLike
from paceline.api.draft_length import NumDraftTokens
from paceline.api.engine import engine_for
from paceline.api.loading import Loaded
from paceline.api.profiles import ProfileLike
from paceline.api.prompts import Prompts, encode, split
from paceline.api.requests import ParamsLike, guidance, per_prompt
from paceline.api.results import Result
from paceline.api.streams import Stream


def generate(
    target: Loaded,
    prompts: Prompts,
    params: ParamsLike = None,
    *,
    drafter: DrafterLike = None,
    verifier: VerifierLike = "coupled",
    num_draft_tokens: NumDraftTokens = "auto",
    batch_size: int | None = None,
    profile: ProfileLike = "auto",
) -> list[Result]:
    """Generate from every prompt; results in order, the ``n`` samples of a prompt together.

    - ``prompts``: a text, token ids or chat messages; or a list of these.
    - ``params`` (None, which is ``SamplingParams()``: 16 tokens at temperature 1): one for all prompts, or one for
      each. A seed for all is split per prompt and sample, so that their noise is independent: ``Engine.submit``.
    - ``drafter`` (None: plain decoding): a registered name, with options if wanted ("ngram:max_ngram=4"), a loaded
      draft model, a directory, a Drafter or HostDrafter, or vLLM's speculative_config as a dictionary or JSON. With
      the verifier "coupled" the tokens do not depend on it.
    - ``verifier`` ("coupled"): decides how many drafted tokens are accepted: a name, with options as in
      "lossy_typical:epsilon=0.3,delta=0.09", or a Verifier.
    - ``num_draft_tokens`` ("auto": as many as pay, at most 8): drafted tokens per step; or a Plan.
    - ``batch_size`` (None: one row per sequence, at most 16 and what half of the free memory holds): rows that run
      together. It changes no token.
    - ``profile`` ("auto"): what the controller of draft lengths begins with, as in ``Engine``.

    Raises ValueError, naming the prompt, before any work; on Ctrl-C, Interrupted with the results so far.
    """
    return stream(
        target,
        prompts,
        params,
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        profile=profile,
    ).drain()


def stream(
    target: Loaded,
    prompts: Prompts,
    params: ParamsLike = None,
    *,
    drafter: DrafterLike = None,
    verifier: VerifierLike = "coupled",
    num_draft_tokens: NumDraftTokens = "auto",
    batch_size: int | None = None,
    profile: ProfileLike = "auto",
    rejected: bool = False,
) -> Stream:
    """``generate``, token by token: iterate over the pieces as they are committed; ``close`` ends it early.

    ``rejected`` (False) is as in ``Engine.submit``.
    """
    encoded = [encode(target, prompt, name=f"prompt {index}") for index, prompt in enumerate(split(prompts))]
    options = per_prompt(params, len(encoded))
    guides = [guidance(target, tokens, option) for tokens, option in zip(encoded, options, strict=True)]
    longest = [max(len(tokens), len(g.prompt) if g else 0) for tokens, g in zip(encoded, guides, strict=True)]
    wanted = [
        None if option.max_tokens is None else length + option.max_tokens
        for length, option in zip(longest, options, strict=True)
    ]
    counted = [length for length in wanted if length is not None]
    engine = engine_for(
        target,
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        profile=profile,
        num_texts=sum(option.n for option in options),
        guidance=any(guide is not None for guide in guides),
        max_length=None if len(counted) < len(wanted) else min(target.lm.max_positions, max(counted)),
    )
    return engine.submit(encoded, params, rejected=rejected)
