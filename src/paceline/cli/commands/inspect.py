"""``paceline inspect``: whether a model runs natively, what can draft for it, then all about it. Reads no weights."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import (
    AT_LEAST_1,
    MODEL_OR_HEAD_PATH,
    MODEL_PATH,
    NUM_DRAFT_TOKENS,
    POSITIONAL,
    Backend,
    Device,
    DraftQuantization,
    Dtype,
    Json,
    Pickles,
    Quantization,
    Revision,
    TrustRemoteCode,
    at_least,
    check_draft_quantization,
)
from paceline.text.valid_json import to_json

GIB = 1 << 30
REGISTERED = ("drafters", "verifiers")  # sections whose names users type
RUNNERS = {
    "native": "native: Paceline's own code",
    "hf": "hf: transformers' own code, which is tried on drafts when it is loaded",
}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Inspect(Command):
    """Show whether a model runs natively, what can draft for it and what to type next, then its sizes and memory.

    Reads only the config, the tokenizer and the headers of the weights, so large models take no longer. Of a draft
    head, ours or another project's, it shows the format; with --target, for which both are loaded, everything that was
    assumed to read it. With --target a model with layers of multi-token prediction is such a head too.

    Examples:

        paceline inspect DIR
        paceline inspect DIR --draft SMALL_DIR --batch-size 16 --context 4096
        paceline inspect HEAD_DIR --target DIR
        paceline inspect DIR --json
    """

    model: Annotated[str, POSITIONAL, MODEL_OR_HEAD_PATH]
    """Directory or Hub id, of a model or of a draft head."""
    _: KW_ONLY
    target: Annotated[str | None, MODEL_PATH] = None
    """The model that the inspected draft head is for: load both, and show what the head is taken to be."""
    pickles: Pickles = False
    draft: Annotated[str | None, MODEL_OR_HEAD_PATH] = None
    """Check whether this model can draft for it."""
    batch_size: Annotated[int, AT_LEAST_1] = 8
    """Memory for this many sequences per batch."""
    context: int | None = None
    """Memory for sequences of this many tokens; the model's context, at most 2048, by default."""
    num_draft_tokens: Annotated[int | None, at_least(0)] = None
    """Tokens drafted per step; 5 by default."""
    dtype: Dtype = None
    quantization: Quantization = None
    draft_quantization: DraftQuantization = None
    device: Device = None
    backend: Backend = "auto"
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    json: Json = False

    def run(self) -> int:
        """Describe a model or a draft head."""
        from paceline.api.draft_heads import find_head, find_layers

        head = find_head(self.model, self.revision, pickles=self.pickles)
        if head is None and self.target is not None:
            head = find_layers(self.model, self.revision)
        if head is not None:
            facts = self._describe_head(head)
            sections = {"conclusion": self._conclude_head(facts["head"]), **facts}
        else:
            for option, given in (("--target", self.target), ("--pickles", self.pickles)):
                if given:
                    raise ValueError(f"{option}: {self.model} is no draft head, to which it belongs; leave it out")
            facts = self._describe_model()
            sections = {"conclusion": self._conclude(facts), **facts}
        if self.json:
            print(to_json(sections))
        else:
            _print(sections)
        return EXIT_OK

    def _describe_head(self, path: Path) -> dict[str, dict[str, object]]:
        from paceline.api import load
        from paceline.api.head_inspection import describe_head

        if self.draft is not None:
            raise ValueError(f"--draft {self.draft}: {self.model} is a draft head, which nothing drafts for")
        target = None
        if self.target is not None:
            target = load(
                self.target, dtype=self.dtype, device=self.device, backend=self.backend, quantization=self.quantization
            )
        return describe_head(path, name=self.model, target=target, pickles=self.pickles)

    def _describe_model(self) -> dict[str, dict[str, object]]:
        from paceline.api.checkpoint import read_checkpoint
        from paceline.api.draft_heads import is_head
        from paceline.api.inspection import describe_checkpoint
        from paceline.api.loading import find_device, find_dtype

        check_draft_quantization(self.draft_quantization, draft=self.draft)
        dtype, device = find_dtype(self.dtype), find_device(self.device)
        found = read_checkpoint(
            self.model,
            dtype=dtype,
            revision=self.revision,
            backend=self.backend,
            trust_remote_code=self.trust_remote_code,
            quantization=self.quantization,
        )
        draft = None
        if self.draft is not None:
            if is_head(self.draft):
                raise ValueError(
                    f"--draft {self.draft}: a draft head drafts for one model alone: paceline inspect "
                    f"{shlex.quote(self.draft)} says for which"
                )
            draft = read_checkpoint(
                self.draft, dtype=found.loaded.dtype, revision=None, quantization=self.draft_quantization
            )
        return describe_checkpoint(
            found,
            draft,
            device=device,
            batch_size=self.batch_size,
            context=self.context,
            num_draft_tokens=NUM_DRAFT_TOKENS if self.num_draft_tokens is None else self.num_draft_tokens,
        )

    def _conclude(self, sections: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
        """What a user wants to know first: sentences, and the command to go on with."""
        from paceline.api.usage import generate_command

        memory, draft = sections["memory"], sections.get("draft")
        said = [f"{self.model} {_runs(sections)}."]
        origin = sections["model"].get("tuned_from")
        if origin is not None:
            said.append(
                f"It is a model of its own: it was trained on from {origin} together with its draft heads, and "
                f"drafting gives its text, not that of {origin}."
            )
        if memory["rows_that_fit"] == 0:
            weights, free = (_spell(name, memory[name]) for name in ("weights", "free"))
            said.append(f"It does not fit into memory: {weights} of weights, and {free} free.")
        drafting = {"--drafter": "ngram"}
        if draft is None:
            said.append("ngram can draft for it without a model; --draft DIR checks a draft model.")
        elif draft["fits"]:
            said.append(f"{self.draft} can draft for it, with {draft['relative_size']:.0%} as many parameters.")
            said += _talks(draft)
            drafting = {"--draft": self.draft, "--draft-quantization": self.draft_quantization}
        else:
            said.append(f"{self.draft} cannot draft for it: {_spell('reasons', draft['reasons'])}.")
        tokenizer = sections["tokenizer"]["tokens"] is not None
        if not tokenizer:
            said.append('It has no tokenizer: prompts are lines of {"tokens": [...]}.')
        loading = {  # as it was inspected
            "--dtype": self.dtype,
            "--quantization": self.quantization,
            "--device": self.device,
            "--backend": None if self.backend == "auto" else self.backend,
            "--revision": self.revision,
        }
        flags = ("--trust-remote-code",) if self.trust_remote_code else ()
        command = generate_command(self.model, options={**drafting, **loading}, flags=flags, tokenizer=tokenizer)
        return {"says": " ".join(said), "next": command}

    def _conclude_head(self, facts: Mapping[str, object]) -> dict[str, object]:
        """For which model a head drafts, and the command that uses it."""
        from paceline.api.usage import generate_command

        target = self.target or (None if facts["of"] is None else str(facts["of"]))
        found = target is not None and (Path(target).is_dir() or HUB_ID.fullmatch(target))
        model = target if target is not None and found else "MODEL"
        kind = facts.get("kind", facts.get("format"))
        said = f"{self.model} is a {kind} head, which drafts for {target or 'one model, which its files do not name,'}"
        says = f"{said} and for no other model." if target else f"{said} alone."
        if "kind" not in facts:  # it was not loaded
            return {"says": says, "next": shlex.join(["paceline", "inspect", self.model, "--target", model])}
        return {"says": says, "next": generate_command(model, draft=self.model)}


def _runs(sections: Mapping[str, Mapping[str, object]]) -> str:
    """By which code, where, and by which instruction set."""
    code = "runs natively, by Paceline's own code"
    if sections["model"]["backend"] == "hf":
        code = "runs by transformers' own code"
    kernel = sections.get("kernel")
    if kernel is None:
        return f"{code}, on {sections['memory']['device']}"
    how = f"kernel for {kernel['instruction_set']}" if kernel["available"] else "plain torch operations"
    return f"{code}, on the CPU with {'the ' if kernel['available'] else ''}{how}"


def _talks(draft: Mapping[str, object]) -> list[str]:
    """How a draft of another tokenizer drafts; nothing for one of the same."""
    if draft["drafts_by"] == "same":
        return []
    how = {
        "tli": "it drafts the tokens that both have (TLI)",
        "slem": "drafts are exchanged as text (SLEM)",
    }[str(draft["drafts_by"])]
    share, of_text = draft["share_of_targets_tokens"], draft["share_of_a_text"]
    return [
        f"Its tokenizer is another one: {how}, {share:.0%} of the vocabulary and {of_text:.0%} of an ordinary text."
    ]


def _print(sections: dict[str, dict[str, object]]) -> None:
    console = Console(highlight=False)
    conclusion = sections.pop("conclusion")
    console.print(Text(str(conclusion["says"]), "bold"), soft_wrap=True)
    console.print(Text(f"next: {conclusion['next']}"), soft_wrap=True)
    for title, facts in sections.items():
        console.print(Text(title, "bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            if value is not None:
                table.add_row(
                    Text(name if title in REGISTERED else name.replace("_", " "), "dim"), Text(_spell(name, value))
                )
        console.print(table)


def _spell(name: str, value: object) -> str:
    """A value in human-readable form."""
    if isinstance(value, dict):
        assumed = cast("dict[str, object]", value)
        return f"{_spell(name, assumed['value'])}   ({assumed['from']})"
    if value is None:
        return "none"
    if name == "backend":
        return RUNNERS[str(value)]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name in ("weights", "cache", "free", "size_on_disk"):
        return f"{value / GIB:.2f} GiB" if value >= GIB / 10 else f"{value / (1 << 20):.1f} MiB"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
