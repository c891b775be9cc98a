"""JSON without NaN and infinities."""

import json
import math

from paceline.text.valid_json import to_json


def test_numbers_that_json_does_not_have_are_null():
    value = {"a": math.nan, "b": [1.5, (-math.inf, "NaN")], "c": {"d": math.inf}, "e": 2}
    text = to_json(value)
    refuse = {"parse_constant": lambda name: (_ for _ in ()).throw(AssertionError(name))}
    assert json.loads(text, **refuse) == {"a": None, "b": [1.5, [None, "NaN"]], "c": {"d": None}, "e": 2}


def test_anything_else_is_as_the_library_writes_it():
    value = {"text": "a\n\u00e9", "tokens": (1, 2), "none": None, "x": 0.1}
    assert to_json(value) == json.dumps(value)
