"""Whether a target, a drafter and a verifier keep their promises, asked of real runs. Prints nothing.

Texts are drawn as a user would have them drawn; the laws that they should come from are computed apart, by plain eager
forwards of whole texts. T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.api.build import DrafterLike, VerifierLike, build_drafter, build_verifier
from paceline.api.results import Source
from paceline.audit.distributions import laws_after
from paceline.audit.divergence import Divergence, measure
from paceline.audit.goodness_of_fit import Rate, Tokens, Verdict, chance_of_coupling, chance_of_rejection, judge_rate
from paceline.core.plan import Fixed
from paceline.core.tree import Draw
from paceline.decode import agree
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection

LEVEL = 0.01  # of a false alarm about acceptance
CLOSED_FORMS = (Block, Coupled, Recursive, Rejection)  # whose first acceptance has one
ROOTS = 400  # steps whose acceptance is compared with its closed form
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """How many of ``num_texts`` sampled texts are those of plain decoding with the same seeds."""

    num_texts: int
    num_tokens: int
    num_equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found; None where a check does not apply."""

    greedy: Divergence
    coupled: Equality | None  # of a verifier that promises the tokens of plain decoding
    law: Verdict
    acceptance: Rate | None  # of the first drafted token, where its closed form is known
    bitwise: bool  # equality of tokens is promised bit for bit, not only away from near ties

    @property
    def failures(self) -> list[str]:
        """What breaks a promise, in words."""
        found = []
        if self.bitwise and self.greedy.partings:
            found.append(f"{len(self.greedy.partings)} greedy texts differ from plain decoding")
        if self.bitwise and self.coupled is not None and self.coupled.num_equal < self.coupled.num_texts:
            found.append(f"{self.coupled.num_texts - self.coupled.num_equal} sampled texts differ from plain decoding")
        if not self.law.honest:
            found.append("sampled tokens do not have the target's law")
        if self.acceptance is not None and self.acceptance.p < LEVEL:
            found.append("acceptance is not what the rule gives for these laws")
        return found


def audit(
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    *,
    drafter: DrafterLike,
    verifier: VerifierLike,
    num_draft_tokens: int,
    num_tokens: int,
    text_length: int,
    batch_size: int,
    seed: int,
    bitwise: bool,
    tell: Tell,
) -> Audit:
    """Run every check; ``num_tokens`` in all are judged for their law, in texts of ``text_length``.

    Raises what ``generate`` raises, and ValueError for counts below 1.
    """
    if num_tokens < 1 or text_length < 2:
        raise ValueError(
            f"{num_tokens} tokens in texts of {text_length}: give at least 1 token and texts of at least 2"
        )
    bare, texts = replace(target, tokenizer=None), [list(prompt) for prompt in prompts]
    rule = build_verifier(verifier)
    built = build_drafter(drafter, target=target)
    runs = -(-num_tokens // (len(texts) * text_length))

    def draw(count: int, run: int, **options: object) -> list[Result]:
        params = [
            SamplingParams(temperature=1.0, max_tokens=text_length, ignore_eos=True, seed=seed + 1000 * run + index)
            for index in range(len(texts))
        ]
        given = {"drafter": built, "verifier": rule, "num_draft_tokens": Fixed(count), **options}
        return generate(bare, texts, params, batch_size=batch_size, **given)  # type: ignore[arg-type]

    tell("greedy texts")
    greedy = measure(
        target, prompts, drafter=built, num_tokens=text_length, num_draft_tokens=num_draft_tokens, batch_size=batch_size
    )
    coupled, tokens = None, Tokens(seed=seed)
    for run in range(runs):
        tell(f"sampled texts, {run + 1} of {runs}")
        drawn = draw(num_draft_tokens, run)
        if run == 0 and rule.same_tokens:
            plain = draw(0, run, drafter=None, verifier="coupled")
            same = [one.tokens == other.tokens for one, other in zip(drawn, plain, strict=True)]
            coupled = Equality(num_texts=len(same), num_tokens=len(same) * text_length, num_equal=sum(same))
        for result in drawn:
            tokens.add(laws_of(target.lm, result), torch.tensor(result.tokens))
    tell("acceptance")
    return Audit(
        greedy=greedy,
        coupled=coupled,
        law=tokens.verdict(),
        acceptance=_acceptance(target.lm, built, rule, lambda: draw(1, runs)),
        bitwise=bitwise and rule.same_tokens,
    )


def laws_of(lm: LM, result: Result) -> Tensor:
    """The law [T, V] before each token of a text."""
    return laws_after(lm, result.prompt_tokens, result.tokens)


def _acceptance(lm: LM, drafter: object, rule: Verifier, draw: Callable[[], list[Result]]) -> Rate | None:
    """First tokens drafted by a model, one per step, against their closed form: of SHARED and of IID draws."""
    if not isinstance(drafter, ModelDrafter) or not isinstance(rule, CLOSED_FORMS):
        return None
    kind = agree(drafter, rule)
    chance = {Draw.SHARED: chance_of_coupling, Draw.IID: chance_of_rejection}.get(kind)
    if chance is None:
        return None
    hits, chances = [], []
    for result in draw():
        p, q = laws_of(lm, result), laws_of(drafter.lm, result)
        width = max(p.shape[-1], q.shape[-1])
        p, q = (torch.nn.functional.pad(law, (0, width - law.shape[-1])) for law in (p, q))
        roots = [at for at, source in enumerate(result.source) if source in (Source.DRAFTED, Source.CORRECTED)]
        hits += [result.source[at] is Source.DRAFTED for at in roots]
        chances.append(chance(p[roots], q[roots]))
        if len(hits) >= ROOTS:
            break
    return judge_rate(torch.tensor(hits), torch.cat(chances))
