"""``Piece.rejected``: the text of the draft tokens in whose place a token came."""

import pytest

from paceline.api import Source, generate, load, stream
from paceline.engine.readers import AsyncReader, SyncReader
from tests.api.checkpoints import pair
from tests.api.engines import greedy, read_by

PROMPT, LONGEST = "def add(first,", 3


def pieces_of(**options):
    params = greedy(max_tokens=96, ignore_eos=True)
    drafted = dict(drafter=load(pair().draft), num_draft_tokens=LONGEST)
    return list(stream(load(pair().target), PROMPT, params, **drafted, **options))


@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
def test_rejected_text_is_what_the_draft_goes_on_with(reader, monkeypatch):
    read_by(monkeypatch, reader)
    pieces = pieces_of(rejected=True)
    draft, target = load(pair().draft), load(pair().target)
    tokens = target.tokenizer.encode(PROMPT)
    num_rejected = 0
    for piece in pieces:
        if piece.source is Source.CORRECTED:
            num_rejected += 1
            own = [generate(draft, tokens, greedy(max_tokens=n, ignore_eos=True)) for n in range(1, LONGEST + 1)]
            assert piece.rejected in [result.text for (result,) in own]
        else:
            assert piece.rejected == ""
        tokens = [*tokens, piece.token]
    assert num_rejected > 2


def test_nothing_is_reported_unless_asked_for():
    assert {piece.rejected for piece in pieces_of()} == {""}
