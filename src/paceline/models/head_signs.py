"""How a directory with another project's draft head is told from one with a model, without loading anything.

This only says that there is a head: which it is says ``draft_heads.formats``. Imports no torch.
"""

import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

WEIGHTS = ("medusa_lm_head", "hydra_lm_head")  # files of weights that only heads have, *.safetensors or *.pt
KEYS = ("speculators_model_type", "dflash_config", "eagle_config", "medusa_num_heads", "hydra_num_heads")
MODEL_TYPES = ("medusa", "mlp_speculator", "eagle")
ARCHITECTURES = re.compile(
    r"\w+ForCausalLMEagle3?|Eagle3?\w*(ForCausalLM|DraftModel|Speculator)|\w*Eagle3Model|PEagle\w*|MTP(DraftModel|Speculator)"
    r"|\w*(DFlash2?|DSpark|Domino|LiLiCorr|XPress)\w*|Medusa\w*|Hydra\w*|\w*(MLP|LSTM)Speculator\w*"
)
NAMES = re.compile(  # of tensors, all without the "model." of whole models
    r"midlayer\.|\d+\.\d+\.(linear\.)?weight$|hydra_mlp\.|speculator\.(emb|proj|head|ln)\.0\.|markov_head\."
    r"|candidate_selector\.|refiner_head\.|mtp_layers\.0\.|blocks\.0\.layers\.0\.|medusa_heads\.0\.|parallel_draft_heads\."
)
FUSED, LAYERS = "fc.weight", "layers.0."  # EAGLE: a projection beside layers
PICKLED_NAME = re.compile(rb"[A-Za-z0-9_.]+\.(?:weight|bias)")
HEADER_LIMIT = 100_000_000  # bytes, as the safetensors library has it


def shows_head(path: Path, config: Mapping[str, object] | None) -> bool:
    """Whether the directory ``path`` with ``config`` (None: it has none) holds another project's draft head."""
    if any((path / f"{name}{end}").is_file() for name in WEIGHTS for end in (".safetensors", ".pt")):
        return True
    if config is None:
        return False
    if any(config.get(key) is not None for key in KEYS) or config.get("model_type") in MODEL_TYPES:
        return True
    named = config.get("architectures")
    architectures = map(str, cast("list[object]", named)) if isinstance(named, list) else ()
    return any(ARCHITECTURES.fullmatch(one) for one in architectures) or _of_head(tensor_names(path))


def tensor_names(path: Path) -> Iterable[str]:
    """The names of the tensors in a directory's safetensors, else in its pickle, which is not run; () for neither."""
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if not index.is_file() and not single.is_file():
        return _pickled_names(path / "pytorch_model.bin")
    try:
        if index.is_file():
            return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        with single.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return list(json.loads(file.read(length))) if length <= HEADER_LIMIT else ()
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return ()


def _pickled_names(file: Path) -> Iterable[str]:
    """Words in the pickle of a file that torch saved that may name its tensors."""
    try:
        with zipfile.ZipFile(file) as archive:
            inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return [word.decode() for word in PICKLED_NAME.findall(archive.read(inner))]
    except (OSError, StopIteration, zipfile.BadZipFile):
        return ()


def _of_head(names: Iterable[str]) -> bool:
    every = list(names)
    fused = FUSED in every and any(name.startswith(LAYERS) for name in every)
    return fused or any(NAMES.match(name) for name in every)
