"""transformers as a peer, in our own process. Times nothing.

Its ``generate`` has four ways: plain, assisted by a draft model with a fixed draft length, the same with
its own criterion that ends a draft early, and prompt lookup. All have their cache; input tensors and configurations are
made once. End-of-text is off and the length fixed, so that every call does the same work as ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, final

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from paceline.bench.peers.base import PeerSettings, counted
from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import Cell, Ways

TRANSFORMERS: Final = "transformers"
PLAIN, ASSISTED, CONFIDENT, LOOKUP = (
    TRANSFORMERS,
    "transformers-assisted",
    "transformers-assisted-confident",
    "transformers-lookup",
)
KINDS = (PLAIN, ASSISTED, CONFIDENT, LOOKUP)
CONFIDENCE = 0.4  # transformers' default: a draft ends where its model is less sure


@final
@dataclass(slots=True, kw_only=True)
class Transformers:
    """``generate`` of the installed transformers; models are loaded when the first cell asks for one."""

    setting: PeerSettings
    name: str = TRANSFORMERS
    version: str = transformers.__version__
    _loaded: dict[Path, Any] = field(default_factory=dict[Path, Any])

    @property
    def ways(self) -> Ways:
        """It drafts for one text at a time."""
        drafting = (LOOKUP,) if self.setting.draft is None else (LOOKUP, ASSISTED, CONFIDENT)
        return Ways(plain=PLAIN, drafting=drafting, batches=False)

    def decoding(self, name: str, cell: Cell, *, prompts: Sequence[Sequence[int]], seed: int) -> Configuration:
        """One of its ways over all ``prompts``; a group is one call."""
        draft = self.setting.draft if cell.drafter in (ASSISTED, CONFIDENT) else None
        return transformers_decoding(
            name,
            model=self._model(self.setting.target),
            draft=None if draft is None else self._model(draft),
            kind=cell.drafter,
            prompts=prompts,
            num_tokens=cell.max_tokens,
            num_draft_tokens=cell.num_draft_tokens,
            batch_size=cell.batch_size,
            temperature=cell.temperature,
            top_p=cell.top_p,
            seed=seed,
            counts_steps=True,
        )

    def close(self) -> None:
        """Let the models go."""
        self._loaded.clear()

    def _model(self, path: Path) -> Any:
        if path not in self._loaded:
            self._loaded[path] = load_peer(path, dtype=self.setting.dtype, device=self.setting.device)
        return self._loaded[path]


def load_peer(path: Path, *, dtype: torch.dtype | None, device: torch.device | None = None) -> Any:
    """A model of transformers without defaults of its own. ``dtype`` None keeps the precision of the files."""
    logging.disable_progress_bar()  # there is one of our own
    # Any: transformers' own annotations do not let its checker bind ``generate``.
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True).eval()
    if device is not None:
        model.to(device)
    # A model's own defaults would join the settings of a call: none may remain.
    model.generation_config = GenerationConfig()
    return model


def transformers_decoding(
    name: str,
    *,
    model: Any,
    draft: Any = None,
    kind: str = PLAIN,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    num_draft_tokens: int = 0,
    batch_size: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    top_p: float = 1.0,
    counts_steps: bool = False,
) -> Configuration:
    """One of KINDS over all ``prompts``, exactly ``num_tokens`` tokens each; batches are padded on the left.

    ``counts_steps`` counts the target's forwards, and gives them as each text's steps.

    ``model`` and ``draft`` come from ``load_peer``. Raises ValueError for an unknown kind, for drafting in batches,
    which transformers cannot, and for assistance without a draft.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown way {kind!r} of transformers; known: {', '.join(KINDS)}")
    if kind != PLAIN and batch_size > 1:
        raise ValueError(f"{kind} with batch_size={batch_size}: transformers drafts for one text at a time; give 1")
    if kind in (ASSISTED, CONFIDENT) and draft is None:
        raise ValueError(f"{kind}: it needs a draft model; give one")
    settings = GenerationConfig(
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=temperature > 0,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    if temperature > 0:
        settings.update(temperature=temperature, top_k=0, top_p=top_p)
    options: dict[str, Any] = {}
    if kind == LOOKUP:
        settings.update(prompt_lookup_num_tokens=num_draft_tokens)
    drafting = None
    if kind in (ASSISTED, CONFIDENT):
        options["assistant_model"] = draft
        drafting = GenerationConfig(
            num_assistant_tokens=num_draft_tokens,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=CONFIDENCE if kind == CONFIDENT else 0.0,
        )

    @torch.inference_mode()
    def part(at: int, tokens: torch.Tensor, mask: torch.Tensor) -> Sample:
        if drafting is not None:
            draft.generation_config = drafting  # where transformers reads it
        if temperature > 0:
            torch.manual_seed(seed + at)
        forwards = count()

        def step(*_: object) -> None:
            next(forwards)

        counting = model.register_forward_pre_hook(step) if counts_steps else None
        try:
            rows = model.generate(tokens, attention_mask=mask, generation_config=settings, **options)
        finally:
            if counting is not None:
                counting.remove()
        texts = tuple(tuple(row) for row in rows[:, tokens.shape[1] :].tolist())
        if not counts_steps:
            return Sample(tokens=texts, summary=None)
        return counted(texts, [next(forwards)] * len(texts))

    starts = range(0, len(prompts), batch_size)
    parts = [partial(part, at, *_padded(prompts[at : at + batch_size], model.device)) for at in starts]
    return Configuration(name=name, parts=parts)


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask of a batch, padded on the left."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return tokens, mask
