"""The recipe of a target that corrects: an encoder-decoder that reads English with mistakes and says it without.

It has the layout of T5, a tokenizer of its own, and two layers on both sides; it begins as an aligner (aligner.py) and
is trained on texts of the library's training split in which mistakes are made. Run as
``python demo/recipes/correcting.py WORK [PHASE ...]``; each phase writes files into WORK that the next reads.
"""

import ast
import json
import platform
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from pathlib import Path
from random import Random

import torch
from aligner import aligner
from cards import write_model_files
from corpus import END_OF_TEXT, train_tokenizer
from edit_batches import END_OF_TEXT_ID, Edits, EditTokens
from phases import run_phases
from source_batches import SourceToAnswer, paired
from tokenizers import Tokenizer, processors

from paceline.api import Loaded, generate, total
from paceline.api import load as load_target
from paceline.bench.corrections import LENGTHS, with_mistakes
from paceline.bench.editing import Edit, docstrings_of, prose_pieces
from paceline.bench.suites import corrections as suite_corrections
from paceline.models.loading import save
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.data import LibraryFile, standard_library
from paceline.train.loop.config import CheckpointSection, LoopConfig, OptimiserSection, ScheduleSection
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks import Task

SEED = 20_28
BEGIN = "<|beginning|>"  # the first token of sources and answers
SIZE = 192  # tokens of a source, and of an answer, at most
VOCAB_SIZE, NUM_EDITS, NUM_HELD_OUT, ROWS = 2048, 8000, 16, 8
LAYOUT: dict[str, object] = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": VOCAB_SIZE,
    "d_model": 160,
    "d_kv": 32,
    "num_heads": 6,
    "d_ff": 256,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "feed_forward_proj": "relu",
    "relative_attention_num_buckets": 1024,  # so that all distances within a text are told apart
    "relative_attention_max_distance": 512,
    "layer_norm_epsilon": 1e-6,
    "n_positions": 512,
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "pad_token_id": END_OF_TEXT_ID,
    "eos_token_id": END_OF_TEXT_ID,
    "decoder_start_token_id": END_OF_TEXT_ID,
}
RUN = LoopConfig(
    schedule=ScheduleSection(steps=300, warmup=30),
    optimiser=OptimiserSection(learning_rate=5e-4, weight_decay=0.01),  # a higher rate undoes what it begins with
    checkpoints=CheckpointSection(every=50),
    validate_every=50,
    log_every=10,
)
NUM_MEASURED, MEASURED_SEED = 24, 77  # texts of the benchmark's suite, with a seed that no report uses
DRAFTERS, NUM_DRAFT_TOKENS = ("copy", "suffix", "ngram"), 32

CARD = """---
library_name: transformers
license: psf-2.0
language: en
tags: [paceline, speculative-decoding]
---

# paceline-demo target that corrects

An encoder-decoder that reads English with mistakes (misspelt and doubled words, "a" for "an", small letters at the
beginning of sentences) and says it without. It exists to measure drafters that copy from what an encoder reads, on any
machine; it knows the mistakes that it was trained on, in texts about Python. How well it does is below.

{parameters:,} parameters in bfloat16, T5 layout, two layers on both sides, a vocabulary of {vocab}. Attention began as
a copying circuit that was constructed, not learned (`demo/recipes/aligner.py`); all weights were then trained.

## Measured

| what | value |
|---|---|
{figures}

On {count} texts of the suite `correct`, whose files it was not trained on. {machine}.

## Data and licence

Trained on the docstrings and the pydoc topics of the Python standard library, version {python}, in which mistakes were
made: {steps} steps. The held-out files are those of the embedded models. Python is Copyright (c) Python Software
Foundation, All Rights Reserved, under the PSF License Version 2. Recipe: `demo/recipes/correcting.py`.
"""


def texts_of(files: Iterable[LibraryFile]) -> list[str]:
    """What can be corrected in ``files``, which are modules and topics of pydoc."""
    found: list[str] = []
    for file in files:
        whole = [file.text] if file.name.startswith("pydoc/") else docstrings_of(ast.parse(file.text))
        found.extend(prose_pieces(whole, LENGTHS))
    return found


def draw_corrections(texts: list[str], count: int, *, seed: int) -> list[Edit]:
    """``count`` corrections of random texts."""
    random, found = Random(seed), list[Edit]()
    while len(found) < count:
        edit = with_mistakes(random.choice(texts), random)
        if edit is not None:
            found.append(edit)
    return found


def prepare(work: Path) -> None:
    """A tokenizer, which puts texts between BEGIN and the end of text, and corrections of both splits in its tokens."""
    work.mkdir(parents=True, exist_ok=True)
    files = standard_library()
    train, held_out = (
        draw_corrections(texts_of(file for file in files if file.held_out is split), count, seed=SEED + split)
        for split, count in ((False, NUM_EDITS), (True, NUM_HELD_OUT))
    )
    tokenizer = train_tokenizer((text for edit in train for text in (edit.prompt, edit.answer)), VOCAB_SIZE - 1)
    tokenizer.add_special_tokens([BEGIN])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END_OF_TEXT}",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN)), (END_OF_TEXT, END_OF_TEXT_ID)],
    )
    tokenizer.save(str(work / "tokenizer.json"))
    paired(train, tokenizer, SIZE).write(work / "train.npz")
    paired(held_out, tokenizer, SIZE).write(work / "held_out.npz")


def train(work: Path) -> None:
    """The aligner on corrections; the weights whose held-out outputs are most like the answers are kept."""
    begin = Tokenizer.from_file(str(work / "tokenizer.json")).token_to_id(BEGIN)
    assert begin is not None
    model = aligner(LAYOUT, SEED, begin=begin)
    batches = Edits(EditTokens.read(work / "train.npz"), rows=ROWS, seed=SEED)
    held_out = Edits(EditTokens.read(work / "held_out.npz"), rows=ROWS, seed=0)
    task = SourceToAnswer(model=model, size=SIZE)

    def validate(task: Task) -> Score:
        assert isinstance(task, SourceToAnswer)
        # Right tokens after right ones say little: a model that has learned phrases by heart jumps between them.
        alike = similarity(task.model, held_out)
        right = right_tokens(task, held_out)
        return Score(value=alike, metrics={"validation.alike": alike, "validation.right": right})

    trainer = Trainer(task=task, batches=batches, config=RUN, folder=work / "target", validate=validate)
    trainer.run()
    trainer.finished()
    save(model, LAYOUT, work / "export")
    write_model_files(work / "export", LAYOUT, work / "tokenizer.json", "")


@torch.no_grad()
def right_tokens(task: SourceToAnswer, edits: Edits) -> float:
    """Share of answer tokens that are the likeliest after the right ones before them."""
    right: list[bool] = []
    for tokens, learned in zip(edits.tokens.split(edits.rows), edits.learned.split(edits.rows), strict=True):
        found = task.logits(tokens).argmax(-1) == tokens[:, SIZE + 1 :]
        right.extend(found[learned[:, SIZE + 1 :]].tolist())
    return sum(right) / len(right)


def similarity(model: EncoderDecoderLM, edits: Edits) -> float:
    """How alike greedy outputs and answers are, from 0 to 1 (difflib, in tokens)."""
    end = (END_OF_TEXT_ID,)
    target = Loaded(
        lm=model, tokenizer=None, eos=end, name="corrections", dtype=torch.float32, config=LAYOUT, start=end
    )
    sources, answers = (
        [[token for token in row if token != END_OF_TEXT_ID] for row in part.tolist()]
        for part in edits.tokens.split((SIZE, SIZE + 1), dim=1)
    )
    outputs = generate(
        target,
        [[*source, END_OF_TEXT_ID] for source in sources],
        drafter="copy",
        num_draft_tokens=NUM_DRAFT_TOKENS,
        max_tokens=SIZE,
        temperature=0,
    )
    pairs = zip(answers, outputs, strict=True)
    alike = [SequenceMatcher(None, answer, list(one.token_ids), autojunk=False).ratio() for answer, one in pairs]
    return sum(alike) / len(alike)


def evaluate(work: Path) -> None:
    """The target as shipped, on texts that chose nothing: right answers, and tokens per step; its card."""
    target = load_target(work / "export", dtype=torch.float32)
    assert isinstance(target.lm, EncoderDecoderLM)
    edits = suite_corrections(NUM_MEASURED, seed=MEASURED_SEED)
    prompts = [edit.prompt for edit in edits]
    figures: dict[str, float] = {}
    for drafter in DRAFTERS:
        outputs = generate(
            target, prompts, drafter=drafter, num_draft_tokens=NUM_DRAFT_TOKENS, max_tokens=2 * SIZE, temperature=0
        )
        pairs = list(zip(edits, outputs, strict=True))
        alike = [SequenceMatcher(None, edit.answer, one.text or "", autojunk=False).ratio() for edit, one in pairs]
        figures["similarity of outputs and answers (difflib)"] = sum(alike) / len(alike)
        figures["share of answers that are right to the last character"] = alike.count(1.0) / len(alike)
        figures[f"tokens per step, {drafter} at k = {NUM_DRAFT_TOKENS}"] = total(outputs).mean_acceptance_length
        texts = [[edit.prompt, edit.answer, output.text] for edit, output in pairs]
        (work / "outputs.json").write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")
    card = CARD.format(
        parameters=sum(parameter.numel() for parameter in target.lm.parameters()),
        vocab=VOCAB_SIZE,
        figures="\n".join(f"| {name} | {value:.2f} |" for name, value in figures.items()),
        count=NUM_MEASURED,
        machine=f"{platform.machine()}, torch {torch.__version__}, float32 from bfloat16 files",
        python=platform.python_version(),
        steps=RUN.schedule.steps,
    )
    (work / "export" / "README.md").write_text(card, encoding="utf-8")
    (work / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


PHASES: dict[str, Callable[[Path], None]] = {"prepare": prepare, "train": train, "evaluate": evaluate}


if __name__ == "__main__":
    run_phases(PHASES, __doc__)
