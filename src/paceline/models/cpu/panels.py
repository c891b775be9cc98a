"""Matrices of bfloat16 laid out as the kernel reads them fastest: in panels of rows side by side, pair of numbers by pair.

N numbers written, K numbers read. Products are the same to the bit wherever a matrix lies (kernel/panels.h).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.cpu.build import load_kernel
from paceline.models.decoder import DecoderLM


class PanelLinear(nn.Linear):
    """A linear layer that keeps its matrix in panels; ``weight`` [N, K] is made of them anew whenever it is asked for.

    Whoever saves, copies or compares layers finds ``weight``. A change of what it gives changes nothing here.
    """

    def __init__(self, layer: nn.Linear, panels: Tensor, width: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.width = layer.in_features, layer.out_features, width
        self.panels = nn.Parameter(panels, requires_grad=False)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix row by row."""
        return from_panels(self.panels, self.width)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "panels"]
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix + "weight" in state_dict:
            state_dict[prefix + "panels"] = to_panels(state_dict.pop(prefix + "weight"), self.width)
        super()._load_from_state_dict(state_dict, prefix, *args)


def panel_width() -> int:
    """Rows of a panel; 0 where this machine's products have no use for them. Raises KernelError without a compiler."""
    return int(load_kernel().paceline_panel_rows())


def fits_panels(weight: Tensor, width: int) -> bool:
    """Whether ``weight`` [N, K] can lie in panels of ``width`` rows."""
    return width > 0 and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.shape[1] % 2 == 0


def to_panels(weight: Tensor, width: int) -> Tensor:
    """A copy of ``weight`` [N, K] in panels of ``width`` rows, the last one of those that are left."""
    return _turn(weight, width, lambda rows: (rows, weight.shape[1] // 2))


def from_panels(panels: Tensor, width: int) -> Tensor:
    """The reverse of ``to_panels``; differentiable."""
    return _turn(panels, width, lambda rows: (panels.shape[1] // 2, rows))


def lay_in_panels(lm: DecoderLM) -> None:
    """Lay the matrices of ``lm`` in panels, each in the memory where it lies; those that are already stay.

    For models whose weights nobody else holds. Tables of embeddings stay as they are, and with them a tied head.
    """
    width = panel_width()
    for module in list(lm.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and fits_panels(child.weight, width) and not child.weight.requires_grad:
                weight = child.weight.detach()
                setattr(module, name, PanelLinear(child, weight.copy_(to_panels(weight, width)), width))


def _turn(matrix: Tensor, width: int, axes: Any) -> Tensor:
    """Both axes of every panel, of ``axes(rows)`` pairs, exchanged."""
    whole = matrix.shape[0] // width * width
    pieces = [matrix[:whole]] if whole else []
    pieces += [matrix[whole:]] if whole < matrix.shape[0] else []
    turned = []
    for piece in pieces:
        rows = min(width, piece.shape[0])
        turned.append(piece.reshape(-1, *axes(rows), 2).transpose(1, 2).reshape(piece.shape))
    return torch.cat(turned)
