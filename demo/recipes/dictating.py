"""The recipe of a Whisper that writes down a made-up speech, and of the draft model that shares its encoder.

Both have twelve times narrower layers than Whisper-small's, so that a processor trains them in minutes: the target six
layers of an encoder and twelve of a decoder, the draft the encoder and copies of the decoder's first and last layers,
trained by ``paceline train``. ``python -m benchmarks inflate --parameters 200M`` makes them as wide as Whisper-small.
Run as ``python demo/recipes/dictating.py WORK [PHASE ...]``; each phase writes files into WORK that the next reads.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any, final

import numpy as np
import soundfile
import torch
import yaml
from phases import run_phases
from syllables import (
    END,
    FIRST,
    LONGEST,
    POSITIONS,
    RATE,
    SECONDS,
    SHARE,
    SYLLABLES,
    extractor,
    layout,
    lesson,
    sound_of,
    tokenizer,
    write_files,
)
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from paceline.models.draft_vocab import write_draft_vocab
from paceline.models.from_transformers import from_transformers
from paceline.models.loading import load, read_config, save
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.loop.config import CheckpointSection, LoopConfig, OptimiserSection, ScheduleSection
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks.base import StepRandomness, Task, TaskOutput, sum_terms
from paceline.train.tasks.terms import next_token_term

SEED, ROWS, NOISE = 2030, 8, 0.05
VOCAB = 51_865  # of Whisper-small: what is beyond the speech's own tokens is never chosen
NUM_DRAFTED = 8_192  # of them, by the draft
NUM_MIXED = 16  # known tokens whose mean an unused one is
NUM_SOUNDS, NUM_MEASURED = 176, 16
PROMPT = 4  # tokens before the syllables
WIDTH = 64
SIZES: dict[str, Any] = {
    "num_mel_bins": 80,
    "d_model": WIDTH,
    "encoder_layers": 6,
    "decoder_layers": 12,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    "encoder_ffn_dim": 4 * WIDTH,
    "decoder_ffn_dim": 4 * WIDTH,
    "max_source_positions": SECONDS * 50,
    "max_target_positions": POSITIONS,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
RUN = LoopConfig(
    schedule=ScheduleSection(steps=300, warmup=45, floor=0.01),
    optimiser=OptimiserSection(learning_rate=2e-3, weight_decay=0.01, betas=(0.9, 0.999)),
    checkpoints=CheckpointSection(every=50),
    validate_every=100,
    log_every=10,
    precision="fp32",
)
DISTIL: dict[str, Any] = {
    "draft": {"layers": [0, -1]},
    "loss": {"terms": {"text": 1.0, "kl": 0.8}},
    "optimiser": {"learning_rate": 1e-3},
    "schedule": {"steps": 200, "warmup": 20},
    "batch": {"rows": ROWS, "length": PROMPT + LONGEST + 1},
    "validation": {"every": 50, "prompts": 8, "tokens": LONGEST, "k": 5},
    "precision": "fp32",
}


@torch.no_grad()
def beginning(ids: dict[str, int]) -> EncoderDecoderLM:
    """A model whose cross-attention finds the place of a syllable from the first: nothing else is known to it.

    Positions of the decoder are waves like the encoder's, at the middle of the syllable that comes next, and queries
    and keys compare them; the first and last layers take what they find there as it is. Layers add little at first.
    What the encoder hears stands out among its waves: where it is ten times smaller, hundreds of steps learn nothing.
    """
    torch.manual_seed(SEED)
    config = WhisperConfig(**SIZES, **layout(ids), init_std=0.05)
    made = WhisperForConditionalGeneration(config)
    half = WIDTH // 2
    place = ((torch.arange(POSITIONS) - PROMPT + 1.5) * SHARE * 50).clamp(min=0)
    waves = place[:, None] * torch.exp(-log(10_000) / (half - 1) * torch.arange(half))
    decoder = made.model.decoder
    decoder.embed_positions.weight.copy_(torch.cat((waves.sin(), waves.cos()), 1))
    for name, parameter in made.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            parameter.mul_(0.2)
    made.model.encoder.conv2.weight.mul_(10)
    for number, layer in enumerate(decoder.layers):
        attention: Any = layer.encoder_attn
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.mul_(0.3).add_(2 * torch.eye(WIDTH))
        if number in (0, len(decoder.layers) - 1):
            for projection in (attention.v_proj, attention.out_proj):
                projection.weight.add_(torch.eye(WIDTH))
    found = from_transformers(made)
    assert isinstance(found, EncoderDecoderLM)
    return found


@final
class Speech:
    """Batches of what is spoken, a window a row: a function of (seed, step)."""

    def __init__(self, ids: dict[str, int], *, rows: int, seed: int) -> None:
        self.ids, self._rows, self._seed = ids, rows, seed

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return self._rows

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the step's batch: the syllables and the end are learned."""
        random = np.random.default_rng((self._seed, step))
        spoken = [
            random.integers(0, len(SYLLABLES), random.integers(LONGEST // 2, LONGEST + 1)) for _ in range(self.rows)
        ]
        tokens = torch.full((len(rows), PROMPT + LONGEST + 1), self.ids[END])
        learned = torch.zeros(tokens.shape, dtype=torch.bool)
        for at, row in enumerate(rows):
            own = lesson(spoken[row].tolist(), self.ids)
            tokens[at, : len(own)] = torch.tensor(own)
            learned[at, PROMPT : len(own)] = True
        return TrainBatch(tokens=tokens, learned=learned)


@final
class SoundToText(Task):
    """Next-token prediction of what is heard; the sound is made of the tokens."""

    def __init__(self, model: EncoderDecoderLM) -> None:
        super().__init__()
        self.model = model.requires_grad_(True)
        assert model.encoder is not None and model.encoder.position is not None
        model.encoder.position.requires_grad_(False)  # waves, as in every Whisper
        self._extractor = extractor()

    @property
    def frozen(self) -> None:
        return None

    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """Cross-entropy of syllables and end."""
        seeds = [
            int(torch.randint(1 << 30, (), generator=randomness.generator(row))) for row in range(len(batch.tokens))
        ]
        return sum_terms([next_token_term("loss", self.logits(batch.tokens, seeds), batch)])

    def logits(self, tokens: Tensor, seeds: list[int]) -> Tensor:
        """[B, T, V] of rows [B, T + 1], heard in the noise of ``seeds`` [B]."""
        count = len(SYLLABLES)
        spoken = [[(one - FIRST) % count for one in row if FIRST <= one < FIRST + 2 * count] for row in tokens.tolist()]
        sounds = [sound_of(row, noise=NOISE, seed=seed) for row, seed in zip(spoken, seeds, strict=True)]
        features = self._extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
        length = torch.full((len(tokens),), SECONDS * 50)
        states = self.model.encode_inputs(features, length)
        logits = self.model.causal(tokens[:, :-1], source=self.model.source_of(states, length)).logits
        assert logits is not None
        return logits


@torch.no_grad()
def right_tokens(task: SoundToText, batch: TrainBatch) -> float:
    """Share of syllables and ends that are the likeliest after the right ones before them."""
    found = task.logits(batch.tokens, list(range(len(batch.tokens)))).argmax(-1) == batch.tokens[:, 1:]
    return float(found[batch.learned[:, 1:]].float().mean())


def train(work: Path) -> None:
    """The target, with the speech's own tokens alone."""
    ids = tokenizer().get_vocab()
    task = SoundToText(beginning(ids))
    held_out = Speech(ids, rows=ROWS, seed=SEED + 1).batch(0, range(ROWS))

    def validate(task: Task) -> Score:
        assert isinstance(task, SoundToText)
        right = right_tokens(task, held_out)
        return Score(value=right, metrics={"validation.right": right})

    batches = Speech(ids, rows=ROWS, seed=SEED)
    trainer = Trainer(task=task, batches=batches, config=RUN, folder=work / "target-run", validate=validate)
    trainer.run()
    trainer.finished()
    raw = WhisperConfig(**SIZES, **layout(ids), architectures=["WhisperForConditionalGeneration"]).to_dict()
    save(task.model, raw, work / "target", dtype=torch.float32)
    write_files(work / "target")


def speak(work: Path) -> None:
    """Sounds to distil from and to measure with, and what is said in them."""
    made = tokenizer()
    for name, count in (("distilled", NUM_SOUNDS), ("measured", NUM_MEASURED)):
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        batch = Speech(made.get_vocab(), rows=count, seed=SEED + 2 + len(name)).batch(0, range(count))
        lines: list[str] = []
        for number, row in enumerate(batch.tokens.tolist()):
            spoken = [(one - FIRST) % len(SYLLABLES) for one in row if FIRST <= one < FIRST + 2 * len(SYLLABLES)]
            samples = sound_of(spoken, noise=NOISE, seed=number)
            soundfile.write(folder / f"{number:03}.wav", samples, RATE, subtype="PCM_16")
            text = made.decode(row[PROMPT:], skip_special_tokens=True)
            lines.append(json.dumps({"audio": f"{number:03}.wav", "output": text}))
        (folder / "said.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def distil(work: Path) -> None:
    """The draft, by what the target itself writes down."""
    data = {"packing": "documents", "cache": str(work / "cache")}
    said = {**data, "sources": [{"kind": "sounds", "paths": [str(work / "distilled" / "said.jsonl")]}]}
    (work / "sounds.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    own = work / "own.jsonl"
    _paceline(
        *("data", "regenerate", str(work / "sounds.yaml"), "--model", str(work / "target")),
        *("--temperature", "0", "--output", str(own)),
    )
    sources = [{"kind": "sounds", "paths": [str(own)]}]
    recipe = {
        "target": {"path": str(work / "target")},
        "data": {**data, "sources": sources, "validation": {"share": 0.1, "by": "document"}},
        **DISTIL,
        "output": str(work / "draft-run"),
    }
    (work / "distil.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    _paceline("train", str(work / "distil.yaml"))


def widen(work: Path) -> None:
    """Both with as many token ids as Whisper-small, in ``target-51865`` and ``draft-51865``, of which the draft drafts
    some: the speech's own, and unused ones.
    """
    unused = VOCAB - len(tokenizer().get_vocab())
    for name, folder in (("target", work / "target"), ("draft", work / "draft-run" / "draft")):
        raw = read_config(folder) | layout(tokenizer(unused).get_vocab())
        model = load(folder, dtype=torch.float32)
        table = model.embed.weight
        model.embed.weight = torch.nn.Parameter(with_unused(table, unused), requires_grad=False)
        save(model, raw, work / f"{name}-{VOCAB}", dtype=torch.float32)
        write_files(work / f"{name}-{VOCAB}", unused)
    text = FIRST + 2 * len(SYLLABLES)
    special = torch.arange(text + unused, VOCAB)
    drafted = torch.cat((torch.arange(NUM_DRAFTED - len(special)), special))
    write_draft_vocab(work / f"draft-{VOCAB}", drafted)


def with_unused(table: Tensor, count: int) -> Tensor:
    """``table`` [V, H] with ``count`` rows behind those of text, each the mean of some: theirs is no largest logit."""
    text = FIRST + 2 * len(SYLLABLES)
    generator = torch.Generator().manual_seed(SEED)
    mixed = table[torch.randint(len(table), (count, NUM_MIXED), generator=generator)].mean(1)
    return torch.cat((table[:text], mixed, table[text:]))


def _paceline(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "paceline", *arguments], check=True)


PHASES: dict[str, Callable[[Path], None]] = {"train": train, "speak": speak, "distil": distil, "widen": widen}


if __name__ == "__main__":
    run_phases(PHASES, __doc__)
