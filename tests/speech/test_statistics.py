"""Statistics of outputs against transformers' own functions."""

import pytest
import torch

from paceline.speech.statistics import compression_ratio, mean_logprob, token_logprob
from tests.speech.checkpoints import whisper


def test_compression_ratios_are_transformers():
    model = whisper().model
    for tokens in ([1], [5, 6, 7] * 20, list(range(60))):
        for size in (174, 51865):
            assert compression_ratio(tokens, size) == model._retrieve_compression_ratio(torch.tensor(tokens), size)


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.7])
def test_mean_logprobs_undo_temperatures_and_keep_filters(temperature):
    torch.manual_seed(0)
    scores = torch.randn(6, 50) / (temperature or 1.0)
    scores[:, 10:20] = -torch.inf
    tokens = [1, 2, 25, 3, 49, 0]
    wanted = whisper().model._retrieve_avg_logprobs(list(scores), torch.tensor(tokens), temperature)
    own = [token_logprob(row, token, temperature) for row, token in zip(scores, tokens, strict=True)]
    assert mean_logprob(own) == pytest.approx(float(wanted), abs=1e-6)
