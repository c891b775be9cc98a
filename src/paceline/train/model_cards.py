"""The model cards of a run: how to use it, what was measured, the data and the configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from paceline import __version__
from paceline.train.config import TrainConfig
from paceline.train.config_file import dump
from paceline.train.data.document_list import DOCUMENTS_FILE
from paceline.train.data.manifest import Manifest
from paceline.train.loop.trainer import Score
from paceline.train.outcome import TARGET, target_directory, usage_of

TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ role }}

```console
$ {{ usage.command }}
```

```python
{{ usage.python }}```

## Figures

{{ measured }}

## Data

{{ data }}

## Recipe

Trained by `paceline train` {{ version }}{{ commit }} with this configuration:

```yaml
{{ recipe }}
```
{{ lengthened }}"""
NUM_FILES = 20  # data files that a card lists
TARGET_ROLE = "A language model{origin}."
JOINT_ROLE = (
    "A language model of its own, trained on from `{origin}` together with its draft heads, in two stages (Medusa-2, "
    "2401.10774). Its text is not that of `{origin}`: drafting with its heads is lossless with respect to this model."
)
DRAFT_ROLE = "Drafts for `{target}`, and for no other model{figure}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a model card says of a run."""

    config: TrainConfig
    score: Score
    manifest: Manifest
    commit: str | None
    lengthened: Sequence[int] = ()  # steps after which it was given more of them


def model_card(record: RunRecord, *, name: str) -> str:
    """The card of the directory ``name`` of a run. A head or draft model names its target as the base model."""
    drafts, trained = name != TARGET, record.config.target.is_trained
    base = None if drafts and trained else record.config.target.path
    tags = ["paceline", *(["speculative-decoding"] if drafts else [])]
    card = ModelCard.from_template(
        ModelCardData(
            library_name="paceline", license=record.config.card.license, base_model=_as_hub_id(base), tags=tags
        ),
        template_str=TEMPLATE,
        name=name,
        role=_role(record, name),
        usage=usage_of(record.config, name),
        measured=_measured(record, name),
        data="\n\n".join(filter(None, (record.config.card.note, _data(record.manifest)))),
        version=__version__,
        commit=f", of commit {record.commit}," if record.commit else "",
        recipe=dump(record.config).strip(),
        lengthened=_lengthened(record),
    )
    return str(card)


def _role(record: RunRecord, name: str) -> str:
    """What the directory is, with its best figure."""
    if name == TARGET:
        origin = record.config.target.path
        if record.config.target.joint is not None:
            return JOINT_ROLE.format(origin=origin)
        return TARGET_ROLE.format(origin=" trained from scratch" if origin is None else f" trained on from `{origin}`")
    metrics, key = record.score.metrics, f"validation.{name}.greedy"
    figure = ""
    if f"{key}.tokens_per_step" in metrics:
        length, low, high = (metrics[f"{key}.{one}"] for one in ("tokens_per_step", "low", "high"))
        figure = f": {length:.2f} tokens per step, greedy, at validation (95 % interval {low:.2f} to {high:.2f})"
    return DRAFT_ROLE.format(target=target_directory(record.config), figure=figure)


def _lengthened(record: RunRecord) -> str:
    if not record.lengthened:
        return ""
    steps = ", ".join(map(str, record.lengthened))
    return f"\nThe run was lengthened after step {steps}; until then its learning rate followed a shorter schedule.\n"


def _as_hub_id(target: str | None) -> str | None:
    """None for a local folder, which cannot be a base model on the Hub."""
    return None if target is None or Path(target).exists() else target


def _measured(record: RunRecord, name: str) -> str:
    """A table of the results of the best validation for ``name``."""
    section, metrics = record.config.validation, record.score.metrics
    rows = []
    if "validation.loss" in metrics:
        rows.append(("held-out loss of the target, nats per token", f"{metrics['validation.loss']:.3f}"))
    for sampling in _samplings(metrics, name):
        rows.extend(_acceptance(metrics, f"validation.{name}.{sampling}", sampling, section.k))
    if not rows:
        return "Nothing was measured."
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    measured = (
        f"{section.prompts} held-out sources, each with an output of {section.tokens} tokens at most"
        if record.config.data.is_paired
        else f"prefixes of {section.prompts} held-out rows ({section.prompt_tokens} tokens each), continued by "
        f"{section.tokens} tokens"
    )
    return (
        f"On {measured}, with the decoder that serves. Looping outputs, which are easy for every drafter, "
        f"are left out.\n\n| what | value |\n|---|---|\n{table}"
    )


def _samplings(metrics: Mapping[str, float], name: str) -> list[str]:
    start, end = f"validation.{name}.", ".num_texts"
    return [key.removeprefix(start).removesuffix(end) for key in metrics if key.startswith(start) and key.endswith(end)]


def _acceptance(metrics: Mapping[str, float], key: str, sampling: str, k: int) -> list[tuple[str, str]]:
    mode = "greedy" if sampling == "greedy" else f"at temperature {sampling.removeprefix('t')}"
    num_outputs, num_looping = (int(metrics[f"{key}.{one}"]) for one in ("num_texts", "num_looping"))
    if not num_outputs:
        return [(f"outputs that do not loop, {mode}", f"none of {num_looping}")]
    length, low, high = (metrics[f"{key}.{one}"] for one in ("tokens_per_step", "low", "high"))
    shares = ", ".join(f"{metrics[f'{key}.position.{at}']:.2f}" for at in range(1, k + 1))
    return [
        (f"tokens per step, {mode}, k = {k} (95 % interval)", f"{length:.2f} ({low:.2f} to {high:.2f})"),
        (f"acceptance rate, {mode}, by position", shares),
        (f"outputs measured, {mode} (looping ones left out)", f"{num_outputs} ({num_looping})"),
    ]


def _data(manifest: Manifest) -> str:
    """The size of each split, and its files with the first digits of their hashes."""
    files, lines = manifest.files, []
    for split in sorted({file.split for file in files}):
        in_split = [file for file in files if file.split == split]
        tokens = sum(file.num_tokens for file in in_split)
        lines.append(f"- {split}: {tokens:,} tokens of {sum(file.num_documents for file in in_split):,} documents")
    shown = files[:NUM_FILES]
    lines.extend(f"- `{file.name}` ({file.split}, SHA-256 {file.sha256[:16]}…)" for file in shown)
    more = [f"- and {len(files) - len(shown)} more files"] if len(files) > len(shown) else []
    return "\n".join([*lines, *more, f"- every document with its hash: `../{DOCUMENTS_FILE}`, where it was trained"])
