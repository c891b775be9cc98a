"""What a run writes at its end: heads and models as directories that can be served, each with its model card."""

import shutil
import subprocess
from dataclasses import dataclass
from typing import final

import torch

from paceline.draft_heads.files import save_head
from paceline.models.copied_layers import with_encoder
from paceline.models.directory import TUNED_FROM
from paceline.models.draft_vocab import write_draft_vocab
from paceline.models.fingerprint import Fingerprint, fingerprint
from paceline.models.loading import save
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.config import TrainConfig
from paceline.train.data import Manifest
from paceline.train.files import write_text
from paceline.train.history import read_history
from paceline.train.loop.trainer import Score
from paceline.train.model_cards import RunRecord, model_card
from paceline.train.outcome import DRAFT, TARGET, target_directory
from paceline.train.setup import LoadedModel, in_float32
from paceline.train.tasks import Distillation, DraftHeadTask, NextToken, Task

FILES_BESIDE = (  # of a model, that whoever loads it reads text or sound with
    "tokenizer*",
    "*.model",
    "normalizer.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The writer of a run. ``fingerprint`` is that of a frozen target; None: the run trains it."""

    config: TrainConfig
    target: LoadedModel
    draft: LoadedModel | None
    manifest: Manifest
    fingerprint: Fingerprint | None

    def write(self, task: Task, score: Score) -> None:
        """Everything that ``task`` has trained."""
        output, name = self.config.output, target_directory(self.config)
        record = RunRecord(
            config=self.config,
            score=score,
            manifest=self.manifest,
            commit=git_commit(),
            lengthened=read_history(output).lengthened,
        )
        written: list[str] = []
        if isinstance(task, NextToken | DraftHeadTask) and self.config.target.is_trained:
            self._write_model(task.model if isinstance(task, NextToken) else task.target, self.target, TARGET)
            written.append(TARGET)
        if isinstance(task, Distillation):
            assert self.draft is not None
            self._write_model(self._whole(task.draft), self.draft, DRAFT)
            if task.draft_ids is not None:
                write_draft_vocab(output / DRAFT, task.draft_ids)
            written.append(DRAFT)
        if isinstance(task, DraftHeadTask):
            target = self.fingerprint or fingerprint(task.target)
            for trained in task.trained_heads:
                save_head(trained.head, output / trained.name, target_name=name, fingerprint=target)
                written.append(trained.name)
        for part in written:
            write_text(output / part / "README.md", model_card(record, name=part))

    def _whole(self, draft: DecoderLM) -> DecoderLM:
        """With the target's encoder, as it is in its files, where the draft reads that."""
        return with_encoder(draft, in_float32(self.target)) if isinstance(draft, EncoderDecoderLM) else draft

    def _write_model(self, lm: DecoderLM, model: LoadedModel, name: str) -> None:
        """Weights, with the target's tokenizer beside them if it has one."""
        folder, raw = self.config.output / name, model.raw
        if name == TARGET and self.config.target.joint is not None:
            raw = {**raw, TUNED_FROM: self.config.target.path}
        save(lm, raw, folder, dtype=torch.float32)
        if self.target.folder is not None:
            for pattern in FILES_BESIDE:
                for path in self.target.folder.glob(pattern):
                    shutil.copyfile(path, folder / path.name)


def git_commit() -> str | None:
    """The commit of the current folder, if it is under git."""
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
