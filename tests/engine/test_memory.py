"""The memory of rows, and the refusal that says how many would fit."""

import re

import pytest
import torch

from paceline.api import Engine
from paceline.core.cache import SlotCache
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.sublayer_search import OnTheFly
from paceline.engine import memory
from paceline.engine.memory import GIB, check_memory, extra_bytes, fitting_rows, row_bytes, weight_bytes
from paceline.models.sublayers import SkippedSublayers
from tests import tiny
from tests.api.engines import bare
from tests.drafters.test_model import tiny as model_drafter


@pytest.fixture
def free(monkeypatch):
    """Sets how much is free."""

    def give(count):
        monkeypatch.setattr(memory, "free_memory", lambda device: count)

    return give


def searching(target):
    """A drafter that takes a row of the target's cache beside the others."""
    return LayerSkipDrafter(sublayers=SkippedSublayers(), on_the_fly=OnTheFly(window=4))


@pytest.mark.parametrize(
    "make", [lambda target: NoDrafter(), model_drafter, searching], ids=["none", "model", "searching"]
)
def test_row_bytes_cover_the_caches_that_are_really_allocated(make, monkeypatch):
    _, target = tiny.target()
    drafter = make(target)
    allocated = []
    init = SlotCache.__init__

    def noting(self, **options):
        init(self, **options)
        allocated.append((self.keys.nbytes + self.values.nbytes) * self.rows // (self.rows + 1))

    monkeypatch.setattr(SlotCache, "__init__", noting)
    Engine(bare(), drafter=drafter, num_draft_tokens=4, batch_size=3, max_length=60)
    each = row_bytes(target, drafter, max_length=60, num_draft_tokens=4)
    nodes = drafter.max_nodes(4)
    rest = 8 * 60 + 3 * nodes * target.vocab_size * 4
    counted = 3 * (each - rest) + extra_bytes(target, drafter, max_length=60, num_draft_tokens=4)
    assert sum(allocated) <= counted <= sum(allocated) * 1.1


def test_rows_that_do_not_fit_are_refused_with_the_number_that_would(free):
    _, target = tiny.target()
    each = row_bytes(target, NoDrafter(), max_length=50, num_draft_tokens=0)
    options = dict(max_length=50, num_draft_tokens=0, weights=3 * GIB)
    for fitting in (1, 5, 8):
        free(each * fitting)
        check_memory(target, NoDrafter(), rows=fitting, **options)
        message = f"cache {(fitting + 1) * each / GIB:.2f} GiB for {fitting + 1} rows of 50 tokens exceed the memory"
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            check_memory(target, NoDrafter(), rows=fitting + 1, **options)
        assert str(caught.value).startswith("weights 3.00 GiB (loaded) + ")
        assert str(caught.value).endswith(f"lower batch_size to {fitting}")


def test_a_row_that_a_drafter_takes_beside_those_of_the_target_is_counted_once(free):
    _, target = tiny.target()
    drafter, options = searching(target), dict(max_length=50, num_draft_tokens=3)
    each, extra = row_bytes(target, drafter, **options), extra_bytes(target, drafter, **options)
    assert each == row_bytes(target, LayerSkipDrafter(sublayers=SkippedSublayers()), **options)
    free(4 * each + extra)
    check_memory(target, drafter, rows=4, weights=0, **options)
    free(4 * each + extra - 1)
    with pytest.raises(ValueError, match=r"lower batch_size to 3$"):
        check_memory(target, drafter, rows=4, weights=0, **options)
    free(2 * (4 * each + extra))
    assert fitting_rows(target, drafter, most=16, **options) == 4
    several = CandidateDrafters([drafter, searching(target), NoDrafter()])
    assert extra_bytes(target, several, **options) == 2 * extra


def test_if_no_row_fits_the_error_asks_for_shorter_sequences(free):
    _, target = tiny.target()
    free(10)
    with pytest.raises(ValueError, match=r"0\.00 GiB is free: lower max_tokens or shorten the prompts"):
        check_memory(target, NoDrafter(), rows=1, max_length=50, num_draft_tokens=0, weights=0)


@pytest.mark.parametrize(("share", "most", "rows"), [(8, 16, 4), (8, 3, 3), (1, 16, 1), (0, 16, 1)])
def test_half_of_what_is_free_is_left_to_others(free, share, most, rows):
    _, target = tiny.target()
    each = row_bytes(target, NoDrafter(), max_length=50, num_draft_tokens=0)
    free(each * share)
    assert fitting_rows(target, NoDrafter(), max_length=50, num_draft_tokens=0, most=most) == rows


def test_tied_weights_count_once():
    layer, tied = torch.nn.Linear(4, 5, bias=False), torch.nn.Linear(4, 5, bias=False)
    assert weight_bytes([layer, tied]) == 2 * 4 * 5 * 4
    tied.weight = layer.weight
    assert weight_bytes([layer, tied]) == weight_bytes([layer, layer]) == 4 * 5 * 4
