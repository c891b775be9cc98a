"""``paceline export``: a draft head in another project's format, or another project's head in ours."""

import shlex
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import (
    AT_LEAST_1,
    MODEL_OR_HEAD_PATH,
    MODEL_PATH,
    POSITIONAL,
    Device,
    Dtype,
    Json,
    Pickles,
    Revision,
    completing,
)
from paceline.draft_heads.formats import FORMATS
from paceline.models.directory import is_head
from paceline.text.valid_json import to_json

OWN = "paceline"
# Words of a path by which vLLM chooses the method, whatever the files say.
ROUTING = ("eagle-", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator")


@dataclass(frozen=True, slots=True)
class Export(Command):
    """Write a draft head in the format of another project, or another project's head in Paceline's own.

    The head and its target are loaded, so what does not fit is refused, and tensors that are not known are named.
    Nothing is written over.

    Examples:

        paceline export HEAD_DIR --target DIR --format eagle3 --output OUT_DIR
        paceline export MEDUSA_DIR --target DIR --pickles --output OUT_DIR
    """

    head: Annotated[str, POSITIONAL, MODEL_OR_HEAD_PATH]
    """Directory or Hub id of the draft head."""
    _: KW_ONLY
    target: Annotated[str, MODEL_PATH]
    """The model that it was trained for: directory or Hub id."""
    output: Annotated[Path, Parameter(alias="-o")]
    """Directory that is written; it must not exist, or be empty."""
    format: Annotated[str, completing(FORMATS)] = OWN
    """Format to write: paceline, our own, or that of another project."""
    num_draft_tokens: Annotated[int | None, AT_LEAST_1] = None
    """Tokens per step that the files advise; what the head was trained for by default."""
    dtype: Dtype = None
    device: Device = None
    revision: Revision = None
    pickles: Pickles = False
    json: Json = False

    def run(self) -> int:
        """Read, write, and say what was read as what."""
        from paceline.api import load
        from paceline.api.export import check_export, export_head

        check_export(self.format, self.output)
        if self.format == OWN and self.num_draft_tokens is not None:
            raise ValueError(
                f"--num-draft-tokens {self.num_draft_tokens}: files of the format {OWN} advise none; leave it out"
            )
        target = load(self.target, dtype=self.dtype, device=self.device, backend="native", enforce_eager=True)
        read = export_head(
            self.head,
            self.output,
            target=target,
            format=self.format,
            num_draft_tokens=self.num_draft_tokens,
            pickles=self.pickles,
            revision=self.revision,
        )
        before = OWN if read.foreign is None else read.foreign.format.name
        routed = self._routing_word()
        if self.json:
            found = {"kind": read.head.kind, "from": before, "format": self.format, "output": str(self.output)}
            print(to_json({**found, "routing_word": routed}))
            return EXIT_OK
        print(f"{self.output}: a {read.head.kind} head, read as {before} and written as {self.format}")
        if routed is not None:
            print(f"note: vLLM takes a path with {routed!r} for a head of that kind; give method in its configuration")
        target = ["--target", self.target] if is_head(self.output) else []  # else it is a model with draft layers
        print(f"next: {shlex.join(['paceline', 'inspect', str(self.output), *target])}")
        return EXIT_OK

    def _routing_word(self) -> str | None:
        """What in the output's path vLLM would take for the kind of head, where the format is of another project."""
        path = str(self.output).lower()
        return None if self.format == OWN else next((word for word in ROUTING if word in path), None)
