"""``paceline convert``: the model of a GGUF file as a Hugging Face directory."""

import shlex
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import POSITIONAL, Json, one_of
from paceline.text.valid_json import to_json

WRITTEN = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Convert(Command):
    """Write the model of a GGUF file as a directory that Paceline and transformers read.

    Weights, configuration, tokenizer, chat template and end-of-text tokens are the file's. What is quantised is
    dequantised. Of a split file give any part. Nothing is written over. Needs the extra gguf.

    Examples:

        paceline convert model-Q4_K_M.gguf --output DIR
        paceline convert model-00001-of-00003.gguf --dtype float32 --output DIR
    """

    file: Annotated[Path, POSITIONAL]
    """The GGUF file."""
    _: KW_ONLY
    output: Annotated[Path, Parameter(alias="-o")]
    """Directory that is written; it must not exist, or be empty."""
    dtype: Annotated[str | None, one_of(WRITTEN)] = None
    """float32, bfloat16 or float16; as in the file by default, and bfloat16 for a quantised one."""
    tokenizer: Path | None = None
    """Directory whose tokenizer is taken in place of the file's vocabulary."""
    json: Json = False

    def run(self) -> int:
        """Convert, and say what was written."""
        import torch
        from rich.console import Console

        from paceline.api.convert import convert_gguf
        from paceline.cli.progress import make_progress
        from paceline.models.loading import dtype_name

        with make_progress(Console(stderr=True)) as bar:
            task = bar.add_task("tensors", total=None)
            converted = convert_gguf(
                self.file,
                self.output,
                dtype=None if self.dtype is None else getattr(torch, self.dtype),
                tokenizer=self.tokenizer,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        dtype, kinds = dtype_name(converted.dtype), ", ".join(converted.kinds)
        if self.json:
            found = {
                "output": str(self.output),
                "model_type": converted.model_type,
                "from": list(converted.kinds),
                "dtype": dtype,
                "parameters": converted.num_parameters,
                "tokens": converted.vocabulary_size,
                "chat_template": converted.has_chat_template,
            }
            print(to_json(found))
            return EXIT_OK
        template = "a chat template" if converted.has_chat_template else "no chat template"
        print(
            f"{self.output}: {converted.model_type}, {converted.num_parameters:,} parameters of {kinds} written as "
            f"{dtype}; {converted.vocabulary_size:,} tokens, {template}"
        )
        print(f"next: {shlex.join(['paceline', 'generate', '--model', str(self.output), 'PROMPT'])}")
        return EXIT_OK
