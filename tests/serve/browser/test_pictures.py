"""The page as a picture, beside the one in the documentation; ``PACELINE_PICTURES=write`` makes those anew.

Texts and trees are the embedded pair's; times, which differ from run to run, are put in their place. Fonts are DejaVu
and Liberation, which Debian has; where they are missing, there is nothing to compare.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from tests.serve.browser.conftest import served
from tests.serve.browser.watched import PROMPT, Watched

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
WRITES = os.environ.get("PACELINE_PICTURES") == "write"
FAR = 48  # levels of 255 by which a pixel differs
MOST_FAR = 0.02  # of all pixels; a percentage that is rounded otherwise, or a moved edge, is less
MOST_BYTES = 200_000
FONTS = "document.documentElement.style.setProperty('--sans', 'DejaVu Sans'); document.documentElement.style.setProperty('--mono', 'DejaVu Sans Mono')"  # noqa: E501


@pytest.fixture(scope="module")
def run(tmp_path_factory, chromium, embedded):
    """A saved run whose times are made up, of a new server: which steps it takes plainly depends on those before."""
    folder = tmp_path_factory.mktemp("pictures")
    with served(embedded) as (url, _, recorder):
        found = Watched(chromium.new_context(), url, recorder)
        found.generate(PROMPT, max_tokens=72)
        saved = json.loads(found.downloaded("#save", folder).read_text())
        found.close()
    saved["created"] = "2026-01-01T00:00:00.000Z"
    for number, step in enumerate(saved["steps"]):
        parts = {"draft": 0.0031, "target": 0.0058 + 0.0003 * (number % 3), "decide": 0.0012, "rest": 0.0002}
        step["seconds"] = {**parts, "total": sum(parts.values())}
        step["plain_tokens_per_second"] = None
    saved["plain"] = {"tokens": 72, "seconds": 72 * 0.0049}
    path = folder / "run.json"
    path.write_text(json.dumps(saved))
    return path


def compare(page, name):
    """``page`` as it is kept; written where asked for."""
    kept, made = FOLDER / name, Path(os.environ.get("TMPDIR", "/tmp")) / f"paceline-{name}"
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    page.screenshot(path=made, animations="disabled")
    if WRITES:
        Image.open(made).convert("RGB").quantize(192).save(kept, optimize=True)
    assert kept.stat().st_size < MOST_BYTES
    one, other = (Image.open(path).convert("RGB") for path in (kept, made))
    assert one.size == other.size
    difference = ImageChops.difference(one, other).convert("L")
    far = sum(difference.histogram()[FAR + 1 :]) / (one.width * one.height)
    assert far <= MOST_FAR, f"{far:.1%} of the pixels of {made} differ from {kept}"


def has_fonts():
    try:
        return "DejaVuSans.ttf" in subprocess.run(["fc-match", "DejaVu Sans"], capture_output=True, text=True).stdout
    except OSError:
        return False


@pytest.mark.skipif(not has_fonts(), reason="DejaVu's fonts are not installed (fonts-dejavu)")
@pytest.mark.parametrize("name", ["page.png", "page-dark.png", "page-phone.png"])
def test_the_page_looks_as_it_is_documented(opened, run, name):
    size = {"width": 390, "height": 1500} if "phone" in name else {"width": 1280, "height": 1010}
    found = opened(viewport=size, color_scheme="dark" if "dark" in name else "light")
    found.page.evaluate(FONTS)
    found.page.set_input_files("#open", run)
    found.page.wait_for_selector(".answer .token")
    steps = json.loads(run.read_text())["steps"]
    # The last step of which a branch was accepted in part, with a correction.
    corrected = [at for at, step in enumerate(steps) if step["tokens"][-1]["source"] == "corrected"]
    found.step([at for at in corrected if 2 <= len(steps[at]["accepted"]) < 4][-1])
    found.page.evaluate("document.querySelector('#conversation').scrollTop = 0")
    compare(found.page, name)


def test_pictures_that_differ_are_noticed(tmp_path, monkeypatch):
    picture = Image.new("RGB", (100, 100), "white")
    monkeypatch.setattr("tests.serve.browser.test_pictures.FOLDER", tmp_path)
    monkeypatch.setattr("tests.serve.browser.test_pictures.WRITES", False)
    picture.save(tmp_path / "one.png")

    class Page:
        def evaluate(self, _):
            pass

        def wait_for_timeout(self, _):
            pass

        def screenshot(self, path, animations):
            picture.save(path)

    compare(Page(), "one.png")
    picture.paste("black", (0, 0, 20, 20))
    with pytest.raises(AssertionError, match=r"4\.0% of the pixels"):
        compare(Page(), "one.png")
