"""A checkpoint as its config, its tokenizer and the headers of its weights describe it. Reads no weights."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from paceline.api.loading import DTYPES, Loaded, check_native, is_native
from paceline.models import hub, lazy_adapter
from paceline.models.base import LM
from paceline.models.directory import ModelError, find_weights, is_hub_id, read_config
from paceline.models.loading import FLOATS, configure, dtype_name
from paceline.models.loading import build_on_meta as outline_native
from paceline.models.native.decoder import DecoderLM
from paceline.text.special_tokens import read_eos
from paceline.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint: ``loaded`` has a model of the right shapes without weights, which ``backend`` would run."""

    loaded: Loaded
    backend: str  # "native" or "hf"
    decoder: DecoderLM | None  # the model where the backend is "native"
    facts: Mapping[str, object]  # sizes by their names
    num_parameters: int
    weight_bytes: int  # in memory, in the precision that it would be loaded with
    num_bytes: int  # of the weight files
    precisions: tuple[str, ...]  # of the stored tensors, the most frequent first

    @property
    def lm(self) -> LM:
        return self.loaded.lm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """What a backend makes of a config."""

    lm: LM
    decoder: DecoderLM | None
    dtype: torch.dtype
    facts: Mapping[str, object]
    num_parameters: int
    weight_bytes: int


def read_checkpoint(
    model: str,
    *,
    dtype: torch.dtype | None,
    revision: str | None,
    backend: str = "auto",
    trust_remote_code: bool = False,
    quantization: str | None = None,
) -> Checkpoint:
    """A checkpoint by its headers, with ``quantization`` as it would be in memory.

    Raises ModelError for one that ``paceline.load`` would plainly refuse, ValueError where integers of a model that is
    not native are requested, whose sizes only torchao knows.
    """
    if revision is not None and not is_hub_id(model):
        raise ModelError(f"--revision {revision}: {model} is a local directory; only models of the Hub have revisions")
    folder = hub.fetch(model, revision, code=trust_remote_code) if is_hub_id(model) else Path(model)
    config = read_config(folder)
    native = is_native(backend, config)
    if native:
        check_native(config, folder, backend)
    files = find_weights(folder)
    precisions, num_bytes = _read_precisions(files), sum(file.stat().st_size for file in files)
    if quantization is not None and not native:
        raise ValueError(f"quantization={quantization!r}: what it takes is known of native models; leave it out here")
    if native:
        found = _outline_native(config, folder, dtype, precisions, quantization)
    else:
        found = _outline_adapted(folder, dtype, precisions, trust_remote_code)
    packed = config.get("quantization_config") is not None
    return Checkpoint(
        loaded=Loaded(
            lm=found.lm,
            tokenizer=load_tokenizer(folder, trust_remote_code=trust_remote_code),
            eos=read_eos(folder),
            name=model,
            dtype=found.dtype,
            config=config,
        ),
        backend="native" if native else "hf",
        decoder=found.decoder,
        facts=found.facts,
        num_parameters=found.num_parameters,
        weight_bytes=num_bytes if packed else found.weight_bytes,
        num_bytes=num_bytes,
        precisions=precisions,
    )


def _read_precisions(files: list[Path]) -> tuple[str, ...]:
    stored = Counter[str]()
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                stored.update(opened.get_slice(name).get_dtype() for name in opened.keys())
        except SafetensorError as error:
            raise ModelError(f"{file} is not a safetensors file ({error})") from error
    return tuple(dtype_name(FLOATS[name]) if name in FLOATS else name for name, _ in stored.most_common())


def _outline_native(
    config: dict[str, object],
    folder: Path,
    dtype: torch.dtype | None,
    precisions: tuple[str, ...],
    quantization: str | None,
) -> _Model:
    shape = configure(config, folder)
    chosen = dtype or DTYPES.get(precisions[0])
    if chosen is None:
        raise ModelError(f"{folder}: weights of {precisions[0]}: quantized weights are not supported")
    lm = outline_native(shape, dtype=chosen, quantization=quantization)
    plain = lm if quantization is None else outline_native(shape, dtype=chosen)
    return _Model(
        lm=lm,
        decoder=lm,
        dtype=chosen,
        facts={
            "layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "heads": shape.num_heads,
            "kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "tied_head": shape.tied_head,
        },
        num_parameters=sum(parameter.numel() for parameter in plain.parameters()),
        weight_bytes=sum(parameter.nbytes for parameter in lm.parameters()),
    )


def _outline_adapted(
    folder: Path, dtype: torch.dtype | None, precisions: tuple[str, ...], trust_remote_code: bool
) -> _Model:
    stored = next((DTYPES[name] for name in precisions if name in DTYPES), torch.float32)
    lm = lazy_adapter.meta.build_on_meta(folder, dtype=dtype or stored, trust_remote_code=trust_remote_code)
    config, shape = lm.model.config, lm.info.shape
    fields = config.to_dict()
    spelled = {name: config.attribute_map.get(name, name) for name in ("hidden_size", "num_attention_heads")}
    return _Model(
        lm=lm,
        decoder=None,
        dtype=lm.dtype,
        facts={
            "layers": lm.num_layers,
            "hidden_size": fields.get(spelled["hidden_size"]),
            "heads": fields.get(spelled["num_attention_heads"]),
            "kv_heads": shape.num_heads,
            "head_dim": shape.head_dim,
            "tied_head": bool(fields.get("tie_word_embeddings")),
        },
        num_parameters=sum(parameter.numel() for parameter in lm.model.parameters()),
        weight_bytes=sum(parameter.numel() for parameter in lm.model.parameters()) * lm.dtype.itemsize,
    )
