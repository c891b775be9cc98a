"""The recipe of the embedded pair: a deep, narrow target and its draft model, trained on Python's standard library.

Run as ``python demo/recipes/models.py WORK [PHASE ...]``; each phase writes files into WORK that the next reads.
"""

import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cards import make_card, write_model_files
from corpus import encode, train_tokenizer
from crops import Crops, Stages
from phases import run_phases
from regenerate import regenerate
from shapes import CONTEXT, VOCAB_SIZE, llama

from paceline.core.sampling import Sampling
from paceline.drafters.model import ModelDrafter
from paceline.models.loading import load, save
from paceline.models.native.decoder import DecoderLM
from paceline.train.acceptance import Acceptance, measure_acceptance, require_outputs
from paceline.train.batches import Batches
from paceline.train.data import LibraryFile, standard_library
from paceline.train.init_weights import random_model
from paceline.train.loop.config import LoopConfig, OptimiserSection, ScheduleSection
from paceline.train.loop.distributed import Single
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks import Distillation, NextToken, Task
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.validation import text_loss

SEED = 20_26
PROMPT, LENGTH = 48, 256  # tokens of a prompt, and of a prompt with its output
NUM_PROMPTS = 2048
NUM_DRAFT_TOKENS = 5
SAMPLINGS = tuple(Sampling(temperature=t) for t in (0.0, 0.4, 0.7, 1.0))  # in turn; cold outputs loop more often
TARGET_RUN, DRAFT_RUN = (
    LoopConfig(
        schedule=ScheduleSection(steps=steps),
        optimiser=OptimiserSection(learning_rate=rate),
        validate_every=200,
        compile=True,
    )
    for steps, rate in ((1800, 3e-3), (1600, 4e-3))
)


TARGET = llama(hidden=192, inner=512, layers=16, heads=4, kv_heads=2)
DRAFT = llama(hidden=96, inner=256, layers=2, heads=4, kv_heads=2)


def accelerator() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def prepare(work: Path) -> None:
    """Tokenizer, token arrays and manifest."""
    files = standard_library()
    train = [file for file in files if not file.held_out]
    held_out = [file for file in files if file.held_out]
    tokenizer = train_tokenizer((file.text for file in train), VOCAB_SIZE)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(work / "tokenizer.json"))
    np.save(work / "train.npy", encode(tokenizer, train))
    np.save(work / "held_out.npy", encode(tokenizer, held_out))
    manifest = [_manifest_entry(file) for file in files]
    (work / "manifest.json").write_text(json.dumps(manifest, indent=0) + "\n", encoding="utf-8")


def _manifest_entry(file: LibraryFile) -> dict[str, object]:
    found, split = file.describe(), "held-out" if file.held_out else "train"
    return {"name": file.name, "bytes": found.num_bytes, "sha256": found.sha256, "split": split}


def _held_out(work: Path) -> Crops:
    return Crops([(np.load(work / "held_out.npy"), 1.0)], rows=16, length=512, seed=SEED)


def train_target(work: Path) -> None:
    """The target on text."""
    text = np.load(work / "train.npy")
    batches = Stages(
        (1500, Crops([(text, 1.0)], rows=8, length=512, seed=SEED)),
        (TARGET_RUN.schedule.steps, Crops([(text, 1.0)], rows=4, length=CONTEXT, seed=SEED)),
    )
    model = random_model(TARGET, SEED).to(accelerator())
    held_out = _held_out(work)

    def validate(task: Task) -> Score:
        return Score(value=-text_loss(model, held_out))

    _train(NextToken(model=model), batches, TARGET_RUN, folder=work / "target", validate=validate)
    save(model, TARGET, work / "export" / "target")


def regenerate_texts(work: Path) -> None:
    """The target's outputs for prompts from its own training text, greedy and sampled."""
    target = _trained(work, "target")
    prompts = _prompts(work / "train.npy", NUM_PROMPTS, seed=SEED)
    sequences = regenerate(target, prompts, SAMPLINGS, num_tokens=LENGTH - PROMPT, rows=64)
    np.save(work / "regenerated.npy", sequences)


def train_draft(work: Path) -> None:
    """The draft model on the target's outputs and on text, distilled from the target; validated by acceptance."""
    target = _trained(work, "target")
    sources = [(np.load(work / "regenerated.npy"), 0.7), (np.load(work / "train.npy"), 0.3)]
    batches = Crops(sources, rows=16, length=LENGTH - 1, seed=SEED)
    prompts = _prompts(work / "held_out.npy", 32, seed=SEED + 1)

    model = random_model(DRAFT, SEED).to(accelerator())

    def validate(task: Task) -> Score:
        found = _accepted(target, model, prompts)
        length = found.summary.mean_acceptance_length if found.outputs else None
        return Score(value=length, length=length)

    loss = DistillationLoss(terms={"kl": 0.5, "argmax": 0.5})
    task = Distillation(target=target, draft=model, loss=loss)
    _train(task, batches, DRAFT_RUN, folder=work / "draft", validate=validate)
    save(model, DRAFT, work / "export" / "draft")


def evaluate(work: Path) -> None:
    """Held-out loss of both models and acceptance of the draft model, as shipped; into figures.json."""
    models = {name: _trained(work, name) for name in ("target", "draft")}
    with torch.no_grad():
        losses = {name: text_loss(model, _held_out(work)) for name, model in models.items()}
    prompts = _prompts(work / "held_out.npy", 256, seed=SEED + 2)
    found = require_outputs(_accepted(models["target"], models["draft"], prompts))
    figures = {
        "held_out_loss": losses,
        "mean_acceptance_length": found.summary.mean_acceptance_length,
        "first_acceptance": found.summary.first_acceptance,
        "acceptance_by_position": found.by_position,
        "num_draft_tokens": NUM_DRAFT_TOKENS,
        "num_texts": found.num_outputs,
        "num_looping": found.num_looping,
        "machine": f"{platform.machine()}, torch {torch.__version__}, float32 from bfloat16 files",
        "python": platform.python_version(),
    }
    (work / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


def export(work: Path) -> None:
    """Tokenizer, cards and manifest beside the weights: the two directories that paceline-demo ships."""
    found = json.loads((work / "figures.json").read_text(encoding="utf-8"))
    positions = ", ".join(f"{share:.2f}" for share in found["acceptance_by_position"])
    shared = {
        f"greedy acceptance at k = {found['num_draft_tokens']}, tokens per step (bonus included)": (
            f"{found['mean_acceptance_length']:.2f}"
        ),
        "acceptance rate of the first draft token": f"{found['first_acceptance']:.3f}",
        "acceptance rate by position": positions,
        "measured on": f"{found['num_texts']} continuations of held-out source",
        "left out": f"{found['num_looping']} continuations that loop",
        "with": found["machine"],
    }
    roles = {
        "target": "The target of Paceline's embedded pair: deep and narrow, so that an early exit saves most layers.",
        "draft": "The draft of Paceline's embedded pair, distilled from the target on text and the target's output.",
    }
    steps = {
        "target": f"{TARGET_RUN.schedule.steps} steps of 4,096 tokens",
        "draft": f"{DRAFT_RUN.schedule.steps} steps of 4,096 tokens",
    }
    for name, raw in (("target", TARGET), ("draft", DRAFT)):
        figures = {"held-out loss, nats per token": f"{found['held_out_loss'][name]:.3f}", **shared}
        card = make_card(
            raw,
            title=f"paceline-demo {name}",
            role=roles[name],
            parameters=sum(p.numel() for p in _trained(work, name).parameters()),
            figures=figures,
            python=found["python"],
            steps=steps[name],
        )
        write_model_files(work / "export" / name, raw, work / "tokenizer.json", card)
    shutil.copy(work / "manifest.json", work / "export" / "manifest.json")


def _trained(work: Path, name: str) -> DecoderLM:
    """A model as shipped, in float32."""
    return load(work / "export" / name, dtype=torch.float32, device=accelerator())


def _prompts(tokens: Path, count: int, *, seed: int) -> np.ndarray:
    """Random windows [count, PROMPT] of a token array."""
    crops = Crops([(np.load(tokens), 1.0)], rows=count, length=PROMPT - 1, seed=seed)
    return crops.batch(0, range(count)).tokens.numpy()


def _train(
    task: Task, batches: Batches, config: LoopConfig, *, folder: Path, validate: Callable[[Task], Score]
) -> None:
    """Train to the end; ``task`` then has the best weights."""
    strategy = Single(device=accelerator())
    trainer = Trainer(task=task, batches=batches, config=config, folder=folder, validate=validate, strategy=strategy)
    trainer.run()
    trainer.finished()


def _accepted(target: DecoderLM, draft: DecoderLM, prompts: np.ndarray) -> Acceptance:
    """Greedy acceptance over 64 tokens."""
    drafter = ModelDrafter(lm=draft)
    return measure_acceptance(
        target, drafter, prompts, num_tokens=64, num_draft_tokens=NUM_DRAFT_TOKENS, sampling=Sampling()
    )


PHASES: dict[str, Callable[[Path], None]] = {
    "prepare": prepare,
    "target": train_target,
    "regenerate": regenerate_texts,
    "draft": train_draft,
    "evaluate": evaluate,
    "export": export,
}


if __name__ == "__main__":
    run_phases(PHASES, __doc__)
