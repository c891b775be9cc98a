"""Weight-only quantization: int8 and int4 linear layers, quantized by torchao.

N outputs, K inputs.
"""

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.native.torchao import has_torchao, load_torchao

GROUP = 64  # weights of four bits that share a scale
INT4_PER_WORD = 8  # int4 weights per 32-bit word
BLOCK = 64  # integers: rows are filled up to a multiple of it, so that each begins where vectors do


class Int8Linear(nn.Linear):
    """One signed byte per weight and one float32 scale per row: ``weight`` [N, K filled up], ``scale`` [N].

    A product is that of the integers, which every precision holds exactly, times the scales.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        whole = -(-in_features // BLOCK) * BLOCK
        self.weight = nn.Parameter(torch.empty(out_features, whole, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(out_features, dtype=torch.float32), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        product = F.linear(input, self.weight[:, : self.in_features].to(input.dtype))
        scaled = product.to(torch.promote_types(input.dtype, torch.float32)) * self.scale
        return (scaled if self.bias is None else scaled + self.bias).to(input.dtype)

    def steps(self) -> Tensor:
        """What one integer more adds to a weight: broadcasts to [N, K]."""
        return self.scale[:, None]

    @staticmethod
    def config(torchao: ModuleType) -> object:
        """How torchao names the scheme."""
        return torchao.Int8WeightOnlyConfig(set_inductor_config=False)

    @staticmethod
    def quantise(weight: Tensor) -> dict[str, Tensor]:
        """``weight`` [N, K] as torchao rounds it, by the names of this layer's own tensors."""
        torchao = load_torchao()
        found = torchao.Int8Tensor.from_hp(weight.float(), granularity=torchao.PerRow())
        # The scale is the largest magnitude over 127.5: what torchao makes -128 is as near to -127.
        integers = found.qdata.clamp(min=-127)
        return {"weight": F.pad(integers, (0, -integers.shape[1] % BLOCK)), "scale": found.scale.flatten()}


class Int4Linear(nn.Linear):
    """Four bits per weight and one bfloat16 scale per group: ``weight`` [N, 4 per PACKED], ``scale`` [N, groups].

    Of PACKED weights the 16-bit word i holds weights i, 2 + i, 4 + i and 6 + i, from its low end on, each plus 8. A
    weight is its integer times the scale, in float32, which holds that exactly.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        whole = -(-in_features // GROUP) * GROUP
        integers, scales = torch.empty(out_features, whole // 2, dtype=torch.uint8), (out_features, whole // GROUP)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.scale = nn.Parameter(torch.empty(scales, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        words = self.weight.view(torch.int16).unflatten(-1, (-1, 1, INT4_PER_WORD // 4))
        shifts = torch.arange(0, 16, 4, dtype=torch.int16, device=words.device)[:, None]
        integers = ((words >> shifts) & 15).flatten(1).unflatten(1, (-1, GROUP)) - 8
        wide = torch.promote_types(input.dtype, torch.float32)
        weight = (integers * self.scale.float()[:, :, None]).to(wide).flatten(1)[:, : self.in_features]
        product = F.linear(input.to(wide), weight)
        return (product if self.bias is None else product + self.bias).to(input.dtype)

    def steps(self) -> Tensor:
        """What one integer more adds to a weight: broadcasts to [N, K]."""
        return self.scale.float().repeat_interleave(GROUP, dim=1)[:, : self.in_features]

    @staticmethod
    def config(torchao: ModuleType) -> object:
        """Raises ValueError: torchao has no layout of four bits that a CPU runs."""
        raise ValueError(
            "quantization='int4' is for native models; give quantization='int8', or leave backend='hf' out"
        )

    @staticmethod
    def quantise(weight: Tensor) -> dict[str, Tensor]:
        """``weight`` [N, K] as torchao rounds it, by the names of this layer's own tensors."""
        torchao = load_torchao()
        filled = F.pad(weight.bfloat16(), (0, -weight.shape[1] % GROUP))
        found = torchao.IntxUnpackedToInt8Tensor.from_hp(filled, (1, GROUP), torch.int4)  # type: ignore[attr-defined]
        nibbles = (found.qdata.to(torch.int32) + 8).unflatten(1, (-1, 4, INT4_PER_WORD // 4))
        shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=weight.device)[:, None]
        words = (nibbles << shifts).sum(2).to(torch.int16).flatten(1)
        return {"weight": words.view(torch.uint8), "scale": found.scale.bfloat16()}


SCHEMES: dict[str, type[Int8Linear] | type[Int4Linear]] = {"int8": Int8Linear, "int4": Int4Linear}
HEADS = {**SCHEMES, "int4": Int8Linear}  # what is rounded there is not evened out by later layers


def check_quantization(quantization: str | None) -> None:
    """Raise ValueError for a scheme that is unknown, or where torchao is not installed."""
    if quantization is None:
        return
    if quantization not in SCHEMES:
        raise ValueError(f"quantization {quantization!r}: known are {', '.join(SCHEMES)}")
    if not has_torchao():
        raise ValueError(
            f"quantization={quantization!r} needs torchao, which is not installed: pip install 'paceline[quantization]'"
        )


def quantise(state: dict[str, Tensor], quantization: str, *, tied_head: bool) -> dict[str, Tensor]:
    """A decoder's fused tensors (models/native/fused_weights), all matrices quantized but the embeddings.

    A head that is tied to the embedding gets integers of its own; the table that tokens are looked up in stays. Empties
    ``state`` on the way, so that at most one matrix is in memory twice.
    """
    done: dict[str, Tensor] = {}
    if tied_head:
        done |= _prefixed("head.", HEADS[quantization].quantise(state["embed.weight"]))
    for name in list(state):
        tensor = state.pop(name)
        if tensor.dim() == 2 and name not in ("embed.weight", "position.weight"):
            scheme = (HEADS if name == "head.weight" else SCHEMES)[quantization]
            done |= _prefixed(name.removesuffix("weight"), scheme.quantise(tensor))
        else:
            done[name] = tensor
    return done


def replace_linears(module: nn.Module, quantization: str) -> None:
    """Layers of the scheme in place of every linear one inside ``module``; their tensors are still to be filled in."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            scheme = (HEADS if name == "head" else SCHEMES)[quantization]
            setattr(module, name, scheme(child.in_features, child.out_features, child.bias is not None))
        else:
            replace_linears(child, quantization)


def quantise_modules(model: nn.Module, quantization: str) -> None:
    """Every linear layer of a model that is not ours to torchao's own tensors, in place. Raises ValueError for none."""
    if sum(isinstance(module, nn.Linear) for module in model.modules()) < 2:
        raise ValueError(
            f"quantization={quantization!r}: {type(model).__name__} has no linear layers that torchao knows in its "
            "blocks; leave quantization out, or backend='hf' where Paceline knows the model"
        )
    torchao = load_torchao()
    torchao.quantize_(model, SCHEMES[quantization].config(torchao))


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}
