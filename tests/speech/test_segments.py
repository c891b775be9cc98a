"""Cutting outputs at timestamps, against transformers' own function, over random outputs."""

import random

import pytest
import torch

from paceline.speech.model import speech_model
from paceline.speech.segments import cut, cut_all
from tests.speech.checkpoints import loaded, whisper


def theirs(tokens, seek, frames, first):
    segments, later = whisper().model._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long),
        seek_outputs=[None],
        time_offset=torch.tensor([seek], dtype=torch.float64) * 0.02 / 2,
        timestamp_begin=first,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    return [(float(one["start"]), float(one["end"]), tuple(one["tokens"].tolist())) for one in segments], int(later)


@pytest.mark.parametrize("seed", range(5))
def test_every_output_is_cut_as_transformers_cuts_it(seed):
    checkpoint, choose = speech_model(loaded()).checkpoint, random.Random(seed)
    first = checkpoint.first_timestamp
    counts = set()
    for _ in range(60):
        tokens = [
            choose.choice((choose.randrange(40), choose.randrange(first, first + 90)))
            for _ in range(choose.randrange(9))
        ]
        seek, frames = choose.randrange(1000), choose.randrange(1, 201)
        wanted, later = theirs(tokens, seek, frames, first)
        cuts, own = cut(tokens, seek=seek, frames=frames, checkpoint=checkpoint)
        assert [one.tokens for one in cuts] == [tokens for _, _, tokens in wanted] and own == (later or frames)
        for one, (start, end, _) in zip(cuts, wanted, strict=True):
            assert (one.start, one.end) == pytest.approx((start, end), abs=1e-9)
        counts.add(len(cuts))
    assert {1, 2, 3} <= counts


def test_a_window_that_ends_where_it_begins_is_passed_over():
    checkpoint = speech_model(loaded()).checkpoint
    tokens = [checkpoint.first_timestamp] * 2
    assert theirs(tokens, 0, 200, checkpoint.first_timestamp)[1] == 0  # which transformers would repeat for ever
    assert cut(tokens, seek=0, frames=200, checkpoint=checkpoint)[1] == 200


def test_an_interrupted_window_loses_no_text():
    checkpoint, choose = speech_model(loaded()).checkpoint, random.Random(0)
    first = checkpoint.first_timestamp
    rests = 0
    for _ in range(200):
        tokens = [choose.choice((choose.randrange(40), choose.randrange(first, first + 90))) for _ in range(8)]
        cuts = cut_all(tokens, seek=100, frames=200, checkpoint=checkpoint)
        kept = [token for one in cuts for token in one.tokens]
        assert [token for token in kept if token < first] == [token for token in tokens if token < first]
        whole = cut(tokens, seek=100, frames=200, checkpoint=checkpoint)[0]
        assert cuts[: len(whole)] == whole
        for rest in cuts[len(whole) :]:
            rests += 1
            assert (rest.start, rest.end) == pytest.approx((whole[-1].end, 3.0))
    assert rests > 9
