"""A head's directory as its config and the headers of its weights describe it. Reads no weights, and no target."""

from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from paceline.draft_heads.files import WEIGHTS, HeadError, read_head_config


def describe_head(path: str | Path) -> dict[str, object]:
    """What a head is, and whose. Raises ValueError for files that are missing or broken."""
    record, file = read_head_config(path), Path(path) / WEIGHTS
    try:
        with safe_open(file, framework="pt") as opened:
            slices = [opened.get_slice(name) for name in opened.keys()]
            sizes = [prod(one.get_shape()) for one in slices]
            precisions = sorted({str(one.get_dtype()) for one in slices})
    except (OSError, SafetensorError) as error:
        raise HeadError(f"{file} cannot be read ({error}): save the head again") from error
    return {
        "name": str(path),
        "kind": record.kind,
        "of": record.target,
        "of_sizes": record.fingerprint.sizes,
        **record.config.model_dump(mode="json"),
        "parameters": sum(sizes),
        "precision": precisions,
        "size_on_disk": file.stat().st_size,
        "paceline": record.version,
    }
