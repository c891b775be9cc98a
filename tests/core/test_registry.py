"""Names from a table and from installed packages: what is found, what is refused, and when anything is imported."""

import sys
from abc import ABC, abstractmethod

import pytest

from paceline.core.registry import Registry

GROUP = "paceline.tests"
TABLE = {"walk": "tests.core.test_registry:Walk"}


class Gait(ABC):
    @abstractmethod
    def go(self): ...


class Walk(Gait):
    def go(self):
        return "slowly"


class Planned(Gait):
    """An entry of a package that was written for another version."""


class Stone:
    """Not a gait."""


NOT_A_CLASS = Walk()


@pytest.fixture
def registry():
    return Registry("gait", dict(TABLE), group=GROUP, base="tests.core.test_registry:Gait")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put packages' metadata, as an installer leaves it, on the path; gives a function (name, entries, code)."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name, entries, code=""):
        module = name.replace("-", "_")
        folder = tmp_path / f"{module}-1.5.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        if code:
            (tmp_path / f"{module}.py").write_text(code)

    yield put
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


RUN = "from tests.core.test_registry import Gait\nclass Run(Gait):\n    def go(self): return 'fast'\n"


def test_a_name_of_the_table_is_found(registry):
    assert registry.find("walk") is Walk
    assert list(registry) == ["walk"] and registry.builtin == ("walk",)


def test_a_name_of_an_installed_package_is_found_and_listed_beside_the_table(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    assert registry.find("run")().go() == "fast"
    assert list(registry) == ["run", "walk"]
    assert "run" in registry and "walk" in registry and "crawl" not in registry
    assert registry.builtin == ("walk",)


def test_a_class_is_called_by_its_name_or_else_its_own(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    assert [registry.name_of(registry.find(name)) for name in ("walk", "run")] == ["walk", "run"]
    assert registry.name_of(int) == "int"


def test_listing_imports_nothing_of_a_package(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, "raise SystemExit")
    assert list(registry) == ["run", "walk"] and "run" in registry
    assert registry.find("walk") is Walk
    assert "fast_gaits" not in sys.modules


def test_packages_are_looked_for_when_names_are_first_asked_for_and_once(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    assert "run" in registry, "installed after the registry was made, before it was asked"
    install("late-gaits", {"jump": "fast_gaits:Run"})
    assert "jump" not in registry
    registry.refresh()
    assert "jump" in registry


def test_a_registry_without_a_group_has_its_table_alone(install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    assert list(Registry("gait", dict(TABLE))) == ["walk"]


def test_other_groups_are_left_alone(install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    assert list(Registry("gait", dict(TABLE), group="paceline.other")) == ["walk"]


def test_an_unknown_name_is_refused_with_all_that_are_known(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    with pytest.raises(ValueError, match=r"^unknown gait 'crawl'; known: run, walk$"):
        registry.find("crawl")


def test_a_package_that_takes_a_name_of_the_table_is_refused_with_both_origins(registry, install):
    install("fast-gaits", {"walk": "fast_gaits:Run", "run": "fast_gaits:Run"}, RUN)
    both = r"gait name 'walk' is claimed by paceline \(tests\S+:Walk\) and by fast-gaits 1\.5 \(fast_gaits:Run\); unin"
    with pytest.raises(ValueError, match=both):
        registry.find("walk")
    assert registry.find("run")().go() == "fast", "the other names stay usable"
    assert list(registry) == ["run", "walk"]


def test_two_packages_that_take_one_name_are_refused_with_both_origins(registry, install):
    install("fast-gaits", {"run": "fast_gaits:Run"}, RUN)
    install("other-gaits", {"run": "other_gaits:Run"}, RUN)
    with pytest.raises(ValueError, match="gait name 'run' is claimed by") as caught:
        registry.find("run")
    for origin in ("fast-gaits 1.5 (fast_gaits:Run)", "other-gaits 1.5 (other_gaits:Run)"):
        assert origin in str(caught.value)
    assert registry.find("walk") is Walk


THIS = "tests.core.test_registry"
BROKEN = {
    "missing dependency": (
        "odd:Run",
        "import not_there",
        "ModuleNotFoundError: No module named 'not_there'",
    ),
    "fails while imported": ("odd:Run", "1 / 0", "ZeroDivisionError: division by zero; repair the package or uninst"),
    "no such module": ("elsewhere_at_all:Run", "", "ModuleNotFoundError: No module named 'elsewhere_at_all'"),
    "no such class": ("odd:Missing", RUN, "AttributeError: module 'odd' has no attribute 'Missing'"),
    "not a module at all": ("!!", RUN, "cannot be imported"),
    "of another kind": (f"{THIS}:Stone", "", rf"does not derive from {THIS}\.Gait, as every gait must"),
    "not a class": (f"{THIS}:NOT_A_CLASS", "", "is <.*Walk object.*; name a class there"),
    "of another version": (f"{THIS}:Planned", "", "does not implement go; is it written for this version"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_package_is_refused_by_name_when_it_is_used_and_not_before(registry, install, case):
    value, code, message = BROKEN[case]
    install("odd", {"run": value}, code)
    assert list(registry) == ["run", "walk"] and registry.find("walk") is Walk
    with pytest.raises(ValueError, match=message) as caught:
        registry.find("run")
    assert f"gait 'run' of odd 1.5 ({value}) " in str(caught.value)
