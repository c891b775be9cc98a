"""Packed weights: matrices reordered into panels of interleaved rows, as the CPU kernels read them.

N outputs, K inputs. The loaded library says which formats it reads in which panels (src/gemm/packing.h).
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.kernels.cpu.structs import Kind, Operation, WeightFormat
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import INT4_PER_WORD, Int4Linear, Int8Linear

UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # by their bytes


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """Rows of a panel, and adjacent elements of a row that stay together in it."""

    width: int
    unit: int


class PackedLayer(nn.Module):
    """A layer with a packed matrix; the property ``weight`` [N, K] unpacks a copy.

    Saving, copying and comparing layers use ``weight``. Changing the copy does not change the layer.
    """

    FORMAT: ClassVar = WeightFormat.PACKED
    PACKED_PARAMETERS: ClassVar = {"weight": "panels"}  # parameter -> packed name

    def __init__(self, layer: nn.Module, layout: PanelLayout) -> None:
        """Takes over the tensors of ``layer``, which must not be used any more, and packs them in place."""
        nn.Module.__init__(self)
        self.layout, self.isa = layout, current_set()
        for name, parameter in (("bias", None), *layer.named_parameters()):
            packed = self.PACKED_PARAMETERS.get(name, name)
            if parameter is not None and packed != name:
                tensor = parameter.detach().copy_(pack_matrix(parameter, layout.width, self.unit_of(name)))
                parameter = nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(packed, parameter)

    @property
    def weight(self) -> Tensor:
        """The unpacked matrix."""
        return self._unpacked("weight")

    def _unpacked(self, name: str) -> Tensor:
        panels = self.get_parameter(self.PACKED_PARAMETERS[name])
        return unpack_matrix(panels, self.layout.width, self.unit_of(name))

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether kernels of ``dtype`` read it, which may have been packed for another precision, or converted."""
        wanted = {
            WeightFormat.PACKED: {"panels": dtype},
            WeightFormat.PACKED_INT8: {"panels": torch.int8, "scale": torch.float32},
            WeightFormat.PACKED_INT4: {"panels": torch.uint8, "scale_panels": torch.bfloat16},
        }[self.FORMAT]
        held = {name: parameter.dtype for name, parameter in self.named_parameters(recurse=False)}
        if held.pop("bias", dtype) != dtype or held != wanted:
            return False
        return self.layout == panel_layout(dtype, self.FORMAT, isa=self.isa)

    def unit_of(self, name: str) -> int:
        """Adjacent elements of a row that stay together in the panels of the tensor called ``name``."""
        return self.layout.unit if name == "weight" else 1

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, packed in self.PACKED_PARAMETERS.items():
            del destination[prefix + packed]
            destination[prefix + name] = self._unpacked(name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # type: ignore[override]
        for name, packed in self.PACKED_PARAMETERS.items():
            if prefix + name in state_dict:
                matrix = state_dict.pop(prefix + name)
                state_dict[prefix + packed] = pack_matrix(matrix, self.layout.width, self.unit_of(name))
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(PackedLayer, nn.Linear):  # type: ignore[misc]
    """A linear layer with a packed matrix."""

    def __init__(self, layer: nn.Linear, layout: PanelLayout) -> None:
        PackedLayer.__init__(self, layer, layout)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, input: Tensor) -> Tensor:
        """The product with ``input`` [..., K]: by the kernel in the precision that the matrix was packed for, and by
        torch where there is a gradient.
        """
        if not self.fits(input.dtype) or (input.requires_grad and torch.is_grad_enabled()):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features).contiguous()
        return gemm_with_layer(self, input.dtype)(rows).unflatten(0, input.shape[:-1])


class PackedInt8Linear(PackedLinear, Int8Linear):  # type: ignore[misc]
    """An int8 linear layer with a packed matrix."""

    FORMAT: ClassVar = WeightFormat.PACKED_INT8


class PackedInt4Linear(PackedLinear, Int4Linear):  # type: ignore[misc]
    """An int4 linear layer with a matrix packed in units of eight weights, and packed scales."""

    FORMAT: ClassVar = WeightFormat.PACKED_INT4
    PACKED_PARAMETERS: ClassVar = {"weight": "panels", "scale": "scale_panels"}

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """The unpacked scales."""
        return self._unpacked("scale")


class PackedEmbedding(PackedLayer, nn.Embedding):  # type: ignore[misc]
    """A packed embedding table, tied to the LM head."""

    panels: nn.Parameter

    def __init__(self, table: nn.Embedding, layout: PanelLayout) -> None:
        PackedLayer.__init__(self, table, layout)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim

    def extra_repr(self) -> str:
        """The sizes: the table's other options are not kept."""
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def forward(self, input: Tensor) -> Tensor:
        """The rows of ``input``, without unpacking any other."""
        size, width, unit = self.embedding_dim, self.layout.width, self.layout.unit
        units = self.panels.detach().view(UNITS[unit * self.panels.itemsize]).flatten()
        panel, row = input.flatten() // width, input.flatten() % width
        rows = (self.num_embeddings - panel * width).clamp(max=width)  # of the panel: the last one may have fewer
        index = torch.arange(size // unit) * rows[:, None] + (panel * width * (size // unit) + row)[:, None]
        return units[index].view(self.panels.dtype).view(*input.shape, size)


def packed_set(model: nn.Module) -> str | None:
    """The instruction set that layers of ``model`` are packed for; None if none is packed. Raises ValueError."""
    sets = sorted({layer.isa for layer in model.modules() if isinstance(layer, PackedLayer)})
    if len(sets) > 1:
        raise ValueError(f"weights are packed for {' and '.join(sets)}: load the whole model for one instruction set")
    return sets[0] if sets else None


def panel_layout(
    dtype: torch.dtype, format: WeightFormat = WeightFormat.PACKED, *, isa: str | None = None
) -> PanelLayout | None:
    """The panels of weights of ``format`` in a model of ``dtype``; None if the library of ``isa`` does not read any.

    Raises KernelError if there is no library and none can be built.
    """
    kernel, name = load_kernel(isa), dtype_name(dtype)
    rows, unit = (getattr(kernel, f"paceline_panel_{what}_{name}", None) for what in ("rows", "unit"))
    if rows is None or unit is None or not rows(format):
        return None
    return PanelLayout(int(rows(format)), int(unit(format)))


def matrix_layout(weight: Tensor) -> PanelLayout | None:
    """The panels that ``weight`` [N, K], which is not quantized, can be packed in; None if it cannot."""
    layout = panel_layout(weight.dtype) if weight.device.type == "cpu" else None
    return None if layout is None or weight.shape[1] % layout.unit else layout


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


def pack_linears(lm: DecoderLM, *, beside: nn.Module | None = None, but: nn.Module | None = None) -> None:
    """Pack the matrices of ``lm`` in place, all ``but`` those of a part; packed ones are left as they are.

    For models whose weights nothing else shares but ``beside``: parameters shared with it, or by two layers, are not
    packed. The embedding table is packed if it is tied to the LM head.
    """
    modules: tuple[nn.Module, ...] = (lm,) if beside is None else (lm, beside)
    layers = [layer for module in modules for layer in module.modules()]
    num_owners = Counter(part.data_ptr() for layer in layers for part in layer.parameters(recurse=False))
    packed: dict[nn.Linear, nn.Linear] = {}
    left = set[nn.Module]() if but is None else set(but.modules())
    for path, layer in list(lm.named_modules(remove_duplicate=False)):
        if not isinstance(layer, nn.Linear) or isinstance(layer, PackedLayer) or layer in left:
            continue
        if num_owners[layer.weight.data_ptr()] == 1:
            if layer not in packed:
                packed[layer] = pack_linear(layer, lm.dtype)
            lm.set_submodule(path, packed[layer])
    if lm.head is None and type(lm.embed) is nn.Embedding and num_owners[lm.embed.weight.data_ptr()] == 1:
        layout = matrix_layout(lm.embed.weight)
        if layout is not None and not lm.embed.weight.requires_grad:
            lm.embed = PackedEmbedding(lm.embed, layout)


def pack_linear(layer: nn.Linear, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    """``layer``, of a model of ``dtype``, with its tensors packed in place; ``layer`` itself if it cannot be packed."""
    if layer.weight.requires_grad or layer.weight.device.type != "cpu":
        return layer
    if type(layer) is nn.Linear:
        layout = matrix_layout(layer.weight)
        return PackedLinear(layer, layout) if layout is not None else layer
    for quantized, packed, unit in ((Int8Linear, PackedInt8Linear, 2), (Int4Linear, PackedInt4Linear, INT4_PER_WORD)):
        layout = panel_layout(dtype, packed.FORMAT) if type(layer) is quantized else None
        if layout is not None and layer.in_features % unit == 0:
            return packed(layer, layout)
    return layer


def _units_of_rows(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """Views of the full panels and of the remaining rows: [panels, rows, units]."""
    units = matrix.detach().contiguous().view(UNITS[unit * matrix.itemsize])
    whole = units.shape[0] // width * width
    return [units[:whole].unflatten(0, (-1, width)), units[None, whole:]]


def _units_of_panels(matrix: Tensor, width: int, unit: int) -> list[Tensor]:
    """The same of a packed matrix: [panels, units, rows]."""
    pieces = _units_of_rows(matrix, width, unit)
    return [piece.reshape(piece.shape[0], piece.shape[2], piece.shape[1]) for piece in pieces]


def set_weight(product: Operation, layer: nn.Linear | nn.Embedding, point: Callable[..., int]) -> None:
    """Set the weight format of ``layer`` and, by ``point``, the pointers to its weight and scales."""
    packed = isinstance(layer, PackedLinear | PackedEmbedding)
    matrix = layer.get_parameter("panels") if packed else layer.weight
    product.count = matrix.stride(0)
    if isinstance(layer, Int8Linear):
        product.variant = WeightFormat.PACKED_INT8 if packed else WeightFormat.INT8
        product.weight, product.scales = point(matrix, torch.int8), point(layer.scale, torch.float32)
    elif isinstance(layer, Int4Linear):
        product.variant = WeightFormat.PACKED_INT4 if packed else WeightFormat.INT4
        scales = layer.get_parameter("scale_panels") if packed else layer.scale
        product.weight, product.scales = point(matrix, torch.uint8), point(scales, torch.bfloat16)
    else:
        product.variant = WeightFormat.PACKED if packed else WeightFormat.FLOATS
        product.weight = point(matrix)


def gemm_with_layer(layer: nn.Linear | nn.Embedding, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The kernel's product of contiguous rows [B, in] of ``dtype`` with the weight of ``layer`` as stored, quantized or
    not, and its bias: [B, out].

    An embedding table is that of the LM head which is tied to it.

    Raises KernelError if the kernel cannot be built.
    """
    run = getattr(load_kernel(packed_set(layer) or current_set()), f"paceline_linear_{dtype_name(dtype)}")
    run.restype = None
    if isinstance(layer, nn.Embedding):
        inner, outer = layer.embedding_dim, layer.num_embeddings
    else:
        inner, outer = layer.in_features, layer.out_features
    operation = Operation(kind=Kind.LINEAR, inner=inner, outer=outer)
    refs: list[object] = [layer]  # what the operation points into

    def point(tensor: Tensor, _: torch.dtype | None = None) -> int:
        refs.append(tensor)
        return tensor.data_ptr()

    set_weight(operation, layer, point)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        operation.bias = point(layer.bias)

    def multiply(x: Tensor) -> Tensor:
        assert refs and x.is_contiguous() and x.dtype == dtype
        y = torch.empty(x.shape[0], outer, dtype=dtype)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
        run(ctypes.byref(operation), *pointers, *map(ctypes.c_int64, (x.shape[0], torch.get_num_threads())))
        return y

    return multiply
