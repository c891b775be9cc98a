"""Log-mel features by the checkpoint's own feature extractor, called as transformers' pipeline calls it."""

from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from paceline.speech.audio import Sound
from paceline.speech.checkpoint import CheckpointError

FILES = ("preprocessor_config.json", "processor_config.json")


@final
class Features:
    """The feature extractor of a directory. Raises CheckpointError without one, or with one for another model."""

    def __init__(self, directory: Path, *, mels: int, frames: int) -> None:
        from transformers import WhisperFeatureExtractor

        if not any((directory / name).is_file() for name in FILES):
            raise CheckpointError(
                f"{directory}: no {FILES[0]}, which says how sound becomes features; take the one of the original "
                "checkpoint"
            )
        try:
            extractor: Any = WhisperFeatureExtractor.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # whatever a broken file makes it raise
            raise CheckpointError(f"{directory / FILES[0]} is no feature extractor ({error})") from error
        if extractor.feature_size != mels or extractor.nb_max_frames != frames:
            raise CheckpointError(
                f"{directory}: its feature extractor gives {extractor.feature_size} features of "
                f"{extractor.nb_max_frames} frames, and its model reads {mels} of {frames}; take the file that belongs "
                "to the model"
            )
        self._extractor = extractor
        self.rate: int = extractor.sampling_rate
        self.num_samples: int = extractor.n_samples  # of one window

    def __call__(self, sound: Sound) -> Tensor:
        """Features [W, T] of a sound: padded to one window, or all of a longer one, float32."""
        long = len(sound.samples) > self.num_samples
        how = {"truncation": False, "padding": "longest"} if long else {}
        found = self._extractor(sound.samples, sampling_rate=self.rate, return_tensors="pt", **how)
        features = found["input_features"][0]
        assert isinstance(features, torch.Tensor)
        return features
