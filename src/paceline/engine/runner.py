"""Which implementation of the parts of a step around the models runs: the fastest there is, the plain one at worst."""

from collections.abc import Callable

import torch

from paceline.core.parts import Parts
from paceline.decode import Decoder
from paceline.engine.graphs import CudaGraphs, GraphedStep
from paceline.engine.reports import AtOnce, Overlapped, Reports
from paceline.kernels.cpu.batch import CpuBatch, CpuStats
from paceline.kernels.cpu.build import KernelError
from paceline.kernels.cpu.noise import CpuNoise
from paceline.models.backend import warn_eager
from paceline.models.native.decoder import DecoderLM


def parts_for(device: torch.device) -> Parts:
    """Everything of a step but its models, by the fastest way to the same texts."""
    if device.type != "cpu":
        return Parts()
    try:
        return Parts(noise=CpuNoise(), batch=CpuBatch, stats=CpuStats)
    except KernelError as error:
        warn_eager(str(error))
        return Parts()


def step_for(decoder: Decoder) -> Callable[[], None]:
    """What does the steps of ``decoder``: itself, or recordings of what it calls on the device."""
    if decoder.batch.device.type != "cuda" or not isinstance(decoder.target, DecoderLM):
        return decoder.step
    return GraphedStep(decoder=decoder, graphs=CudaGraphs(decoder.batch.device))


def reports_for(decoder: Decoder) -> Reports:
    """How the steps of ``decoder`` are read: while the next one runs, where the device runs behind the host."""
    return Overlapped(decoder) if decoder.batch.device.type == "cuda" else AtOnce(decoder)
