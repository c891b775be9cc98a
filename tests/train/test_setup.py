"""What a run is made of."""

import torch

from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.config import TargetSection
from paceline.train.setup import build_target
from tests.models.encoder_decoders import transformers_model


def test_encoder_decoders_are_built_from_files_and_from_scratch(tmp_path):
    model = transformers_model("t5", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    for section in (TargetSection(path=str(tmp_path)), TargetSection(config=model.config.to_dict(), trained=True)):
        built = build_target(section, seed=0, device=torch.device("cpu")).lm
        assert isinstance(built, EncoderDecoderLM) and built.config.encoder is not None
