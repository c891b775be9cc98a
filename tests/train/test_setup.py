"""What a run is made of: models that it does not train are refused before it begins."""

import pytest
import torch

from paceline.models.loading import ModelError
from paceline.train.config import TargetSection
from paceline.train.setup import build_target
from tests.models.encoder_decoders import transformers_model


def test_encoder_decoders_are_refused_from_files_and_from_scratch(tmp_path):
    model = transformers_model("t5", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    for section in (TargetSection(path=str(tmp_path)), TargetSection(config=model.config.to_dict(), trained=True)):
        with pytest.raises(ModelError, match=r"is an encoder-decoder, for which only a draft of layers"):
            build_target(section, seed=0, device=torch.device("cpu"))
