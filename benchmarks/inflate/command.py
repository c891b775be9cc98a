"""The command ``inflate``: a target of any size from a trained one, written as a Hugging Face directory."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from benchmarks.inflate import model as random_basis
from benchmarks.inflate import repeated
from benchmarks.inflate.vocabulary import widen_vocabulary
from benchmarks.inflate.widths import count_parameters
from benchmarks.study import option
from paceline.models.draft_vocab import FILE as DRAFT_VOCAB
from paceline.models.loading import ModelError, configure, dtype_name, load, read_config, save
from paceline.models.native.decoder import DecoderLM

COMPANIONS = ("tokenizer*", "generation_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json")
COMPANIONS += ("merges.txt", "LICENSE*", "NOTICE*", "preprocessor_config.json", "processor_config.json", DRAFT_VOCAB)
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9}
DTYPES = {dtype_name(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}

CARD = """---
library_name: transformers
tags: [paceline, inflated]
---

# {title}

Inflated from `{name}`: costs are those of the large model, acceptance is real.

{before:,} parameters have become {after:,}: hidden size {hidden}, feed-forward {ffn}, {heads} query and {kv_heads}
key-value heads, {vocab:,} token ids, weights in {dtype}. {ids}It computes
what the small model computes, up to rounding. It knows no more, and its texts are no better. Use it to time decoding,
and for nothing else. The licence is that of `{name}`. Made by `python -m benchmarks inflate`.
"""

IDS = """Of the ids only {known:,} are the tokenizer's; the others never have the largest logit, but are drawn at a
temperature above 0: decode greedily. """


def write(
    lm: DecoderLM, folder: Path, *, source: Path, name: str | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write ``lm``, inflated from the checkpoint directory ``source``, as a Hugging Face directory with its tokenizer.

    Its card and ``paceline_inflated_from`` in its config.json say what it is; ``name`` is what they call the source, by
    default its path. ``dtype`` None keeps the precision of ``lm``.

    Raises ModelError for a folder that holds a model already, and for a source of another architecture.
    """
    if (folder / "config.json").exists():
        raise ModelError(f"{folder} holds a model already; remove it or give another folder")
    shape, dtype, name = lm.config, dtype or lm.dtype, name or str(source)
    raw = read_config(source)
    before = configure(raw, source)
    raw = {field: value for field, value in raw.items() if field not in ("dtype", "_name_or_path")}
    fields = random_basis.fields_of if shape.cross is None else repeated.fields_of
    raw |= fields(shape) | {"torch_dtype": dtype_name(dtype), "paceline_inflated_from": name}
    if configure(raw, source) != shape:
        raise ModelError(
            f"{source}: the inflated model's layers are not those of this one; give the directory it is of"
        )
    save(lm, raw, folder, dtype=dtype)
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    card = CARD.format(
        title=f"{Path(name).name}, inflated",
        name=name,
        before=count_parameters(before),
        after=count_parameters(shape),
        hidden=shape.hidden_size,
        ffn=shape.ffn_size,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        vocab=shape.vocab_size,
        dtype=dtype_name(dtype),
        ids=IDS.format(known=before.vocab_size) if shape.vocab_size > before.vocab_size else "",
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflate:
    """A target of any size from a trained one, its function kept: costs of a large model, acceptance of a real pair."""

    model: Annotated[Path, option("Directory of the trained model, of the layout of Llama or Whisper.")]
    output: Annotated[Path, option("Directory to write, which must hold no model.")]
    parameters: Annotated[
        str | None, option("How many the result has, such as 200M or 1.5B; within 5 %. Widths stay without it.")
    ] = None
    vocab: Annotated[
        int | None, option("Token ids of the result, the new ones never chosen; widen the draft alike.")
    ] = None
    name: Annotated[str | None, option("What the card calls the trained model; its directory by default.")] = None
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "float64"], option("Of the weights.")] = "float32"
    seed: Annotated[int, option("Of the random matrices.")] = 0

    def run(self) -> int:
        """Inflate and write."""
        if self.parameters is None and self.vocab is None:
            raise ValueError("neither --parameters nor --vocab: give one of them, or both")
        number = None if self.parameters is None else read_count(self.parameters)
        if (self.output / "config.json").exists():
            raise ModelError(f"{self.output} holds a model already; remove it or give another folder")
        lm = load(self.model, dtype=DTYPES[self.dtype])
        if self.vocab is not None and lm.config.cross is not None:
            raise ValueError("--vocab: new ids come last, where an encoder-decoder's timestamps are; leave it out")
        large = lm if self.vocab is None else widen_vocabulary(lm, self.vocab, seed=self.seed)
        if number is not None:
            if lm.config.cross is not None:
                large = repeated.repeat_to(large, num_parameters=number)
            else:
                large = random_basis.inflate_to(large, num_parameters=number, seed=self.seed, progress=_print_progress)
        write(large, self.output, source=self.model, name=self.name)
        shape = large.config
        sizes = f"{count_parameters(shape):,} parameters in {self.dtype}, from {count_parameters(lm.config):,}"
        heads = f"{shape.num_heads} query and {shape.num_kv_heads} key-value heads"
        ids = "" if self.vocab is None else f", {shape.vocab_size:,} token ids"
        widths = f"hidden size {shape.hidden_size}, feed-forward {shape.ffn_size}, {heads}{ids}"
        print(f"{self.output}: {sizes}; {widths}")
        return 0


def _print_progress(done: int, total: int) -> None:
    print(f"\rlayer {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def read_count(text: str) -> int:
    """``1.5M`` is 1500000. Raises ValueError for what is no count."""
    digits, factor = (text[:-1], SUFFIXES[text[-1].upper()]) if text[-1:].upper() in SUFFIXES else (text, 1)
    try:
        number = round(float(digits) * factor)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise ValueError(f"--parameters {text}: give a number such as 200M, 1.5B or 7500000")
    return number
