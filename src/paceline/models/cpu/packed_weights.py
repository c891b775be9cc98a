"""Packed weights: matrices of bf16 models reordered into panels of interleaved rows, as the CPU kernels read them.

N outputs, K inputs. See src/gemm/gemm_bf16.h and, for quantized weights, src/gemm/gemm_quantized_bf16.h.
"""

from collections import Counter
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import INT4_PER_WORD, Int4Linear, Int8Linear

UNITS = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # by their bytes


class PackedLayer(nn.Module):
    """A layer with a packed matrix; the property ``weight`` [N, K] unpacks a copy.

    Saving, copying and comparing layers use ``weight``. Changing the copy does not change the layer.
    """

    PACKED_PARAMETERS: ClassVar = {"weight": ("panels", 2)}  # parameter -> packed name, unit

    def __init__(self, layer: nn.Module, width: int) -> None:
        """Takes over the tensors of ``layer``, which must not be used any more, and packs them in place."""
        nn.Module.__init__(self)
        self.width, self.isa = width, current_set()
        for name, parameter in (("bias", None), *layer.named_parameters()):
            packed, unit = self.PACKED_PARAMETERS.get(name, (name, 0))
            if parameter is not None and unit:
                tensor = parameter.detach().copy_(pack_matrix(parameter, width, unit))
                parameter = nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(packed, parameter)

    @property
    def weight(self) -> Tensor:
        """The unpacked matrix."""
        return self._unpacked("weight")

    def _unpacked(self, name: str) -> Tensor:
        packed, unit = self.PACKED_PARAMETERS[name]
        return unpack_matrix(self.get_parameter(packed), self.width, unit)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, (packed, _) in self.PACKED_PARAMETERS.items():
            del destination[prefix + packed]
            destination[prefix + name] = self._unpacked(name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # type: ignore[override]
        for name, (packed, unit) in self.PACKED_PARAMETERS.items():
            if prefix + name in state_dict:
                state_dict[prefix + packed] = pack_matrix(state_dict.pop(prefix + name), self.width, unit)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(PackedLayer, nn.Linear):  # type: ignore[misc]
    """A linear layer with a packed matrix."""

    def __init__(self, layer: nn.Linear, width: int) -> None:
        PackedLayer.__init__(self, layer, width)
        self.in_features, self.out_features = layer.in_features, layer.out_features


class PackedInt8Linear(PackedLinear, Int8Linear):  # type: ignore[misc]
    """An int8 linear layer with a packed matrix."""


class PackedInt4Linear(PackedLinear, Int4Linear):  # type: ignore[misc]
    """An int4 linear layer with a matrix packed in units of eight weights, and packed scales."""

    PACKED_PARAMETERS: ClassVar = {"weight": ("panels", INT4_PER_WORD // 2), "scale": ("scale_panels", 1)}

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """The unpacked scales."""
        return self._unpacked("scale")


class PackedEmbedding(PackedLayer, nn.Embedding):  # type: ignore[misc]
    """A packed embedding table, tied to the LM head."""

    panels: nn.Parameter

    def __init__(self, table: nn.Embedding, width: int) -> None:
        PackedLayer.__init__(self, table, width)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight)


def packed_set(model: nn.Module) -> str | None:
    """The instruction set that layers of ``model`` are packed for; None if none is packed. Raises ValueError."""
    sets = sorted({layer.isa for layer in model.modules() if isinstance(layer, PackedLayer)})
    if len(sets) > 1:
        raise ValueError(f"weights are packed for {' and '.join(sets)}: load the whole model for one instruction set")
    return sets[0] if sets else None


def panel_rows() -> int:
    """Rows of a panel; 0 if this CPU does not use packed weights. Raises KernelError without a compiler."""
    return int(load_kernel().paceline_panel_rows())


def quantized_panel_rows() -> int:
    """The same for quantized weights."""
    return int(load_kernel().paceline_quantized_panel_rows())


def can_pack(weight: Tensor, width: int) -> bool:
    """Whether ``weight`` [N, K] can be packed in panels of ``width`` rows."""
    return width > 0 and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.shape[1] % 2 == 0


def pack_matrix(weight: Tensor, width: int, unit: int = 2) -> Tensor:
    """A packed copy of ``weight`` [N, K] in panels of ``width`` rows; the last one may have fewer.

    ``unit`` adjacent elements of a row stay together.
    """
    panels = torch.empty_like(weight, memory_format=torch.contiguous_format)
    for there, here in zip(_units_of_panels(panels, width, unit), _units_of_rows(weight, width, unit), strict=True):
        there.copy_(here.transpose(1, 2))
    return panels


def unpack_matrix(panels: Tensor, width: int, unit: int = 2) -> Tensor:
    """The reverse of ``pack_matrix``."""
    weight = torch.empty_like(panels)
    for there, here in zip(_units_of_rows(weight, width, unit), _units_of_panels(panels, width, unit), strict=True):
        there.copy_(here.transpose(1, 2))
    return weight


def pack_linears(lm: DecoderLM, *, beside: nn.Module | None = None) -> None:
    """Pack the matrices of ``lm`` in place; packed ones are left as they are.

    For models whose weights nothing else shares but ``beside``: parameters shared with it, or by two layers, are not
    packed. The embedding table is packed if it is tied to the LM head. Quantized weights are packed in
    bf16 models only.
    """
    modules: tuple[nn.Module, ...] = (lm,) if beside is None else (lm, beside)
    layers = [layer for module in modules for layer in module.modules()]
    num_owners = Counter(part.data_ptr() for layer in layers for part in layer.parameters(recurse=False))
    packed: dict[nn.Linear, nn.Linear] = {}
    for path, layer in list(lm.named_modules(remove_duplicate=False)):
        if not isinstance(layer, nn.Linear) or isinstance(layer, PackedLayer) or lm.dtype != torch.bfloat16:
            continue
        if num_owners[layer.weight.data_ptr()] == 1:
            if layer not in packed:
                packed[layer] = pack_linear(layer)
            lm.set_submodule(path, packed[layer])
    if lm.head is None and type(lm.embed) is nn.Embedding and num_owners[lm.embed.weight.data_ptr()] == 1:
        if _is_packable(lm.embed.weight):
            lm.embed = PackedEmbedding(lm.embed, panel_rows())


def pack_linear(layer: nn.Linear) -> nn.Linear:
    """The bf16 linear ``layer`` with its tensors packed in place; ``layer`` itself if it cannot be packed."""
    if type(layer) is nn.Linear and _is_packable(layer.weight):
        return PackedLinear(layer, panel_rows())
    if layer.weight.requires_grad or layer.weight.device.type != "cpu":
        return layer
    if type(layer) is Int8Linear and quantized_panel_rows() and layer.in_features % 2 == 0:
        return PackedInt8Linear(layer, quantized_panel_rows())
    if type(layer) is Int4Linear and quantized_panel_rows() and layer.in_features % INT4_PER_WORD == 0:
        return PackedInt4Linear(layer, quantized_panel_rows())
    return layer


def _is_packable(weight: Tensor) -> bool:
    return can_pack(weight, panel_rows()) and not weight.requires_grad


def _units_of_rows(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """Views of the full panels and of the remaining rows: [panels, rows, units]."""
    units = matrix.detach().contiguous().view(UNITS[unit * matrix.itemsize])
    whole = units.shape[0] // width * width
    return [units[:whole].unflatten(0, (-1, width)), units[None, whole:]]


def _units_of_panels(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """The same of a packed matrix: [panels, units, rows]."""
    pieces = _units_of_rows(matrix, width, unit)
    return [piece.reshape(piece.shape[0], piece.shape[2], piece.shape[1]) for piece in pieces]
