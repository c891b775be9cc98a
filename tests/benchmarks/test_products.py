"""Every way to multiply the same matrices gives the same products, and the table compares them in pairs."""

import io

import pytest
import torch
from rich.console import Console

from benchmarks import products
from benchmarks.products import EAGER, PACKAGED, PANELS, TUNED, Timed, measure, section_of, ways

SHAPES = ((40, 24), (32, 40))
IN_SECONDS = [name for name, _ in ways([]) if not name.startswith(("torch.compile", "AOTInductor"))]


def text_of(shown):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown.table())
    return console.export_text()


def multiplied(way):
    weights = [torch.randn(shape).bfloat16() for shape in SHAPES]
    inputs = {width: torch.randn(3, width).bfloat16() for _, width in SHAPES}
    found = dict(ways(weights))[way](3)(inputs)
    for weight, product in zip(weights, found, strict=True):
        torch.testing.assert_close(product, inputs[weight.shape[1]] @ weight.T, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("way", IN_SECONDS)
@torch.inference_mode()
def test_a_way_multiplies_every_matrix_with_the_input_of_its_width(way):
    try:
        multiplied(way)
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"not here: {error}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # torch's own, about itself
@pytest.mark.parametrize("way", [PACKAGED, TUNED])
@torch.inference_mode()
def test_packages_compiled_ahead_multiply_too(way):
    multiplied(way)


def test_ways_take_turns_and_one_that_is_not_there_is_reported(monkeypatch):
    def broken(rows):
        raise (RuntimeError if rows == 1 else KeyError)("no such thing here\nand more")

    def two(weights):
        yield PANELS, lambda rows: lambda inputs: [inputs[weight.shape[1]] @ weight.T for weight in weights]
        yield "another", broken

    monkeypatch.setattr(products, "ways", two)
    found = measure(SHAPES, layers=1, rows=(1, 2), repeats=3)
    assert [(timed.way, timed.rows, len(timed.seconds)) for timed in found] == [
        ("another", 1, 0),
        (PANELS, 1, 3),
        ("another", 2, 0),
        (PANELS, 2, 3),
    ]
    assert found[0].missing == "no such thing here" and "no such thing here" in found[2].missing
    alone = measure(SHAPES, layers=1, rows=(1,), repeats=3, only=["none of these"])
    assert [timed.way for timed in alone] == [PANELS]
    assert "no such thing here" in text_of(section_of(found, 1000))


def test_the_table_has_medians_and_paired_ratios():
    taken = [
        Timed(way=PANELS, rows=2, seconds=(1.0, 2.0, 4.0)),
        Timed(way=EAGER, rows=2, seconds=(3.0, 6.0, 20.0)),
    ]
    text = text_of(section_of(taken, 6_000_000_000))
    assert "3.0" in text and "1.0 (3.00)" in text


def test_nothing_to_measure_is_refused():
    with pytest.raises(ValueError, match="repeats=0"):
        measure(SHAPES, repeats=0)
