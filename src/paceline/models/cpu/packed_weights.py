"""Matrices of models in bfloat16 laid out as the kernel reads them fastest: in panels of rows side by side.

N numbers written, K numbers read. See kernel/panels.h and, for integers, kernel/packed.h.
"""

from collections import Counter
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.build import load_kernel
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import INT4_PER_WORD, Int4Linear, Int8Linear

UNITS = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # by their bytes


class PackedLayer(nn.Module):
    """A layer that keeps its matrix in panels; ``weight`` [N, K] is made of them anew whenever it is asked for.

    Whoever saves, copies or compares layers finds ``weight``. A change of what it gives changes nothing here.
    """

    LAID: ClassVar = {"weight": ("panels", 2)}  # what is kept by which name, and how many numbers stay together

    def __init__(self, layer: nn.Module, width: int) -> None:
        """``layer``, each of its tensors in the memory where it lies, which ``layer`` must not use any more."""
        nn.Module.__init__(self)
        self.width = width
        for name, parameter in (("bias", None), *layer.named_parameters()):
            laid, unit = self.LAID.get(name, (name, 0))
            if parameter is not None and unit:
                tensor = parameter.detach().copy_(pack_matrix(parameter, width, unit))
                parameter = nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(laid, parameter)

    @property
    def weight(self) -> Tensor:
        """The matrix row by row."""
        return self._by_row("weight")

    def _by_row(self, name: str) -> Tensor:
        laid, unit = self.LAID[name]
        return unpack_matrix(self.get_parameter(laid), self.width, unit)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, (laid, _) in self.LAID.items():
            del destination[prefix + laid]
            destination[prefix + name] = self._by_row(name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # type: ignore[override]
        for name, (laid, unit) in self.LAID.items():
            if prefix + name in state_dict:
                state_dict[prefix + laid] = pack_matrix(state_dict.pop(prefix + name), self.width, unit)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(PackedLayer, nn.Linear):  # type: ignore[misc]
    """A linear layer whose matrix lies in panels."""

    def __init__(self, layer: nn.Linear, width: int) -> None:
        PackedLayer.__init__(self, layer, width)
        self.in_features, self.out_features = layer.in_features, layer.out_features


class PackedInt8Linear(PackedLinear, Int8Linear):  # type: ignore[misc]
    """The same of bytes."""


class PackedInt4Linear(PackedLinear, Int4Linear):  # type: ignore[misc]
    """The same of four bits, eight by eight, with the scales of a group of all rows side by side."""

    LAID: ClassVar = {"weight": ("panels", INT4_PER_WORD // 2), "scale": ("scale_panels", 1)}

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """The scales row by row."""
        return self._by_row("scale")


class PackedEmbedding(PackedLayer, nn.Embedding):  # type: ignore[misc]
    """A table of embeddings that lies in panels, because the head multiplies with it too."""

    panels: nn.Parameter

    def __init__(self, table: nn.Embedding, width: int) -> None:
        PackedLayer.__init__(self, table, width)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight)


def panel_rows() -> int:
    """Rows of a panel; 0 where this machine's products have no use for them. Raises KernelError without a compiler."""
    return int(load_kernel().paceline_panel_rows())


def quantized_panel_rows() -> int:
    """The same for integers."""
    return int(load_kernel().paceline_quantized_panel_rows())


def can_pack(weight: Tensor, width: int) -> bool:
    """Whether ``weight`` [N, K] can lie in panels of ``width`` rows."""
    return width > 0 and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.shape[1] % 2 == 0


def pack_matrix(weight: Tensor, width: int, unit: int = 2) -> Tensor:
    """A copy of ``weight`` [N, K] in panels of ``width`` rows, the last one of those that are left.

    So many numbers as ``unit`` says stay together.
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
    """Lay the matrices of ``lm`` in panels, each in the memory where it lies; those that are already stay.

    For models whose weights nobody else holds but ``beside``: what that has a part in stays, and so does a matrix that
    two layers hold. A table of embeddings is laid where it is the head as well. Integers in a model of another
    precision than bfloat16 stay as they are.
    """
    wholes: tuple[nn.Module, ...] = (lm,) if beside is None else (lm, beside)
    layers = [layer for whole in wholes for layer in whole.modules()]
    holders = Counter(part.data_ptr() for layer in layers for part in layer.parameters(recurse=False))
    laid: dict[nn.Linear, nn.Linear] = {}
    for path, layer in list(lm.named_modules(remove_duplicate=False)):
        if not isinstance(layer, nn.Linear) or isinstance(layer, PackedLayer) or lm.dtype != torch.bfloat16:
            continue
        if holders[layer.weight.data_ptr()] == 1:
            if layer not in laid:
                laid[layer] = pack_linear(layer)
            lm.set_submodule(path, laid[layer])
    if lm.head is None and type(lm.embed) is nn.Embedding and holders[lm.embed.weight.data_ptr()] == 1:
        if _is_laid(lm.embed.weight):
            lm.embed = PackedEmbedding(lm.embed, panel_rows())


def pack_linear(layer: nn.Linear) -> nn.Linear:
    """``layer``, which multiplies bfloat16, its tensors laid in panels where they lie; itself where it cannot be."""
    if type(layer) is nn.Linear and _is_laid(layer.weight):
        return PackedLinear(layer, panel_rows())
    if layer.weight.requires_grad or layer.weight.device.type != "cpu":
        return layer
    if type(layer) is Int8Linear and quantized_panel_rows() and layer.in_features % 2 == 0:
        return PackedInt8Linear(layer, quantized_panel_rows())
    if type(layer) is Int4Linear and quantized_panel_rows() and layer.in_features % INT4_PER_WORD == 0:
        return PackedInt4Linear(layer, quantized_panel_rows())
    return layer


def _is_laid(weight: Tensor) -> bool:
    return can_pack(weight, panel_rows()) and not weight.requires_grad


def _units_of_rows(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """Views of what becomes whole panels and of what is left: [panels, rows, units]."""
    units = matrix.detach().contiguous().view(UNITS[unit * matrix.itemsize])
    whole = units.shape[0] // width * width
    return [units[:whole].unflatten(0, (-1, width)), units[None, whole:]]


def _units_of_panels(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """The same of a matrix in panels: [panels, units, rows]."""
    pieces = _units_of_rows(matrix, width, unit)
    return [piece.reshape(piece.shape[0], piece.shape[2], piece.shape[1]) for piece in pieces]
