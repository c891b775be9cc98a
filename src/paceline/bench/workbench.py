"""What a sweep times: our decoding and our peers', of the same prompts in the same precision. Times nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.api import Loaded
from paceline.api.build import DrafterLike
from paceline.bench.own import continuing
from paceline.bench.peers import ASSISTED, CONFIDENT, LOOKUP, PEERS, PLAIN, load_peer, transformers_decoding
from paceline.bench.runner import Configuration
from paceline.bench.sweep import Cell
from paceline.models.base import longest_text

MODEL = "model"  # the name of the draft model's drafter


@dataclass(slots=True, kw_only=True)
class ModelBench:
    """One target, one draft if there is one, and the prompts; peers are loaded when the first cell asks for one.

    ``target_path`` and ``draft_path`` are the directories that peers load.
    """

    target: Loaded
    draft: Loaded | None
    target_path: Path
    draft_path: Path | None
    prompts: Sequence[Sequence[int]]
    seed: int
    _peers: dict[Path, Any] = field(default_factory=dict[Path, Any])

    def plain(self, name: str, cell: Cell) -> Configuration:
        """Plain decoding of the same prompts."""
        return self._own(name, cell, drafter=None, num_draft_tokens=0)

    def candidate(self, name: str, cell: Cell) -> Configuration:
        """The cell's own decoding."""
        if cell.drafter not in PEERS:
            drafter = self.draft if cell.drafter == MODEL else cell.drafter
            return self._own(name, cell, drafter=drafter, num_draft_tokens=cell.num_draft_tokens)
        needs_draft = cell.drafter in (ASSISTED, CONFIDENT)
        return transformers_decoding(
            name,
            model=self._peer(self.target_path),
            draft=self._peer(self.draft_path) if needs_draft and self.draft_path is not None else None,
            kind=cell.drafter,
            prompts=self.prompts,
            num_tokens=cell.max_tokens,
            num_draft_tokens=cell.num_draft_tokens,
            batch_size=cell.batch_size,
            temperature=cell.temperature,
            seed=self.seed,
        )

    def _own(self, name: str, cell: Cell, *, drafter: DrafterLike, num_draft_tokens: int) -> Configuration:
        return continuing(
            name,
            target=self.target,
            prompts=self.prompts,
            num_tokens=cell.max_tokens,
            drafter=drafter,
            num_draft_tokens=num_draft_tokens,
            batch_size=cell.batch_size,
            temperature=cell.temperature,
            seed=self.seed,
        )

    def _peer(self, path: Path) -> Any:
        if path not in self._peers:
            self._peers[path] = load_peer(path, dtype=self.target.dtype, device=self.target.lm.device)
        return self._peers[path]


def peers_for(*, drafts: bool) -> list[str]:
    """The peers that a bench can time, with a draft model or without."""
    return [PLAIN, LOOKUP, *([ASSISTED, CONFIDENT] if drafts else [])]


def check_peers(target: Loaded, draft: Loaded | None) -> None:
    """Raise ValueError for a draft that transformers cannot assist with: it takes no vocabularies of two sizes."""
    if draft is not None and draft.lm.vocab_size != target.lm.vocab_size:
        raise ValueError(
            f"--peers with {target.lm.vocab_size} token ids of the target and {draft.lm.vocab_size} of the draft: "
            "transformers assists only where both have as many; pad the smaller model, or leave --peers out"
        )


def check_lengths(
    target: Loaded, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], *, num_nodes: int
) -> None:
    """Raise ValueError for a prompt whose longest continuation, and ``num_nodes`` drafted, the target cannot hold."""
    longest, context = max(max_tokens), longest_text(target.lm, num_nodes=num_nodes)
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index}: no tokens in it; give at least one")
        if len(prompt) + longest > context:
            raise ValueError(
                f"prompt {index} of {len(prompt)} tokens and {longest} more leave the target's context of {context}; "
                "give shorter prompts or fewer tokens"
            )


def check_batches(num_prompts: int, batch_sizes: Sequence[int]) -> None:
    """Raise ValueError unless the prompts fill whole batches of every size: a part of one would count as slow."""
    for size in batch_sizes:
        if size < 1 or num_prompts % size:
            raise ValueError(
                f"{num_prompts} prompts and batch size {size}: give a number of prompts that every batch size divides"
            )
