"""How much memory a device has left. Knows nothing of what it is wanted for."""

import psutil
import torch


def free_memory(device: torch.device | str) -> int:
    """Bytes that can still be allocated on ``device``, a CUDA device or the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator keeps back counts as taken there, but serves the next tensor.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available
