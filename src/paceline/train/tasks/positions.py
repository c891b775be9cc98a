"""Values of positions whose gradient is computed with them, a few positions at a time.

N positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LEAST_LOGIT = -1e30
CHUNK = 1024  # positions at a time
CHUNK_BYTES = 1 << 22  # of their logits in float32 on the CPU: what is computed of them stays in its caches

Compute: TypeAlias = Callable[[Tensor, slice], Sequence[Tensor]]  # of logits [n, V] and their positions: [n] each


def by_position(compute: Compute, logits: Tensor, *, chunk: int | None = None) -> tuple[Tensor, ...]:
    """What ``compute`` finds for ``logits`` [N, V], finite and in float32: [N] each, the first with a gradient.

    A value depends on the logits of its own position alone, so the gradient is computed right after it, for ``chunk``
    positions at a time (None: as many as suit the device), and takes the place of the logits in memory.
    """
    if chunk is None:
        fits = max(1, CHUNK_BYTES // (4 * max(1, logits.shape[-1])))
        chunk = fits if logits.device.type == "cpu" else CHUNK
    if torch.compiler.is_compiling():  # which cannot trace a gradient within a forward pass
        parts = [slice(first, first + chunk) for first in range(0, max(1, len(logits)), chunk)]
        found = [recomputed(compute, finite(logits[part]), part) for part in parts]
        return tuple(torch.cat(column) for column in zip(*found, strict=True))
    return cast(tuple[Tensor, ...], _WithGradient.apply(logits, compute, chunk))


@final
class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, compute: Compute, chunk: int) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty_like(logits) if wanted else None
        found: list[list[Tensor]] = []
        for first in range(0, max(1, len(logits)), chunk):
            part = slice(first, first + chunk)
            rows = finite(logits[part].detach()).requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                values = compute(rows, part)
                if gradient is not None:
                    gradient[part] = torch.autograd.grad(values[0].sum(), rows)[0]
            found.append([value.detach() for value in values])
        outputs = tuple(torch.cat(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(gradient)
        ctx.chunk = chunk
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        weight, (gradient,) = grad_outputs[0], ctx.saved_tensors
        for rows, factor in zip(gradient.split(ctx.chunk), weight.split(ctx.chunk), strict=True):
            rows.copy_(rows.float() * factor[:, None])  # several times as fast as operands of two dtypes
        return gradient, None, None


def finite(logits: Tensor) -> Tensor:
    """In single precision, without minus infinities: 0 times the difference of two of them would be NaN."""
    return logits.float().clamp(min=LEAST_LOGIT)


def recomputed(function: Callable[..., Any], *inputs: object) -> Any:
    """The result of ``function``, whose intermediate values are computed again in the backward pass."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
