"""Layers of multi-token prediction that a model's checkpoint holds beside its own, for drafting (2412.19437).

The decoder leaves them out, and ``draft_heads.formats`` reads them. Imports no torch.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from paceline.models.head_signs import tensor_names

COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")  # fields of config.json
PREFIXES = ("mtp.", "model.mtp_layers.")
NUMBERED = re.compile(r"model\.layers\.(\d+)\.")  # behind the model's own, as DeepSeek-V3 has them


def announces_draft_layers(config: Mapping[str, object]) -> bool:
    """Whether a config.json says that there are such layers."""
    return any(isinstance(count := config.get(name), int) and count > 0 for name in COUNTS)


def is_draft_tensor(name: str, config: Mapping[str, object]) -> bool:
    """Whether the tensor ``name`` of a checkpoint with ``config`` is of such a layer."""
    if not announces_draft_layers(config):
        return False
    found, own = NUMBERED.match(name), config.get("num_hidden_layers")
    return name.startswith(PREFIXES) or (found is not None and isinstance(own, int) and int(found[1]) >= own)


def holds_draft_layers(path: str | Path) -> bool:
    """Whether the checkpoint in the directory ``path`` has such layers. Reads its config and names alone."""
    file = Path(path) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and any(is_draft_tensor(name, config) for name in tensor_names(Path(path)))
