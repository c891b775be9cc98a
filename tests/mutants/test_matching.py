"""Patterns of planted mistakes: they match by structure, bind consistently, and match exactly once or not at all."""

import pytest

from tests.mutants.apply import patched
from tests.mutants.match_cpp import replace_cpp
from tests.mutants.match_python import replace_python
from tests.mutants.mutant import Mutant, read

SOURCE = '''"""Words that are not code: a - b."""


class Loop:
    def step(self, left, right):
        """What a step does."""
        rest = (left -  # the first
                right).clamp(min=0)
        if rest:
            self.call("x", rest, scale=2)
            return rest
        return left - left


def step(values):
    for value in values:
        first = value
        second = value
    return [value for value in values if value]
'''

HEADER = """struct Pool {
    explicit Pool(int size) : size_{size}, used_(0) {}
    int free() const { return size_ - used_; }  // size_ - used_
    long free(long other) { return other - used_ ; }
};
inline int sum(const int *x, int n) {
    int out = 0;
    for (int i = 0; i < n; i++) out += x[i];
    if (sum(x, 0)) { out += 1; }
    return out;
}
"""


@pytest.mark.parametrize(
    ("path", "pattern", "replacement", "expected"),
    [
        ("Loop.step", "($p - $q).clamp(min=0)", "$p", "rest = (left)\n"),
        ("Loop.step", "$p - $p", "$p", "return (left)"),
        ("Loop.step", "$call('x', *$rest, **$keywords)", "pass", "        if rest:\n            pass\n"),
        ("Loop.step", "$call($x, $rest, $key=2)", "$call($rest, $x, $key=3)", "(self.call(rest, 'x', scale=3))"),
        ("Loop.step", "$f(*$all, **$keywords)\nreturn $rest", "return $rest", "if rest:\n            return rest\n"),
        (
            "Loop.step",
            "if $rest:\n    *$body",
            "if $rest is None:\n    *$body",
            "if rest is None:\n            self.call",
        ),
        ("step", "$first = $value\n$second = $value", "$second = $value", ":\n        second = value\n    return"),
        ("step", "second = $value", "", "first = value\n        \n"),
        ("step", "[$x for $x in $all if $x]", "[$x for $x in $all]", "([value for value in values])"),
    ],
)
def test_python_matches_by_structure(path, pattern, replacement, expected):
    assert expected not in SOURCE
    assert expected in replace_python(SOURCE, path, pattern, replacement)[0]


def test_the_rest_of_a_python_file_stays_as_it_is():
    text, line = replace_python(SOURCE, "Loop.step", "$left - $left", "$left")
    assert text == SOURCE.replace("left - left", "(left)") and line == 12


def test_a_metavariable_matches_the_same_code_everywhere():
    with pytest.raises(LookupError, match="0 matches in step"):
        replace_python(SOURCE, "step", "$first = $first", "pass")


def test_offsets_are_right_after_text_that_is_not_ascii():
    text, _ = replace_python('def f(x):\n    return "ä€", x + 1\n', "f", "$x + 1", "$x")
    assert text == 'def f(x):\n    return "ä€", (x)\n'


def test_a_pattern_that_matches_several_times_names_count_and_function():
    with pytest.raises(LookupError, match=r"2 matches in Loop\.step: \$a - \$b"):
        replace_python(SOURCE, "Loop.step", "$a - $b", "$a")
    with pytest.raises(LookupError, match=r"2 matches in step: \$a = \$b"):
        replace_python(SOURCE, "step", "$a = $b", "")


@pytest.mark.parametrize(
    ("path", "pattern", "replacement", "after"),
    [
        ("Pool::free", "other - $used", "other", "return other ;"),
        (
            "Pool",
            "int $free() const { return $size - $used; }",
            "int $free() { return $size; }",
            "int free() { return size_; }",
        ),
        ("sum", "$out += $x[$i]", "$out -= $x[$i]", "out -= x[i];"),
        ("sum", "if ($f($x, 0)) { $out += 1; }", "", "x[i];\n    \n    return out"),
    ],
)
def test_cpp_matches_by_tokens_within_a_definition(path, pattern, replacement, after):
    assert after in replace_cpp(HEADER, path, pattern, replacement)[0]


def test_a_cpp_pattern_is_looked_up_in_all_overloads():
    with pytest.raises(LookupError, match="2 matches in Pool::free"):
        replace_cpp(HEADER, "Pool::free", "return $a - $b;", "")
    with pytest.raises(LookupError, match="0 matches in Pool::free"):
        replace_cpp(HEADER, "Pool::free", "return $a - $a;", "")


def test_a_stale_anchor_names_what_is_near():
    with pytest.raises(LookupError, match=r"core/batch\.py has no Batch\.extent, but .*Batch\.extend"):
        patched(Mutant("stale", "core.batch:Batch.extent", "$a", "$b", ()))
    with pytest.raises(LookupError, match=r"there is no paceline/core/batches\.py; Batch is defined in .*batch\.py"):
        patched(Mutant("stale", "core.batches:Batch", "$a", "$b", ()))


def test_a_table_is_read_by_its_marks(tmp_path):
    table = tmp_path / "some.diff"
    table.write_text("Title.\n\nno call\n@ a:f\n? b.py\n? c.py::d\n- $g()\n- h\n+ pass\n\nnothing\n@ a\n? b.py\n- x\n")
    assert read(table) == [
        Mutant("no call", "a:f", "$g()\nh", "pass", ["tests/b.py", "tests/c.py::d"]),
        Mutant("nothing", "a", "x", "", ["tests/b.py"]),
    ]
    table.write_text("Title.\n\nno test\n@ a:f\n- x\n")
    with pytest.raises(ValueError, match="give one line with @"):
        read(table)
