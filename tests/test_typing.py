"""What editors and type checkers see of the installed package: pyright in its strict mode, and completion."""

import json
import os
import re
import rlcompleter
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.completer import IPCompleter, provisionalcompleter

import paceline
from paceline import api, speech
from tests.language_server import LanguageServer

ROOT = Path(__file__).parents[1]
MADE_BEFORE = """
from transformers import PreTrainedModel, PreTrainedTokenizerBase

model: PreTrainedModel = ...  # pyright: ignore
draft: PreTrainedModel = ...  # pyright: ignore
tokenizer: PreTrainedTokenizerBase = ...  # pyright: ignore
texts = ["a text"]
"""


def python_of(path):
    """The Python examples of a page."""
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def environment():
    """One where the package is found as an installed one is: its py.typed counts."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Messages of pyright, strict, by file."""
    folder = tmp_path_factory.mktemp("strict")
    *own, drop_in = python_of(ROOT / "README.md")  # each of ours goes on where the one before ended
    (folder / "readme.py").write_text("".join(own))
    (folder / "drop_in.py").write_text(MADE_BEFORE + drop_in)
    names = [*dir(paceline), "__version__"]
    (folder / "names.py").write_text("import paceline\n" + "".join(f"print(paceline.{name})\n" for name in names))
    (folder / "misspelt.py").write_text("import paceline\nprint(paceline.lode, paceline.import_module)\n")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    words = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", folder]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    messages = json.loads(done.stdout)
    assert messages["summary"]["filesAnalyzed"] == 4
    return {
        name: [one["message"] for one in messages["generalDiagnostics"] if Path(one["file"]).stem == name]
        for name in ("readme", "drop_in", "names", "misspelt")
    }


@pytest.mark.slow
def test_the_examples_of_the_readme_pass_strictly(found):
    assert found["readme"] == [] and found["drop_in"] == []


@pytest.mark.slow
def test_every_name_is_found_statically_and_no_other(found):
    assert found["names"] == []
    wrong = " ".join(found["misspelt"])
    assert '"lode" is not a known attribute' in wrong and '"import_module" is not a known attribute' in wrong


def test_the_list_of_names_is_that_of_the_api_and_of_speech():
    assert sorted(paceline.__all__) == sorted([*api.__all__, *speech.__all__])


def test_names_are_public_and_each_is_there():
    assert [name for name in dir(paceline) if name.startswith("_")] == []
    assert {*paceline.__all__, "api", "hf"} <= {*dir(paceline)}
    for name in dir(paceline):
        assert getattr(paceline, name) is not None, name
    with pytest.raises(AttributeError, match=r"module 'paceline' has no attribute 'lode'; it has .*load, "):
        _ = paceline.lode


@pytest.mark.slow
def test_an_editor_completes_names(tmp_path):
    """As VS Code, by pyright's language server."""
    with LanguageServer(tmp_path, environment()) as server:
        offered = server.complete("import paceline\npaceline.")
        assert {*dir(paceline)} <= {*offered} and not {"import_module", "limit_spinning"} & {*offered}
        assert "generate" in server.complete("import paceline\npaceline.hf.")
        assert "load" in server.complete("from paceline import l")
        assert "token_ids" in server.complete("import paceline\npaceline.generate(paceline.load(''), '')[0].")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("paceline.gen", "paceline.generate("),
        ("paceline.h", "paceline.hf"),
        ("paceline.hf.gen", "paceline.hf.generate("),
    ],
)
def test_a_prompt_completes_names(typed, offered):
    """As Python's own prompt, and Jupyter's, whose kernels ask IPython's completer."""
    completer = rlcompleter.Completer({"paceline": paceline})
    assert offered in [completer.complete(typed, number) for number in range(9)]
    notebook = IPCompleter(namespace={"paceline": paceline})
    with provisionalcompleter():
        found = {one.text for one in notebook.completions(typed, len(typed))}
    assert offered.rpartition(".")[-1].rstrip("(") in {one.rpartition(".")[-1] for one in found}
    assert not {one for one in found if one.startswith("_")}


def test_imports_in_the_documentation_are_of_names_that_exist():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [line for page in pages for example in python_of(page) for line in example.splitlines()]
    imports = [line for line in lines if re.match(r"(from|import) paceline\b", line) and "bigram" not in line]
    assert len(imports) > 10
    for line in imports:
        assert not re.search(r"\b_", line), line
        exec(line, {})
    for name in {name for line in lines for name in re.findall(r"\bpaceline\.(\w+)", line)}:
        assert name == "py" or name in {*dir(paceline), "models", "engine", "text"}, name
