"""The tool that puts real output into the pages, and what the page of the command line must hold."""

import importlib.util
import json
from pathlib import Path

import pytest

from paceline.cli import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"

PAGE = """# Title

<!-- output: echo "in $TARGET" > file; cat file -->
```console
$ old command
old output
```

```console
$ untouched
```

<!-- output: cat file; echo lost >&2; echo 'spaces   '; pwd; echo kept >&2 2>&1; (exit 3); echo "exit code $?" -->

```console
```
"""

FRESH = """# Title

<!-- output: echo "in $TARGET" > file; cat file -->
```console
$ echo "in $TARGET" > file; cat file
in $TARGET
```

```console
$ untouched
```

<!-- output: cat file; echo lost >&2; echo 'spaces   '; pwd; echo kept >&2 2>&1; (exit 3); echo "exit code $?" -->

```console
$ cat file; echo lost >&2; echo 'spaces   '; pwd; echo kept >&2 2>&1; (exit 3); echo "exit code $?"
in $TARGET
spaces
FOLDER
exit code 3
```
"""


@pytest.fixture(scope="module")
def outputs():
    spec = importlib.util.spec_from_file_location("outputs", DOCS / "outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_hold_their_command_and_what_it_prints(outputs):
    page = PAGE.replace("pwd;", "basename /a/FOLDER;")
    fresh = outputs.rewrite(page, variables={"TARGET": "/some/where"})
    assert fresh == FRESH.replace("pwd;", "basename /a/FOLDER;")
    assert outputs.rewrite(fresh, variables={"TARGET": "/else/where"}) == fresh


def test_standard_error_is_shown_where_the_command_says_so(outputs, tmp_path):
    assert outputs.run("echo told >&2", folder=tmp_path, variables={}) == ""
    assert outputs.run("{ echo told >&2; } 2>&1", folder=tmp_path, variables={}) == "told\n"
    assert outputs.run("echo $NO_COLOR $COLUMNS; echo $PWD/x", folder=tmp_path, variables={}) == "1 100\nx\n"


def test_check_says_what_would_change_and_writes_nothing(outputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.embedded_pair", lambda: (Path("/t"), Path("/d")))
    page = tmp_path / "page.md"
    page.write_text("<!-- output: echo $DRAFT -->\n```console\nold\n```\n")
    before = page.read_text()
    assert outputs.main(["--check", str(page)]) == 1
    out = capsys.readouterr().out
    assert "-old\n" in out and "+$ echo $DRAFT\n" in out and page.read_text() == before
    assert outputs.main([str(page)]) == 0
    assert page.read_text() == "<!-- output: echo $DRAFT -->\n```console\n$ echo $DRAFT\n$DRAFT\n```\n"
    assert outputs.main(["--check", str(page)]) == 0


def test_a_command_that_fails_leaves_its_page_as_it_is(outputs, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- output: echo told >&2; false -->\n```console\nold\n```\n")
    assert outputs.main([str(page)]) == 1
    assert "```console\nold\n```" in page.read_text()
    assert "told" in capsys.readouterr().err


def test_outputs_are_of_the_commands_and_of_the_code_that_is_there(outputs):
    known = json.loads(outputs.DIGESTS.read_text(encoding="utf-8"))
    for path in outputs.pages():
        current = outputs.digests(path.read_text(encoding="utf-8"))
        stale = [
            command for command, digest in current.items() if known[str(path.relative_to(DOCS))].get(command) != digest
        ]
        assert not stale, f"{path.name}: run `make docs-outputs`: {stale}"


def test_a_change_of_what_prints_makes_an_output_stale(outputs, monkeypatch):
    page = "<!-- output: paceline data prepare x | head; python -m benchmarks verifier-cost -->\n```console\n```\n"
    before = outputs.digests(page)
    (command,) = before
    named = {path.name for path in outputs._modules(command)}
    assert named == {"data_prepare.py", "verifier_cost.py"}
    reached = {path.name for start in outputs._modules(command) for path in outputs._imported(start)}
    assert {"corpus.py", "options.py", "study.py"} <= reached
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path.name == "study.py" else b""))
    assert outputs.digests(page) != before


def test_page_of_the_command_line_shows_every_command_and_exit_code(outputs):
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    shown = [block["command"] for block in outputs.BLOCK.finditer(page)]
    for name in {name.split()[0] for name in COMMANDS} - {"bench", "data"}:  # they have pages of their own
        assert any(f"paceline {name}" in command for command in shown), name
    for block in outputs.BLOCK.finditer(page):
        assert block["body"].startswith(f"$ {block['command']}\n"), "run `make docs-outputs`"
    for code in ("exit code 1", "exit code 2", "exit code 130"):
        assert code in page
    assert str(Path.cwd()) not in page and "/tmp/" not in page and "Traceback" not in page
