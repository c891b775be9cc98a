"""Matrices of bfloat16 laid out as the kernel reads them fastest: in panels of rows side by side, pair by pair.

N numbers written, K numbers read. See kernel/panels.h.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.cpu.build import load_kernel
from paceline.models.decoder import DecoderLM

PAIRS = {2: torch.int32, 4: torch.int64, 8: torch.complex128}  # as large as two numbers of so many bytes


class InPanels(nn.Module):
    """A layer that keeps its matrix in panels; ``weight`` [N, K] is made of them anew whenever it is asked for.

    Whoever saves, copies or compares layers finds ``weight``. A change of what it gives changes nothing here.
    """

    panels: nn.Parameter
    width: int

    @property
    def weight(self) -> Tensor:
        """The matrix row by row."""
        return from_panels(self.panels, self.width)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "panels"]
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # type: ignore[override]
        if prefix + "weight" in state_dict:
            state_dict[prefix + "panels"] = to_panels(state_dict.pop(prefix + "weight"), self.width)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PanelLinear(InPanels, nn.Linear):  # type: ignore[override]
    """A linear layer whose matrix lies in panels."""

    def __init__(self, layer: nn.Linear, panels: Tensor, width: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.width = layer.in_features, layer.out_features, width
        self.panels = nn.Parameter(panels, requires_grad=False)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


class PanelEmbedding(InPanels, nn.Embedding):  # type: ignore[override]
    """A table of embeddings that lies in panels, because the head multiplies with it too."""

    def __init__(self, table: nn.Embedding, panels: Tensor, width: int) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim, self.width = table.num_embeddings, table.embedding_dim, width
        self.panels = nn.Parameter(panels, requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight)


def panel_width() -> int:
    """Rows of a panel; 0 where this machine's products have no use for them. Raises KernelError without a compiler."""
    return int(load_kernel().paceline_panel_rows())


def fits_panels(weight: Tensor, width: int) -> bool:
    """Whether ``weight`` [N, K] can lie in panels of ``width`` rows."""
    return width > 0 and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.shape[1] % 2 == 0


def to_panels(weight: Tensor, width: int) -> Tensor:
    """A copy of ``weight`` [N, K] in panels of ``width`` rows, the last one of those that are left."""
    panels = torch.empty_like(weight, memory_format=torch.contiguous_format)
    for there, here in zip(_pairs_of_panels(panels, width), _pairs_of_rows(weight, width), strict=True):
        there.copy_(here.transpose(1, 2))
    return panels


def from_panels(panels: Tensor, width: int) -> Tensor:
    """The reverse of ``to_panels``."""
    weight = torch.empty_like(panels)
    for there, here in zip(_pairs_of_rows(weight, width), _pairs_of_panels(panels, width), strict=True):
        there.copy_(here.transpose(1, 2))
    return weight


def lay_in_panels(lm: DecoderLM) -> None:
    """Lay the matrices of ``lm`` in panels, each in the memory where it lies; those that are already stay.

    For models whose weights nobody else holds. A table of embeddings is laid where it is the head as well.
    """
    width = panel_width()
    for module in list(lm.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and _may_be_laid(child.weight, width):
                setattr(module, name, PanelLinear(child, _lay(child.weight, width), width))
    if lm.head is None and type(lm.embed) is nn.Embedding and _may_be_laid(lm.embed.weight, width):
        lm.embed = PanelEmbedding(lm.embed, _lay(lm.embed.weight, width), width)


def _may_be_laid(weight: Tensor, width: int) -> bool:
    return fits_panels(weight, width) and not weight.requires_grad


def _lay(weight: Tensor, width: int) -> Tensor:
    """``weight`` in panels, in its own memory."""
    return weight.detach().copy_(to_panels(weight, width))


def _pairs_of_rows(matrix: Tensor, width: int) -> list[Tensor]:
    """Views of what becomes whole panels and of what is left: [panels, rows, pairs]."""
    pairs = matrix.detach().contiguous().view(PAIRS[matrix.itemsize])
    whole = pairs.shape[0] // width * width
    return [pairs[:whole].unflatten(0, (-1, width)), pairs[None, whole:]]


def _pairs_of_panels(matrix: Tensor, width: int) -> list[Tensor]:
    """The same of a matrix in panels: [panels, pairs, rows]."""
    return [piece.reshape(piece.shape[0], piece.shape[2], piece.shape[1]) for piece in _pairs_of_rows(matrix, width)]
