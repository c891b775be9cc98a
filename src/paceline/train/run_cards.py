"""The model card of what a run has trained, every number of it measured. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from paceline import __version__
from paceline.train.config import TrainConfig, dump
from paceline.train.data.manifest import Manifest
from paceline.train.trainer import Score

TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ role }}

## Measured

{{ measured }}

## Data

{{ data }}

## Recipe

Trained by `paceline train` {{ version }}{{ commit }} with this configuration:

```yaml
{{ recipe }}
```
"""
NUM_FILES = 20  # that a card names
LEARNED = "A language model trained from its configuration."
DRAFTS = "Drafts for `{target}`, and for no other model: give its directory as the drafter."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a card tells of a run."""

    config: TrainConfig
    score: Score
    manifest: Manifest
    commit: str | None


def run_card(recipe: Recipe, *, name: str, target: str) -> str:
    """The card of the part ``name`` of a run; a head or draft names its ``target`` as the base model."""
    drafts = name != "target"
    base = target if drafts and recipe.config.target.path is not None else None
    tags = ["paceline", *(["speculative-decoding"] if drafts else [])]
    card = ModelCard.from_template(
        ModelCardData(
            library_name="paceline", license=recipe.config.card.license, base_model=_as_hub_id(base), tags=tags
        ),
        template_str=TEMPLATE,
        name=name,
        role=DRAFTS.format(target=target) if drafts else LEARNED,
        measured=_measured(recipe, name),
        data="\n\n".join(filter(None, (recipe.config.card.note, _data(recipe.manifest)))),
        version=__version__,
        commit=f", of commit {recipe.commit}," if recipe.commit else "",
        recipe=dump(recipe.config).strip(),
    )
    return str(card)


def _as_hub_id(target: str | None) -> str | None:
    """A folder of this machine is nobody's base model."""
    return None if target is None or Path(target).exists() else target


def _measured(recipe: Recipe, name: str) -> str:
    """A table of all that the last kept validation found about ``name``."""
    section, measures = recipe.config.validation, recipe.score.measures
    rows = []
    if "validation.loss" in measures:
        rows.append(("held-out loss of the target, nats per token", f"{measures['validation.loss']:.3f}"))
    for sampling in _samplings(measures, name):
        rows.extend(_acceptance(measures, f"validation.{name}.{sampling}", sampling, section.k))
    if not rows:
        return "Nothing was measured."
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    return (
        f"On beginnings of {section.prompts} held-out rows ({section.prompt_tokens} tokens each), continued by "
        f"{section.tokens} tokens through the decoder that serves. Looping texts, which flatter every drafter, are "
        f"left out.\n\n| what | value |\n|---|---|\n{table}"
    )


def _samplings(measures: Mapping[str, float], name: str) -> list[str]:
    start, end = f"validation.{name}.", ".num_texts"
    return [
        key.removeprefix(start).removesuffix(end) for key in measures if key.startswith(start) and key.endswith(end)
    ]


def _acceptance(measures: Mapping[str, float], key: str, sampling: str, k: int) -> list[tuple[str, str]]:
    how = "greedy" if sampling == "greedy" else f"at temperature {sampling.removeprefix('t')}"
    texts, looping = (int(measures[f"{key}.{one}"]) for one in ("num_texts", "num_looping"))
    if not texts:
        return [(f"texts that do not loop, {how}", f"none of {looping}")]
    length, low, high = (measures[f"{key}.{one}"] for one in ("tokens_per_step", "low", "high"))
    shares = ", ".join(f"{measures[f'{key}.position.{at}']:.2f}" for at in range(1, k + 1))
    return [
        (f"tokens per step, {how}, k = {k} (95 % interval)", f"{length:.2f} ({low:.2f} to {high:.2f})"),
        (f"share of drafted tokens kept, {how}, by position", shares),
        (f"texts measured, {how} (looping ones left out)", f"{texts} ({looping})"),
    ]


def _data(manifest: Manifest) -> str:
    """What each split has, and files by name with the beginning of their hashes."""
    files, lines = manifest.files, []
    for split in sorted({file.split for file in files}):
        own = [file for file in files if file.split == split]
        tokens = sum(file.num_tokens for file in own)
        lines.append(f"- {split}: {tokens:,} tokens of {sum(file.num_documents for file in own):,} documents")
    shown = files[:NUM_FILES]
    lines.extend(f"- `{file.name}` ({file.split}, SHA-256 {file.sha256[:16]}…)" for file in shown)
    more = [f"- and {len(files) - len(shown)} more files"] if len(files) > len(shown) else []
    return "\n".join([*lines, *more])
