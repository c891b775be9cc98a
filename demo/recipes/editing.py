"""The recipe of a target that edits: to repeat a source with the change that an instruction asks for.

The embedded target continues source code and copies nothing. This one has its tokenizer and its widths, but four
layers; it begins as a copier (copier.py) and is trained on edits of the library's training split. Run as
``python demo/recipes/editing.py EMBEDDED WORK [PHASE ...]``; each phase writes files into WORK that the next reads.
"""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from cards import write_model_files
from copier import copier
from crops import Stages
from edit_batches import Edits, EditTokens, draw_edits, pieces_by_task, tokenized
from phases import run_phases
from tokenizers import Tokenizer

from paceline.api import generate, total
from paceline.api import load as load_target
from paceline.bench.editing import FULL, TASKS, Lengths
from paceline.bench.suites import edits as suite_edits
from paceline.models.loading import save
from paceline.models.native.decoder import DecoderLM
from paceline.train.data import standard_library
from paceline.train.loop.config import CheckpointSection, LoopConfig, OptimiserSection, ScheduleSection
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks import NextToken, Task

SEED = 20_27
SHORT = {task: Lengths(least=lengths.least // 3, most=lengths.most // 2) for task, lengths in FULL.items()}


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of batches of ``rows`` rows of ``length`` tokens, from edits of pieces with ``lengths``."""

    name: str
    steps: int
    rows: int
    length: int
    lengths: Mapping[str, Lengths]
    num_edits: int


STAGES = (Stage("short", 300, 6, 256, SHORT, 4000), Stage("full", 500, 4, 560, FULL, 4000))
NUM_HELD_OUT = 8  # edits of each task in a validation
RUN = LoopConfig(
    schedule=ScheduleSection(steps=sum(stage.steps for stage in STAGES), warmup=30),
    optimiser=OptimiserSection(learning_rate=2e-3, weight_decay=0.01),
    checkpoints=CheckpointSection(every=25),
    validate_every=50,
    log_every=10,
)
NUM_MEASURED = 24  # edits of the benchmark's suite, with a seed that no report uses
MEASURED_SEED = 77
DRAFTERS, NUM_DRAFT_TOKENS, MEASURED_TOKENS = ("copy", "suffix", "ngram"), 16, 128

CARD = """---
library_name: transformers
license: psf-2.0
language: code
tags: [paceline, speculative-decoding]
---

# paceline-demo target that edits

Trained to repeat a source with a change: a renamed identifier, corrected misspellings, one field of a JSON document. It
exists to measure drafters that copy, on any machine; it knows the three tasks of the benchmark's suite `edit` in the
words that it was trained on, and nothing else. How well it does them is below.

{parameters:,} parameters in bfloat16, Llama layout, with the tokenizer and the widths of the embedded target. Two of
its four layers began as a copying circuit that was constructed, not learned (`demo/recipes/copier.py`), and a third
with a lookup of what stands before and behind a place; all weights were then trained. The constants of that circuit
were chosen on twelve edits of held-out files.

## Measured

| what | value |
|---|---|
{figures}

On {count} prompts of the suite `edit`, whose files it was not trained on. {machine}.

## Data and licence

Trained on edits of the source (without its tests) and the pydoc topics of the Python standard library, version
{python}: {steps} steps. The held-out files are those of the embedded models. Python is Copyright (c) Python Software
Foundation, All Rights Reserved, under the PSF License Version 2. Recipe: `demo/recipes/editing.py`.
"""


def target_config(embedded: Path) -> dict[str, object]:
    """The embedded target's config.json, with fewer layers and keys of its own for each head."""
    raw = json.loads((embedded / "config.json").read_text(encoding="utf-8"))
    # Tokens are matched over the whole prompt, so rotary embedding must turn some channels little over it.
    return raw | {"num_hidden_layers": 4, "num_key_value_heads": 4, "rope_theta": 1e6}


def read_tokenizer(embedded: Path) -> Tokenizer:
    """The tokenizer of the embedded models."""
    return Tokenizer.from_file(str(embedded / "tokenizer.json"))


def prepare(embedded: Path, work: Path) -> None:
    """Edits of both splits, in tokens."""
    work.mkdir(parents=True, exist_ok=True)
    tokenizer, files = read_tokenizer(embedded), standard_library()
    for stage in STAGES:
        pieces = pieces_by_task((file for file in files if not file.held_out), stage.lengths)
        edits = draw_edits(pieces, stage.num_edits, seed=SEED)
        tokenized(edits, tokenizer, stage.length).write(work / f"{stage.name}.npz")
    held_out = pieces_by_task((file for file in files if file.held_out), FULL)
    edits = draw_edits(held_out, NUM_HELD_OUT * len(TASKS), seed=SEED + 1)
    tokenized(edits, tokenizer, STAGES[-1].length).write(work / "held_out.npz")


def train(embedded: Path, work: Path) -> None:
    """The copier on edits, first of short pieces; the weights that predict most held-out tokens are kept."""
    raw, tokenizer = target_config(embedded), read_tokenizer(embedded)
    model = copier(raw, [tokenizer.id_to_token(at) for at in range(tokenizer.get_vocab_size())], SEED)
    stages, until = list[tuple[int, Edits]](), 0
    for stage in STAGES:
        until += stage.steps
        edits = EditTokens.read(work / f"{stage.name}.npz")
        stages.append((until, Edits(edits, rows=stage.rows, seed=SEED)))
    held_out = Edits(EditTokens.read(work / "held_out.npz"), rows=1, seed=0)

    def validate(task: Task) -> Score:
        found = right_tokens(model, held_out)
        return Score(value=found["all"], metrics={f"validation.{name}": share for name, share in found.items()})

    task = NextToken(model=model)
    trainer = Trainer(task=task, batches=Stages(*stages), config=RUN, folder=work / "target", validate=validate)
    trainer.run()
    trainer.finished()
    save(model, raw, work / "export")
    write_model_files(work / "export", raw, embedded / "tokenizer.json", "")


@torch.no_grad()
def right_tokens(model: DecoderLM, edits: Edits) -> dict[str, float]:
    """Share of answer tokens that are the likeliest after the right ones before them: by task, and the mean of these.

    Edits have the tasks in turn.
    """
    right: list[list[float]] = [[] for _ in TASKS]
    for row, (tokens, learned) in enumerate(zip(edits.tokens.split(1), edits.learned.split(1), strict=True)):
        logits = model.causal(tokens[:, :-1]).logits
        assert logits is not None
        right[row % len(TASKS)].extend((logits.argmax(-1) == tokens[:, 1:])[learned[:, 1:]].float().tolist())
    shares = {task: sum(found) / len(found) for task, found in zip(TASKS, right, strict=True)}
    return {"all": sum(shares.values()) / len(shares), **shares}


def evaluate(embedded: Path, work: Path) -> None:
    """The target as shipped, on prompts that chose nothing: right tokens, exact answers, tokens per step; its card."""
    target = load_target(work / "export", dtype=torch.float32)
    assert isinstance(target.lm, DecoderLM)
    edits, tokenizer = suite_edits(NUM_MEASURED, seed=MEASURED_SEED), read_tokenizer(embedded)
    prompts = [edit.prompt for edit in edits]
    right = right_tokens(target.lm, Edits(tokenized(edits, tokenizer, 700), rows=1, seed=0))
    longest = max(len(tokenizer.encode(edit.answer).ids) for edit in edits) + 1
    outputs = generate(target, prompts, drafter="copy", num_draft_tokens=16, max_tokens=longest, temperature=0)
    exact = [output.text == edit.answer for output, edit in zip(outputs, edits, strict=True)]
    figures: dict[str, object] = {"share of answer tokens that are right": right}
    figures["share of answers that are right"] = {
        task: sum(exact[at :: len(TASKS)]) / len(exact[at :: len(TASKS)]) for at, task in enumerate(TASKS)
    }
    for drafter in DRAFTERS:
        results = generate(
            target,
            prompts,
            drafter=drafter,
            num_draft_tokens=NUM_DRAFT_TOKENS,
            max_tokens=MEASURED_TOKENS,
            temperature=0,
            ignore_eos=True,
        )
        by_task = {task: total(results[at :: len(TASKS)]).mean_acceptance_length for at, task in enumerate(TASKS)}
        figures[f"tokens per step, {drafter} at k = {NUM_DRAFT_TOKENS}"] = {
            "all": total(results).mean_acceptance_length,
            **by_task,
        }
    (work / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    (work / "outputs.json").write_text(
        json.dumps([[e.prompt, e.answer, o.text] for e, o in zip(edits, outputs, strict=True)], indent=1) + "\n",
        encoding="utf-8",
    )
    card = CARD.format(
        parameters=sum(parameter.numel() for parameter in target.lm.parameters()),
        figures="\n".join(f"| {name} | {_as_text(value)} |" for name, value in figures.items()),
        count=NUM_MEASURED,
        machine=f"{platform.machine()}, torch {torch.__version__}, float32 from bfloat16 files",
        python=platform.python_version(),
        steps=RUN.schedule.steps,
    )
    write_model_files(work / "export", target_config(embedded), embedded / "tokenizer.json", card)
    print(json.dumps(figures, indent=2))


def _as_text(value: object) -> str:
    assert isinstance(value, dict)
    return ", ".join(f"{name} {share:.2f}" for name, share in value.items())


PHASES: dict[str, Callable[[Path, Path], None]] = {"prepare": prepare, "train": train, "evaluate": evaluate}


if __name__ == "__main__":
    run_phases(
        PHASES, __doc__, before={"embedded": "directory of the embedded target, whose tokenizer and widths it has"}
    )
