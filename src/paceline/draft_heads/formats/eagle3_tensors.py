"""What the formats of EAGLE-3 heads have in common: the tensors, and how config.json is read."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.draft_heads.formats.base import (
    Assumption,
    Exported,
    Format,
    FormatError,
    HeadFiles,
    Imported,
    check_names,
    check_target,
    is_targets,
)
from paceline.draft_heads.formats.pair_tensors import (
    D2T,
    T2D,
    LayerSizes,
    layer_fields,
    read_rope,
    read_vocab,
    vocab_maps,
)
from paceline.draft_heads.formats.speculators import LayerFields, read_envelope
from paceline.models.native.decoder import DecoderLM

EMBED, HEAD, FC, JOINT, EACH = "embed_tokens.weight", "lm_head.weight", "fc.weight", "input_norm.weight", "fc_norm."
MIDDLE, MASK = "midlayer.", "mask_hidden"
AUX = "eagle_aux_hidden_state_layer_ids"
Said = tuple[object, str]


class Eagle3Format(Format):
    """Reads and writes tensors; subclasses say where config.json has what, and how the layers are called."""

    kinds: ClassVar[frozenset[str]] = frozenset({"eagle3"})
    inner: ClassVar[str] = ""  # of the fields of layers in config.json
    middle: ClassVar[bool] = False  # whether the one layer is called "midlayer"
    masked: ClassVar[bool] = False  # whether drafted pairs are of a mask token (P-EAGLE)

    @abstractmethod
    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        """The taps, and where they are from."""

    @abstractmethod
    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        """``norm_before_residual`` and ``norm_output``, and where they are from."""

    @abstractmethod
    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        """The config.json. Raises FormatError for options that it has no fields for."""

    def embedding(self, head: Eagle3Head, target: DecoderLM) -> dict[str, Tensor]:
        """The embedding that is written."""
        return {EMBED: head.decoder.embed.weight} if head.options.own_embedding else {}

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        at, vocab = self.inner, target.vocab_size
        check_target(files, target, vocab_size=files.value(f"{at}vocab_size", int))
        act = files.value(f"{at}hidden_act", str)
        if act not in (None, "silu"):
            raise FormatError(f"{files.path}: hidden_act={act!r} is not supported, 'silu' alone is")
        num_heads = files.required(f"{at}num_attention_heads", int)
        layers = LayerSizes.of(files, self._prefixes(files), num_heads, paired=True)
        taps, taps_source = self.taps(files, target)
        size, width = target.config.hidden_size, layers.hidden_size
        each = sum(name.startswith(EACH) for name in files.headers)
        fc_norm: Literal["none", "joint", "each"] = "each" if each else "joint" if files.has(JOINT) else "none"
        own_embedding = files.has(EMBED) and not is_targets(files, EMBED, target.embed.weight)
        if width != size and not own_embedding:
            raise FormatError(f"{files.path}: a head of {width} numbers for a target of {size} lacks {EMBED}")
        if not files.has(HEAD):
            raise FormatError(f"{files.path} lacks {HEAD}: heads of this format have one of their own")
        drafted = files.shapes[HEAD][0]
        wanted = {
            FC: (width, len(taps) * size),
            "norm.weight": (width,),
            HEAD: (drafted, width),
            **layers.shapes(),
            **({JOINT: (len(taps) * size,)} if fc_norm == "joint" else {}),
            **({f"{EACH}{index}.weight": (size,) for index in range(len(taps))} if each else {}),
            **({MASK: (1, 1, len(taps) * size)} if self.masked else {}),
        }
        optional = {EMBED: (vocab, width), D2T: (drafted,), T2D: (vocab,)}
        ignored = check_names(files, wanted, optional=optional)
        theta, scaling, rope_source = read_rope(files, at)
        eps = files.value(f"{at}rms_norm_eps", float)
        flags = self.flags(files)
        tied = (EMBED,) if files.has(EMBED) and not own_embedding else ()
        state = {"fc.weight": files.tensor(FC), "norm.weight": files.tensor("norm.weight"), **layers.read(files)}
        norms = [JOINT] if fc_norm == "joint" else [f"{EACH}{index}.weight" for index in range(each)]
        state |= {f"fc_norms.{index}.weight": files.tensor(name) for index, name in enumerate(norms)}
        state["head.weight"], ids = read_vocab(files, HEAD, vocab)
        state |= {} if ids is None else {"draft_ids": ids}
        state |= {"embed.weight": files.tensor(EMBED)} if own_embedding else {}
        state |= {"mask.weight": files.tensor(MASK)[0]} if self.masked else {}
        mask = files.required("mask_token_id", int) if self.masked else None
        said: dict[str, Said] = {
            "taps": (taps, taps_source),
            **flags,
            "fc_norm": (fc_norm, "tensors"),
            "norm_eps": (1e-6 if eps is None else eps, source_of(f"{at}rms_norm_eps", eps)),
            "norm_offset": (False, "the format"),
            "mask_token_id": (mask, "config.json: mask_token_id" if self.masked else "the format"),
            "rope_theta": (theta, rope_source),
            "rope_scaling": (scaling, rope_source),
            "num_heads": (num_heads, f"config.json: {at}num_attention_heads"),
            "draft_vocab_size": (None if ids is None else len(ids), f"tensors {HEAD} and {D2T}"),
            "own_embedding": (own_embedding, f"tensor {EMBED}" if own_embedding else "the target's embedding"),
            "hidden_size": (None if width == size else width, "shapes of tensors"),
            "num_layers": (len(layers.prefixes), "tensors"),
            "num_kv_heads": (layers.num_kv_heads, "shapes of tensors"),
            "head_dim": (layers.head_dim, "shapes of tensors"),
            "ffn_size": (layers.ffn_size, "shapes of tensors"),
            "qk_norm": (layers.qk_norm, "tensors"),
            "attention_bias": (layers.bias, "tensors"),
            "output_bias": (layers.output_bias, "tensors"),
        }
        target_name, advised = read_envelope(files)
        return Imported(
            kind="eagle3",
            config=Eagle3Config.model_validate({name: value for name, (value, _) in said.items()}),
            state=state,
            assumptions=tuple(Assumption(name, *one) for name, one in said.items()),
            ignored=ignored,
            tied=tied,
            target_name=target_name,
            num_draft_tokens=advised,
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        assert isinstance(head, Eagle3Head)
        options, config, state = head.options, head.decoder.config, head.own_state()
        if self.middle and config.num_layers > 1:
            raise FormatError(
                f"num_layers={config.num_layers}: the format has one layer; give 'speculators_eagle3', or train one"
            )
        if self.masked is (options.mask_token_id is None):
            raise FormatError(
                f"mask_token_id={options.mask_token_id}: P-EAGLE heads, which have one, are of the format "
                "'speculators_peagle', and that is of no others"
            )
        prefixes = [MIDDLE] if self.middle else [f"layers.{index}." for index in range(config.num_layers)]
        layers = layer_fields(config, options.rope_theta, options.rope_scaling, vocab_size=head.target_vocab)
        names = [JOINT] if options.fc_norm == "joint" else [f"{EACH}{i}.weight" for i in range(len(head.fc_norms))]
        tensors = {
            FC: state["fc.weight"],
            "norm.weight": state["norm.weight"],
            HEAD: state["head.weight"],
            **LayerSizes.of_config(config, prefixes, paired=True).write(state),
            **{name: state[f"fc_norms.{index}.weight"] for index, name in enumerate(names)},
            **vocab_maps(head.draft_ids, head.target_vocab),
            **self.embedding(head, target),
            **({MASK: state["mask.weight"][None]} if self.masked else {}),
        }
        return Exported(config=self.config(head, layers, target_name, num_draft_tokens), tensors=tensors)

    def _prefixes(self, files: HeadFiles) -> list[str]:
        if any(name.startswith(MIDDLE) for name in files.headers):
            return [MIDDLE]
        numbers = {int(name.split(".")[1]) for name in files.headers if name.startswith("layers.")}
        return [f"layers.{index}." for index in sorted(numbers)] or [MIDDLE]


def source_of(key: str, found: object, default: str = "the default of Llama") -> str:
    """Where a field of config.json is from, which may not have it."""
    return f"not in the files: {default}" if found is None else f"config.json: {key}"
