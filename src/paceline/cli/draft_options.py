"""The options that say what drafts, and how drafts are verified. Loads no torch."""

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.options import (
    DRAFTING,
    MODEL_OR_HEAD_PATH,
    DraftLength,
    DraftQuantization,
    ModelOptions,
    Verifier,
    check_draft_quantization,
    completing,
)
from paceline.drafters import DRAFTERS
from paceline.models.directory import is_head

if TYPE_CHECKING:
    from paceline.api import Loaded
    from paceline.api.drafter_like import DrafterLike

VERIFIER = "coupled"  # which gives the tokens of plain decoding
NO_DRAFTER = "none"  # by name


@Parameter(name="*", group=DRAFTING)
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What drafts, and how drafts are verified."""

    draft: Annotated[str | None, MODEL_OR_HEAD_PATH] = None
    """Draft model with the same vocabulary, or a draft head, ours or another project's: directory or Hub id."""
    drafter: Annotated[str | None, completing(DRAFTERS)] = None
    """Drafter by name, such as ngram, which needs no model, or with options: ngram:max_ngram=4; FILE.py:NAME, one of
    your own; the directory of a draft head; 'model:DIR < ngram', a draft model that another drafter drafts for;
    'model:DIR x2 + ngram', another drafter after two tokens of a draft model; or vLLM's speculative_config as JSON.
    Beside --draft: another candidate, chosen where it pays more."""
    num_draft_tokens: DraftLength | None = None
    """Tokens drafted per step; by default auto: as many as pay, at most 8, and none where drafting would be slower."""
    draft_quantization: DraftQuantization = None
    verifier: Verifier = VERIFIER

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, before any model is loaded."""
        from paceline.agreement import agree
        from paceline.api import build_verifier
        from paceline.api.build import make_named
        from paceline.api.draft_heads import read_weightless
        from paceline.api.drafter_like import check_drafter
        from paceline.api.layer_skip import LayerSkip
        from paceline.api.named import name_of
        from paceline.api.speculative_config import is_speculative_config, read_speculative_config
        from paceline.api.stages import is_made_of_drafters, read_drafter_parts
        from paceline.models.sublayers import SkippedSublayers

        given = self.drafter
        build_verifier(self.verifier)
        if isinstance(self.num_draft_tokens, int) and self.num_draft_tokens < 0:
            raise ValueError(f"--num-draft-tokens {self.num_draft_tokens}: give 0 (no drafting) or a positive count")
        self._check_drafting()
        check_draft_quantization(self.draft_quantization, draft=self.draft)
        if self.draft is not None and self.draft_quantization is not None and is_head(self.draft):
            raise ValueError(self._quantized_head())
        if self.several and self.num_draft_tokens not in (None, "auto"):
            raise ValueError(
                f"--num-draft-tokens {self.num_draft_tokens} with --drafter {given} and --draft {self.draft}: give one "
                "of the two drafters, or leave it out, so that one of them is chosen for every step"
            )
        if given is not None and is_made_of_drafters(given):
            if read_drafter_parts(given).num_draft_tokens is not None and self.num_draft_tokens is not None:
                raise ValueError(
                    f"--num-draft-tokens {self.num_draft_tokens} and num_speculative_tokens in --drafter: give one of "
                    "them"
                )
            return
        if given is not None and name_of(given) == "model":
            if given != "model":
                check_drafter(given)
            elif self.draft is None:
                raise ValueError(f"--drafter {given}: it needs a draft model, give --draft DIR")
            return
        if given is not None and is_speculative_config(given):
            if read_speculative_config(given).num_draft_tokens is not None and self.num_draft_tokens is not None:
                raise ValueError(
                    f"--num-draft-tokens {self.num_draft_tokens} and num_speculative_tokens in --drafter: give one of "
                    "them"
                )
            return
        if given is None or (name_of(given) not in DRAFTERS and is_head(given)):
            return
        if not check_drafter(given):
            raise ValueError(
                f"unknown drafter {given!r}; known: {', '.join(DRAFTERS)}, FILE.py:NAME for one of your own, the "
                "directory of a draft head, or vLLM's speculative_config as JSON; a draft model is given by --draft"
            )
        if name_of(given) in DRAFTERS.builtin:
            weightless = read_weightless(given)
            if weightless is None:
                agree(make_named(given), build_verifier(self.verifier))
            elif isinstance(weightless, LayerSkip):
                agree(weightless.make(SkippedSublayers()), build_verifier(self.verifier))

    def _check_drafting(self) -> None:
        """Raise ValueError for options of drafting where nothing drafts: they would do nothing."""
        if self.drafts:
            return
        without = "without a drafter" if self.drafter is None else f"with --drafter {NO_DRAFTER}"
        way_out = "there are no drafts; give --draft DIR or --drafter ngram too, or leave it out"
        if self.num_draft_tokens not in (None, 0):
            raise ValueError(f"--num-draft-tokens {self.num_draft_tokens} {without}: {way_out}")
        if self.verifier != VERIFIER:
            raise ValueError(f"--verifier {self.verifier} {without}: {way_out}")

    def _quantized_head(self) -> str:
        return (
            f"--draft-quantization {self.draft_quantization}: {self.draft} is a draft head, which takes the target's "
            "precision; leave it out"
        )

    @property
    def drafts(self) -> bool:
        """Whether a drafter is given."""
        return self.draft is not None or self.drafter not in (None, NO_DRAFTER)

    @property
    def several(self) -> bool:
        """Whether two drafters are given, of which one drafts in each step."""
        return self.draft is not None and self.drafter not in (None, "model")

    def choose(self, target: "Loaded") -> "DrafterLike":
        """The drafter, or both, loaded where it is a model; a draft head stays a path."""
        from paceline.api import load
        from paceline.api.draft_heads import find_head

        if self.draft is None:
            return self.drafter
        head = find_head(self.draft)
        draft: Loaded | str = self.draft if head is None else str(head)
        if head is None:
            draft = load(draft, dtype=target.dtype, device=target.lm.device, quantization=self.draft_quantization)
        elif self.draft_quantization is not None:
            raise ValueError(self._quantized_head())
        return [self.drafter, draft] if self.several and self.drafter is not None else draft

    @property
    def count(self) -> DraftLength:
        """How many tokens to draft per step, unless the drafter's own configuration says so."""
        return "auto" if self.num_draft_tokens is None else self.num_draft_tokens


def as_options(message: str) -> str:
    """A message of the library in the words of the command line: --num-draft-tokens for num_draft_tokens."""
    names = [one.name for kind in (ModelOptions, DraftOptions) for one in fields(kind) if "_" in one.name]
    return re.sub(rf"(?<![\w-])({'|'.join(names)})\b", lambda found: f"--{found[1].replace('_', '-')}", message)
