"""MLP speculators as IBM saves them (fms-extras, MLPSpeculatorPreTrainedModel)."""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import (
    Assumption,
    Exported,
    Format,
    FormatError,
    HeadFiles,
    Imported,
    check_names,
    check_target,
)
from paceline.draft_heads.mlp_speculator import MLPSpeculatorConfig, MLPSpeculatorHead
from paceline.models.native.decoder import DecoderLM

ARCHITECTURE, MODEL_TYPE, PREFIX = "MLPSpeculatorPreTrainedModel", "mlp_speculator", "speculator."
# Theirs -> ours.
PARTS = {"emb": "embeddings", "proj": "projections", "ln": "norms", "head": "lm_heads"}
GUESSED = "not in the files: the default"


@final
class MLPSpeculatorFormat(Format):
    """``speculator.{emb,proj,ln,head}.{i}``; tensors that stages share are there once or for every stage."""

    name: ClassVar[str] = "mlp_speculator"
    title: ClassVar[str] = "MLP speculator (IBM)"
    kinds: ClassVar[frozenset[str]] = frozenset({"mlp_speculator"})

    def matches(self, files: HeadFiles) -> bool:
        if files.speculators_type is not None:
            return False
        if files.architectures:
            return ARCHITECTURE in files.architectures
        return files.value("model_type", str) == MODEL_TYPE or any(
            files.has(*(f"{prefix}{part}.0.weight" for part in ("emb", "proj", "head"))) for prefix in (PREFIX, "")
        )

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        depth, size, vocab = files.required("n_predict", int), target.config.hidden_size, target.vocab_size
        check_target(files, target, hidden_size=files.value("emb_dim", int), vocab_size=files.value("vocab_size", int))
        inner, tied = files.value("inner_dim", int) or size, files.value("tie_weights", bool)
        scaled = files.value("scale_input", bool)
        prefix = PREFIX if any(name.startswith(PREFIX) for name in files.headers) else ""
        shapes: dict[str, tuple[int, ...]] = {}
        for at in range(depth):
            shapes |= {f"{prefix}{part}.{at}.weight": (vocab, inner) for part in ("emb", "head")}
            shapes[f"{prefix}proj.{at}.weight"] = (inner, size if at == 0 else inner)
            shapes |= {f"{prefix}ln.{at}.{one}": (inner,) for one in ("weight", "bias")}
        sources = {name: _source(files, name, bool(tied), prefix) for name in shapes}
        needed = set(sources.values())
        ignored = check_names(
            files,
            {name: shapes[name] for name in shapes if name in needed},
            optional={name: shape for name, shape in shapes.items() if tied and name not in needed},
        )
        state: dict[str, Tensor] = {}
        for name, source in sources.items():
            part, at, one = name.removeprefix(prefix).split(".")
            own = int(at) if not tied else min(int(at), 1) if part == "proj" else 0
            tensor = files.tensor(source)
            if name in files.headers and name != source and not torch.equal(files.tensor(name), tensor):
                raise FormatError(f"{files.path}: tie_weights is true, and {name} is not {source}; correct the config")
            state.setdefault(f"{PARTS[part]}.{own}.{one}", tensor)
        config = MLPSpeculatorConfig(
            depth=depth,
            inner_size=None if inner == size else inner,
            scaled_input=bool(scaled),
            tied=bool(tied),
        )
        return Imported(
            kind="mlp_speculator",
            config=config,
            state=state,
            assumptions=(
                Assumption("depth", depth, "config.json: n_predict"),
                Assumption("inner_size", inner, "config.json: inner_dim"),
                Assumption("tied", bool(tied), GUESSED if tied is None else "config.json: tie_weights"),
                Assumption("scaled_input", bool(scaled), GUESSED if scaled is None else "config.json: scale_input"),
                Assumption("normalized", True, "the format"),
                Assumption("draft_vocab_size", None, "the format: all tokens of the target"),
            ),
            ignored=ignored,
            tied=tuple(name for name, source in sources.items() if name != source),
            target_name=files.value("base_model_name_or_path", str),
            num_draft_tokens=depth,
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        assert isinstance(head, MLPSpeculatorHead)
        options, size = head.options, target.config.hidden_size
        if not options.normalized:
            raise FormatError("normalized=false: MLP speculators of others read the state after the final norm")
        if options.draft_vocab_size is not None:
            raise FormatError("draft_vocab_size: this format has all tokens of the target; train it without")
        theirs = {own: part for part, own in PARTS.items()}
        tensors: dict[str, Tensor] = {}
        for name, tensor in head.own_state().items():
            part, _, rest = name.partition(".")
            tensors[f"{PREFIX}{theirs[part]}.{rest}"] = tensor
        config = {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "vocab_size": target.vocab_size,
            "emb_dim": size,
            "inner_dim": options.inner_size or size,
            "n_predict": options.depth,
            "top_k_tokens_per_head": [max(1, 5 - at) for at in range(options.depth)],
            "n_candidates": 5,
            "tie_weights": options.tied,
            "scale_input": options.scaled_input,
        }
        return Exported(config=config, tensors=tensors)


def _source(files: HeadFiles, name: str, tied: bool, prefix: str) -> str:
    """The tensor that ``name`` is: of those that are tied, the first that is there."""
    part, at, one = name.removeprefix(prefix).split(".")
    if not tied or (part == "proj" and at == "0"):
        return name
    first = 1 if part == "proj" else 0
    pattern = [f"{prefix}{part}.{stage}.{one}" for stage in range(first, files.required("n_predict", int))]
    return next((other for other in pattern if other in files.headers), pattern[0])
