"""Some hundred made-up requests, the same in every run; `make fuzz` sends ten thousand that are new."""

from tests.fuzz.target import designs
from tests.serve.fuzz.attack import attack_with_bodies, attack_with_bytes
from tests.serve.fuzz.judge import Tally
from tests.serve.fuzz.pages import check_page

FIRST = {design[0]: design for design in reversed(designs()) if design[1] == "coupled" and design[2] is None}


def test_no_drafter_lets_a_request_be_answered_wrongly_or_spoil_others():
    tally = Tally()
    for number, name in enumerate(sorted(FIRST)):
        attack_with_bodies(FIRST[name], 8, number, tally)
    assert tally["200"] > 50 and tally["400"] > 50 and tally["compared"] > 30


def test_no_bytes_disturb_the_server():
    tally = Tally()
    attack_with_bytes(150, 7, tally)
    assert {"200", "400", "405", "404", "415"} <= set(tally)


def test_the_page_of_the_server_is_true():
    check_page(12, 3, Tally())
