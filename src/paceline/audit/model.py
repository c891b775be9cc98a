"""Audits a target, a drafter and a verifier: equality with plain decoding, goodness of fit, acceptance rate.

Sequences are sampled through ``generate``; the distributions they are tested against come from plain forwards of the
whole sequence. T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.agreement import agree
from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.api.build import build_drafter, build_verifier
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.results import Source
from paceline.audit.acceptance import AcceptanceRate, compare_acceptance, coupled_acceptance, rejection_acceptance
from paceline.audit.divergence import Divergence, measure_divergence
from paceline.audit.goodness_of_fit import GoodnessOfFit, GoodnessOfFitTest
from paceline.audit.target_probs import next_token_probs
from paceline.core.plan import Fixed
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection

SIGNIFICANCE = 0.01  # of the test of the acceptance rate
CLOSED_FORMS = (Block, Coupled, Recursive, Rejection)  # verifiers whose first acceptance has a closed form
NUM_ACCEPTANCES = 400  # drafted tokens whose acceptance is tested
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEquality:
    """How many of ``num_sequences`` sampled sequences equal those of plain decoding with the same seeds."""

    num_sequences: int
    num_tokens: int
    num_equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAudit:
    """Results of an audit; None where a check does not apply."""

    greedy: Divergence
    sampled: SampledEquality | None  # for verifiers that return the tokens of plain decoding
    goodness_of_fit: GoodnessOfFit
    acceptance: AcceptanceRate | None  # of the first drafted token, where a closed form is known
    bitwise: bool  # equality is expected without exceptions for near ties

    @property
    def failures(self) -> list[str]:
        """Descriptions of the failed checks."""
        failures = []
        if self.bitwise and self.greedy.divergence_points:
            failures.append(f"{len(self.greedy.divergence_points)} greedy sequences differ from plain decoding")
        if self.bitwise and self.sampled is not None and self.sampled.num_equal < self.sampled.num_sequences:
            count = self.sampled.num_sequences - self.sampled.num_equal
            failures.append(f"{count} sampled sequences differ from plain decoding")
        if not self.goodness_of_fit.passed:
            failures.append("sampled tokens do not follow the target's distribution")
        if self.acceptance is not None and self.acceptance.p_value < SIGNIFICANCE:
            failures.append("the acceptance rate is not the one that the verifier has for these distributions")
        return failures


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
    on_progress: Progress,
) -> ModelAudit:
    """Run every check; ``num_tokens`` sampled tokens are tested, in sequences of ``text_length``.

    Raises what ``generate`` raises, and ValueError for counts below 1.
    """
    check_lengths(num_tokens=num_tokens, text_length=text_length)
    bare, token_ids = replace(target, tokenizer=None), [list(prompt) for prompt in prompts]
    built_verifier, built_drafter = build_verifier(verifier), build_drafter(drafter, target=target)
    num_rounds = -(-num_tokens // (len(token_ids) * text_length))

    def sample(count: int, index: int, **options: object) -> list[Result]:
        params = [
            SamplingParams(temperature=1.0, max_tokens=text_length, ignore_eos=True, seed=seed + 1000 * index + prompt)
            for prompt in range(len(token_ids))
        ]
        given = {"drafter": built_drafter, "verifier": built_verifier, "num_draft_tokens": Fixed(count), **options}
        return generate(bare, token_ids, params, batch_size=batch_size, **given)  # type: ignore[arg-type]

    on_progress("greedy sequences")
    greedy = measure_divergence(
        target,
        prompts,
        drafter=built_drafter,
        num_tokens=text_length,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
    )
    sampled, test = None, GoodnessOfFitTest(seed=seed)
    for index in range(num_rounds):
        on_progress(f"sampled sequences, round {index + 1} of {num_rounds}")
        results = sample(num_draft_tokens, index)
        if index == 0 and built_verifier.same_tokens:
            plain = sample(0, index, drafter=None, verifier="coupled")
            equal = sum(one.token_ids == other.token_ids for one, other in zip(results, plain, strict=True))
            sampled = SampledEquality(num_sequences=len(plain), num_tokens=len(plain) * text_length, num_equal=equal)
        for result in results:
            test.add(result_probs(target.lm, result), torch.tensor(result.token_ids))
    on_progress("acceptance rate")
    return ModelAudit(
        greedy=greedy,
        sampled=sampled,
        goodness_of_fit=test.result(),
        acceptance=_acceptance(target.lm, built_drafter, built_verifier, lambda: sample(1, num_rounds)),
        bitwise=bitwise and built_verifier.same_tokens,
    )


def check_lengths(*, num_tokens: int, text_length: int) -> None:
    """Raise ValueError for lengths that leave nothing to test."""
    if num_tokens < 1 or text_length < 2:
        raise ValueError(
            f"{num_tokens} tokens in texts of {text_length}: give at least 1 token and texts of at least 2"
        )


def result_probs(lm: LM, result: Result) -> Tensor:
    """The distribution [T, V] before each token of a result."""
    return next_token_probs(lm, result.prompt_tokens, result.token_ids)


def _acceptance(
    lm: LM, drafter: object, verifier: Verifier, sample: Callable[[], list[Result]]
) -> AcceptanceRate | None:
    """Acceptance of tokens drafted by a model, one per step, against the closed form: for SHARED and IID draws, and
    models whose logits are of the target's tokens.
    """
    if not isinstance(drafter, ModelDrafter) or drafter.vocab is not None or not isinstance(verifier, CLOSED_FORMS):
        return None
    closed_form = {Draw.SHARED: coupled_acceptance, Draw.IID: rejection_acceptance}.get(agree(drafter, verifier))
    if closed_form is None:
        return None
    accepted, probs = [], []
    for result in sample():
        p, q = result_probs(lm, result), result_probs(drafter.lm, result)
        width = max(p.shape[-1], q.shape[-1])
        p, q = (torch.nn.functional.pad(one, (0, width - one.shape[-1])) for one in (p, q))
        roots = [at for at, source in enumerate(result.source) if source in (Source.DRAFTED, Source.CORRECTED)]
        accepted += [result.source[at] is Source.DRAFTED for at in roots]
        probs.append(closed_form(p[roots], q[roots]))
        if len(accepted) >= NUM_ACCEPTANCES:
            break
    return compare_acceptance(torch.tensor(accepted), torch.cat(probs))
