"""The files beside the weights of an embedded model: tokenizer, generation defaults, model card."""

import json
from pathlib import Path

from corpus import END_OF_TEXT
from tokenizers import Tokenizer

CARD = """---
library_name: transformers
license: psf-2.0
language: code
tags: [paceline, speculative-decoding]
---

# {title}

{role}

{parameters:,} parameters in bfloat16, Llama layout: {layers} layers, hidden size {hidden}, feed-forward {inner},
{heads} query and {kv_heads} key-value heads, byte-level BPE vocabulary of {vocab}, tied output head, context of
{context} tokens.

It knows Python source and nothing else. It exists to show and to test the machinery of speculative decoding on any
machine; it measures no useful model, and its texts are of no use.

## Measured

{figures}

## Data and licence

Trained on the source (without its tests) and the pydoc topics of the Python standard library, version {python}. The
files of each split and their SHA-256 hashes are in the package's `manifest.json`. Python is Copyright (c) Python
Software Foundation, All Rights Reserved, under the PSF License Version 2 (`LICENSE.PSF`); `NOTICE` says what was done
with it. Recipe: `make demo-models` ({steps}).
"""


def write_model_files(folder: Path, raw: dict[str, object], tokenizer: Path, card: str) -> None:
    """Write tokenizer, generation defaults and model card into ``folder``."""
    Tokenizer.from_file(str(tokenizer)).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": raw.get("max_position_embeddings", raw.get("n_positions")),
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(
        folder / "generation_config.json", {"eos_token_id": raw["eos_token_id"], "pad_token_id": raw["pad_token_id"]}
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def make_card(
    raw: dict[str, object], *, title: str, role: str, parameters: int, figures: dict[str, str], python: str, steps: str
) -> str:
    """A model card; ``figures`` are the rows of its table."""
    table = "| what | value |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in figures.items())
    return CARD.format(
        title=title,
        role=role,
        parameters=parameters,
        layers=raw["num_hidden_layers"],
        hidden=raw["hidden_size"],
        inner=raw["intermediate_size"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        vocab=raw["vocab_size"],
        context=raw["max_position_embeddings"],
        figures=table,
        python=python,
        steps=steps,
    )


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
