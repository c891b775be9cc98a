"""``paceline inspect``: describes a model, what can draft for it, and its memory. Reads no weights."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import (
    AT_LEAST_1,
    MODEL_OR_HEAD_PATH,
    NUM_DRAFT_TOKENS,
    POSITIONAL,
    Backend,
    Device,
    DraftQuantization,
    Dtype,
    Json,
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


@dataclass(frozen=True, slots=True)
class Inspect(Command):
    """Show what a model is, which code runs it, what can draft for it, and the memory it needs.

    Reads only the config, the tokenizer and the headers of the weights, so large models take no longer.

    Examples:

        paceline inspect DIR
        paceline inspect DIR --draft SMALL_DIR --batch-size 16 --context 4096
        paceline inspect DIR --json
    """

    model: Annotated[str, POSITIONAL, MODEL_OR_HEAD_PATH]
    """Directory or Hub id."""
    _: KW_ONLY
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
        from paceline.api.draft_heads import is_head
        from paceline.api.inspection import describe_head

        sections = {"head": describe_head(self.model)} if is_head(self.model) else self._describe_model()
        if self.json:
            print(to_json(sections))
        else:
            _print(sections)
        return EXIT_OK

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
                    f"--draft {self.draft}: a draft head belongs to one model; see which with paceline inspect HEAD"
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


def _print(sections: dict[str, dict[str, object]]) -> None:
    console = Console(highlight=False)
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
