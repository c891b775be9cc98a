"""One thread: the models are so small that waking a second one costs more than it gives."""

import torch

torch.set_num_threads(1)
