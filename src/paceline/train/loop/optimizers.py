"""The optimisers of a run: AdamW for everything, or Muon for hidden matrices and AdamW for the rest."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from paceline.train.loop.config import OptimiserSection

# Layers whose matrices have one row per token or position, each learned for itself. The last two are a Markov head's.
TABLES: Final = frozenset({"embed", "embeddings", "position", "relative", "head", "lm_heads", "before", "after"})


def make_optimizers(parameters: Mapping[str, nn.Parameter], options: OptimiserSection) -> Sequence[Optimizer]:
    """Optimisers whose state exists from the start, so that a checkpoint can be read into it.

    Every group has the ``part`` of the task that it is of and ``rate``, its learning rate before the schedule; groups
    of AdamW come last.
    """
    muon_rate = options.muon_learning_rate or options.learning_rate
    by_muon: dict[str, list[nn.Parameter]] = {}
    by_adamw: dict[tuple[bool, str], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if options.kind == "muon" and is_hidden_matrix(name, parameter):
            by_muon.setdefault(part_of(name), []).append(parameter)
        else:
            by_adamw.setdefault((parameter.dim() >= 2, part_of(name)), []).append(parameter)
    optimizers: list[Optimizer] = []
    if by_muon:
        # Updates as large as AdamW's, whatever the shape (arXiv 2502.16982).
        groups = [{"params": found, "part": part, "rate": muon_rate} for part, found in by_muon.items()]
        muon = Muon(groups, lr=muon_rate, weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw")
        _begin(muon, "momentum_buffer")
        optimizers.append(muon)
    if by_adamw:
        groups = [
            {
                "params": found,
                "part": part,
                "rate": options.learning_rate,
                "weight_decay": options.weight_decay if is_matrix else 0.0,
            }
            for (is_matrix, part), found in by_adamw.items()
        ]
        adamw = AdamW(groups, lr=options.learning_rate, betas=options.betas)
        _begin(adamw, "exp_avg", "exp_avg_sq", counted=True)
        optimizers.append(adamw)
    return optimizers


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon updates ``parameter``: a matrix from hidden states to hidden states."""
    layer = [word for word in name.split(".")[:-1] if not word.isdecimal()][-1:]
    return parameter.dim() == 2 and min(parameter.shape) > 1 and TABLES.isdisjoint(layer)


def part_of(name: str) -> str:
    """The submodule of the task that has the parameter ``name``."""
    return name.partition(".")[0]


def _begin(optimizer: Optimizer, *names: str, counted: bool = False) -> None:
    """The state of an optimiser that has made no step: zeros."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = {name: torch.zeros_like(parameter, requires_grad=False) for name in names}
            optimizer.state[parameter] = ({"step": torch.tensor(0.0)} if counted else {}) | state
