"""Runs llama.cpp's own converter, and lets it pass over tokenizers that it does not know. Imports nothing of paceline.

    python write_gguf.py LLAMA_CPP/convert_hf_to_gguf.py MODEL --outtype bf16 --outfile FILE

The converter recognises a tokenizer by a hash and refuses every other. The benchmark sends and reads token ids, so how
a text would be split never matters: an unknown tokenizer is written as GPT-2's kind. Weights are the converter's.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Patch and run."""
    script = Path(sys.argv[1])
    sys.path[:0] = [str(script.parent), str(script.parent / "gguf-py")]
    text_model: Any = import_module("conversion.base").TextModel
    splitting, pieces = text_model.get_vocab_base_pre, text_model._create_vocab_sentencepiece

    def known_or_default(self: Any, tokenizer: Any) -> str:
        try:
            return splitting(self, tokenizer)
        except NotImplementedError:
            return "gpt-2"

    def pieces_if_there(self: Any) -> Any:
        # It imports the package sentencepiece before it checks that there is a file for it.
        if not (self.dir_model / "tokenizer.model").is_file():
            raise FileNotFoundError("no tokenizer.model")
        return pieces(self)

    text_model.get_vocab_base_pre = known_or_default
    text_model._create_vocab_sentencepiece = pieces_if_there
    sys.argv = sys.argv[1:]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
