"""Tests of many combinations: which cases the ordinary suite runs."""

from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

from tests.conftest import pytest_collection_modifyitems as choose


class Item:
    """What of a collected test the choice reads."""

    path = Path("test_one.py")

    def __init__(self, name, marks=("each_value",), **params):
        self.originalname, self.marks = name, {mark: () for mark in marks}
        self.nodeid, self.callspec = f"{name}{sorted(params.items())}", SimpleNamespace(params=params)

    def get_closest_marker(self, name):
        return SimpleNamespace(args=self.marks[name]) if name in self.marks else None

    def add_marker(self, mark):
        self.marks[mark.name] = mark.args


def soon(items):
    return [item for item in items if "slow" not in item.marks]


def test_every_value_of_every_parameter_occurs_and_few_cases_are_left():
    items = [Item("a", one=one, two=two, three=three) for one, two, three in product(range(6), "xyz", ({}, {1: 2}))]
    choose(items)
    kept = [item.callspec.params for item in soon(items)]
    assert {item["one"] for item in kept} == set(range(6)) and {item["two"] for item in kept} == set("xyz")
    assert {repr(item["three"]) for item in kept} == {"{}", "{1: 2}"} and len(kept) <= 9


def test_tests_choose_apart_and_those_without_the_mark_run_whole():
    items = [Item(name, one=one) for name in "ab" for one in range(3)]
    items += [Item("c", marks=(), one=1) for _ in range(3)]
    choose(items)
    assert soon(items) == items


def test_slow_cases_show_no_value():
    slow, other = Item("a", marks=("each_value", "slow"), one=1), Item("a", one=1)
    choose([slow, other])
    assert soon([slow, other]) == [other]


def test_of_each_test_one_case_in_n_stays_and_values_take_turns_in_the_file():
    items = [Item(name, marks=(), drafter=drafter) for name in "abcdef" for drafter in range(9)]
    items += [Item("g", marks=(), drafter=0), Item("without parameters", marks=())]
    for item in items:
        item.marks["one_in"] = (3,)
    del items[-1].callspec
    choose(items)
    kept = soon(items)
    assert Counter(item.originalname for item in kept[:-2]) == dict.fromkeys("abcdef", 3)
    assert kept[-2:] == items[-2:]  # a test is never left out whole
    shown = Counter(item.callspec.params["drafter"] for item in kept[:-1])
    assert set(shown) == set(range(9)) and max(shown.values()) - min(shown.values()) <= 1
