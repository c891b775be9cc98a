"""One thread: the models are so small that waking a second one costs more than it gives. No profiles of this user."""

import os

import torch

torch.set_num_threads(1)
os.environ["PACELINE_PROFILES"] = os.path.join(os.path.dirname(__file__), "no profiles")
