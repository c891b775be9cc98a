"""Steps that draft alike and verify in two ways: from the exit on, or from the embeddings. Times nothing.

B rows, k draft tokens, e layers before the exit.
"""

from dataclasses import dataclass
from typing import final

import torch

from paceline.core.admission import Prefix
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.base import Drafter
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.runner import parts_for
from paceline.models.backend import fastest
from paceline.models.base import LM
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers import VERIFIERS

RESUMED, WHOLE, PLAIN = "resumed", "whole", "plain"
AGAIN = f"{RESUMED}, again"  # the control
DRAFTED = (RESUMED, WHOLE, AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A step that both ways take. Raises ValueError for counts that leave no step."""

    exit_layer: int
    num_rows: int
    context: int  # tokens of every row's text before the first step
    num_draft_tokens: int

    def __post_init__(self) -> None:
        for name in ("exit_layer", "num_rows", "context", "num_draft_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")

    @property
    def name(self) -> str:
        rows = f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}"
        return f"exit after {self.exit_layer}, {rows}, {self.context} tokens, k = {self.num_draft_tokens}"

    def avoided(self, num_layers: int) -> float:
        """Share of the verification's arithmetic in its layers that resuming leaves out: all but one node pass e."""
        return self.num_draft_tokens / (self.num_draft_tokens + 1) * self.exit_layer / num_layers


@final
class Prepared:
    """One decoder that drafts, and one that does not, with the same texts before them and room for ``num_steps`` turns.

    All ways that draft are steps of one decoder, which lies where it lies: two that are alike can differ by more than
    what is looked for, by how the system has laid out their memory. The head is a new one: what a step costs does not
    depend on what is accepted, and both ways accept the same. Raises ValueError for an exit that the target does not
    have, and for more tokens than its context holds.
    """

    def __init__(self, cell: Cell, *, target: DecoderLM, num_steps: int) -> None:
        self.cell = cell
        runs = fastest(target)
        config = EarlyExitConfig(exit_layer=cell.exit_layer)
        head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(0))
        head.eval().requires_grad_(False)
        self.drafter = EarlyExitDrafter(head=head, lm=fastest(head.decoder))
        self.drafted = _begun(cell, runs, self.drafter, len(DRAFTED) * num_steps * (cell.num_draft_tokens + 1))
        self.plain = _begun(cell, runs, NoDrafter(), num_steps)

    def step(self, name: str) -> None:
        """One whole step of the way called ``name``, and what the host reads of it."""
        decoder = self.plain if name == PLAIN else self.drafted
        self.drafter.resumes = name != WHOLE
        decoder.step()
        decoder.read()

    def texts(self, name: str) -> list[list[int]]:
        """What every row holds, of what drafts or of what does not."""
        batch = (self.plain if name == PLAIN else self.drafted).batch
        rows = zip(batch.tokens.tolist(), batch.length.tolist(), strict=True)
        return [text[:length] for text, length in rows]

    def differ(self) -> bool:
        """Whether what was drafted is not how the target goes on."""
        pairs = zip(self.texts(RESUMED), self.texts(PLAIN), strict=True)
        return any(drafted[: len(plain)] != plain[: len(drafted)] for drafted, plain in pairs)


def _begun(cell: Cell, target: LM, drafter: Drafter, most: int) -> Decoder:
    drafts = 0 if isinstance(drafter, NoDrafter) else cell.num_draft_tokens
    decoder = Decoder(
        target=target,
        drafter=drafter,
        verifier=VERIFIERS.find("coupled")(),
        plan=Fixed(drafts),
        rows=cell.num_rows,
        max_length=cell.context + most,
        parts=parts_for(target.device),
    )
    text = torch.randint(target.vocab_size, (cell.context,), generator=torch.Generator().manual_seed(1)).tolist()
    request = Request(tokens=text, max_tokens=most)
    decoder.admit([request], [0])
    if cell.num_rows > 1:  # the others begin with what the first one has read
        others = range(1, cell.num_rows)
        prefix = Prefix(row=0, length=cell.context - 1)
        decoder.admit([request] * len(others), others, [prefix] * len(others))
    return decoder
