"""Fingerprints of decoders' weights, from a sample of them.

N outputs, K inputs.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn

from paceline.models.cpu.packed_weights import PackedLayer, unpack_matrix
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import Int4Linear, Int8Linear

NUM_ROWS, NUM_COLUMNS = 4, 64  # of a matrix that are looked at, as far apart as they can be
KEPT, MATRICES = "kept", "matrices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Sizes of a decoder and hashes of its weights as bfloat16 rounds them; None where they cannot be compared.

    It is the same in every precision at least as wide. Float16 has a narrower range, so its values tell nothing, and
    neither do matrices that were rounded to integers; what is left is compared.
    """

    sizes: str
    kept: str | None  # tables of embeddings, norms and biases, which quantisation leaves as they are
    matrices: str | None

    def matches(self, other: "Fingerprint") -> bool:
        """Whether nothing that both know differs."""
        if self.sizes != other.sizes:
            return False
        pairs = ((self.kept, other.kept), (self.matrices, other.matrices))
        return all(one is None or another is None or one == another for one, another in pairs)

    def fields(self) -> dict[str, str | None]:
        """What it is made of again."""
        return asdict(self)


def fingerprint(lm: DecoderLM) -> Fingerprint:
    """The fingerprint of ``lm``, whether packed or not; reads some thousand weights per layer."""
    config = lm.config
    sizes = (
        f"{config.num_layers} layers of {config.hidden_size}, {config.num_heads} heads and {config.num_kv_heads} "
        f"key-value heads of {config.head_dim}, {config.ffn_size} inner, {config.vocab_size} tokens"
    )
    if lm.dtype == torch.float16:
        return Fingerprint(sizes=sizes, kept=None, matrices=None)
    found: dict[str, list[Tensor]] = {KEPT: [], MATRICES: []}
    for kind, sample in _samples(lm):
        found[kind].append(sample.detach().to(torch.bfloat16))
    quantised = any(isinstance(module, Int8Linear | Int4Linear) for module in lm.modules())
    return Fingerprint(sizes=sizes, kept=_hash(found[KEPT]), matrices=None if quantised else _hash(found[MATRICES]))


def memory_digest(module: nn.Module) -> str:
    """A hash of some bytes of every parameter of ``module`` as it is in memory, and of their shapes.

    Not the same in another precision or packing, unlike ``fingerprint``.
    """
    shapes: list[str] = []
    found: list[Tensor] = []
    for name, parameter in module.named_parameters():
        shapes.append(f"{name} {parameter.dtype} {list(parameter.shape)}")
        if parameter.numel() and parameter.is_contiguous():
            flat = parameter.detach().view(-1)
            found.append(flat[:: max(1, len(flat) // NUM_COLUMNS)].contiguous().view(torch.uint8))
    bits = torch.cat(found).cpu().numpy().tobytes() if found else b""
    return sha256("\n".join(shapes).encode() + bits).hexdigest()[:32]


def _samples(lm: DecoderLM) -> Iterator[tuple[str, Tensor]]:
    for name, module in lm.named_modules():
        if name == "head" and lm.config.tied_head:
            continue
        if isinstance(module, nn.Linear):
            if not isinstance(module, Int8Linear | Int4Linear):
                yield MATRICES, _of_matrix(module)
            if module.bias is not None:
                yield KEPT, _of_vector(module.bias)
        elif isinstance(module, nn.Embedding):
            yield KEPT, _of_matrix(module)
        else:
            for parameter in module.parameters(recurse=False):
                yield KEPT, _of_vector(parameter)


def _of_matrix(layer: nn.Linear | nn.Embedding) -> Tensor:
    """Some rows of its matrix [N, K]; of panels no others are brought in order."""
    last = layer.num_embeddings - 1 if isinstance(layer, nn.Embedding) else layer.out_features - 1
    rows = [last * i // (NUM_ROWS - 1) for i in range(NUM_ROWS)]
    if isinstance(layer, PackedLayer):
        panels, width, unit = layer.get_parameter("panels"), layer.layout.width, layer.unit_of("weight")
        return torch.cat([_of_vector(_row_of_panels(panels, width, unit, row)) for row in rows])
    weight = layer.weight
    return torch.cat([_of_vector(weight[row]) for row in rows])


def _row_of_panels(panels: Tensor, width: int, unit: int, row: int) -> Tensor:
    """Row ``row`` [K] of the matrix packed in ``panels`` [N, K] of ``width`` rows, ``unit`` elements together."""
    first = row // width * width
    return unpack_matrix(panels.detach()[first : first + width], width, unit)[row - first]


def _of_vector(vector: Tensor) -> Tensor:
    return vector[:: max(1, vector.shape[0] // NUM_COLUMNS)]


def _hash(pieces: list[Tensor]) -> str:
    """Of the bits of all ``pieces``, brought to the host in one transfer, and of their sizes."""
    sizes = ",".join(str(piece.numel()) for piece in pieces)
    bits = torch.cat([piece.flatten() for piece in pieces]).view(torch.int16).cpu().numpy().tobytes()
    return sha256(sizes.encode() + bits).hexdigest()[:32]
