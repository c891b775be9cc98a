"""The page in use: stopped, by keyboard and touch, in the dark, on a phone, with a key, and by those who mean harm."""

import re
import time

import pytest

from tests.serve.browser.conftest import served
from tests.serve.browser.watched import PROMPT, Watched, asked

HOSTILE = "</script><script>hacked=1</script><img src=x onerror=hacked=1>\"'&amp;<svg onload=hacked=1>"
PAIRS = [  # a selector, and where its ground is
    ("#model", "#model"),
    (".turn.prompt .text", "body"),
    (".reply h2", "body"),
    (".answer .by-draft-0", ".answer .by-draft-0"),
    (".answer .by-corrected", ".answer .by-corrected"),
    (".answer .by-bonus", ".answer .by-bonus"),
    ("#go", "#go"),
    ("#replay-said", "#replay"),
    ("#figures dt", "body"),
    (".key li", ".card"),
    ("summary", "#composer"),
]
CONTRAST = """([text, ground]) => {
  const light = (name, property) => {
    const [r, g, b] = getComputedStyle(document.querySelector(name))[property].match(/[\\d.]+/g).map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [one, other] = [light(text, "color"), light(ground, "backgroundColor")];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""
NAMELESS = """(all) => all.filter((one) => one.checkVisibility() && ![
  one.getAttribute("aria-label"), one.innerText, one.title, ...[...(one.labels ?? [])].map((label) => label.innerText),
].some((name) => name?.trim())).map((one) => one.outerHTML)"""


def test_stopping_ends_the_request_and_frees_its_row(opened, server):
    found = opened()
    rows = server[1].decoder.batch.requests
    found.generate(wait=False, max_tokens=900, temperature=1)
    found.page.wait_for_selector(".answer .token")
    assert sum(row is not None for row in rows) == 1
    found.page.click("#stop")
    found.wait()
    end = time.monotonic() + 5
    while any(row is not None for row in rows) and time.monotonic() < end:
        time.sleep(0.02)
    assert all(row is None for row in rows)
    count = len(found.tokens())
    assert 0 < count < 900 and found.page.text_content("#status").startswith("Stopped")
    found.page.wait_for_timeout(200)
    assert len(found.tokens()) == count and not found.page.locator("#alert").is_visible()


def test_escape_stops_too(opened, server):
    found = opened()
    found.generate(wait=False, max_tokens=900, temperature=1)
    found.page.wait_for_selector(".answer .token")
    found.page.keyboard.press("Escape")
    found.wait()
    assert found.page.text_content("#status").startswith("Stopped")


def test_everything_can_be_done_by_keyboard(opened):
    found = opened()
    keys = found.page.keyboard
    assert found.page.evaluate("document.activeElement.id") == "prompt"
    keys.type("import os")
    keys.press("Control+Enter")
    found.page.wait_for_selector("#stop:not([hidden])")
    found.wait()
    found.page.locator('.answer [tabindex="0"]').focus()
    _, steps, _ = found.reported()
    active = "Number(document.activeElement.dataset.token)"
    for key, wanted in (("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowDown", len(steps[0]["tokens"])), ("ArrowUp", 0)):
        keys.press(key)
        assert found.page.evaluate(active) == wanted
        assert found.page.locator("#tooltip").is_visible()
    keys.press("End")
    assert found.page.evaluate(active) == len(found.tokens()) - 1
    keys.press("Home")
    keys.press("Enter")
    assert found.page.text_content("#replay-title").startswith("Step 1 of")
    keys.press("Escape")
    assert not found.page.locator("#tooltip").is_visible()
    found.page.focus("#slider")
    keys.press("ArrowRight")
    assert found.page.text_content("#replay-title").startswith("Step 2 of")
    assert found.page.get_attribute("#slider", "aria-valuetext").startswith("step 2 of")
    assert found.page.locator('.answer [tabindex="0"]').count() == 1  # one stop of the tab key, not one for each token
    # The ring that shows where the keyboard is.
    assert found.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_replay_plays_to_the_end(opened):
    found = opened()
    found.generate(max_tokens=12)
    _, steps, _ = found.reported()
    found.page.click("#play")
    assert found.page.text_content("#replay-title") == f"Step 1 of {len(steps)}"
    assert found.page.text_content("#play") == "Pause"
    found.until("document.querySelector('#play').textContent === 'Play'")
    assert found.page.text_content("#replay-title") == f"Step {len(steps)} of {len(steps)}"
    assert found.page.locator(".answer .later").count() == 0


def test_a_tap_tells_what_hovering_does(opened):
    found = opened(has_touch=True, viewport={"width": 390, "height": 844})
    found.generate(max_tokens=24)
    found.page.locator(".answer .token").filter(has_text=re.compile(r"\w\w")).first.tap()
    assert found.page.locator("#tooltip").is_visible()
    box = found.page.locator("#tooltip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.parametrize("width", [320, 390, 800, 1000, 1360, 1920])
def test_nothing_is_wider_than_the_window(opened, width):
    found = opened(viewport={"width": width, "height": 844})
    found.generate(max_tokens=24)
    assert found.page.evaluate("document.scrollingElement.scrollWidth") <= width
    found.page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert found.page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_every_control_has_a_name(opened):
    found = opened()
    found.generate(max_tokens=12)
    found.page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert found.page.locator("button, input, textarea, summary").evaluate_all(NAMELESS) == []
    assert found.page.locator("svg:not([aria-hidden]):not([aria-label])").count() == 0
    assert found.page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(opened, scheme):
    found = opened(color_scheme=scheme)
    found.generate()
    for pair in PAIRS:
        assert found.page.evaluate(CONTRAST, list(pair)) >= 4.5, pair


def test_dark_and_light_follow_the_system_unless_they_are_chosen(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = opened(color_scheme="dark"), opened(color_scheme="light")
    colours = {"dark": dark.page.evaluate(ground), "light": light.page.evaluate(ground)}
    assert colours["dark"] != colours["light"]
    for theme in ("light", "dark", "auto"):
        dark.page.click("#theme")
        assert dark.page.text_content("#theme") == f"Theme: {theme}"
        assert dark.page.evaluate(ground) == colours["dark" if theme == "auto" else theme]
    light.page.click("#theme")
    light.page.click("#theme")
    light.page.reload()  # remembered
    assert light.page.text_content("#theme") == "Theme: dark" and light.page.evaluate(ground) == colours["dark"]


def test_markup_in_prompts_stays_text(opened):
    found = opened()
    found.generate(HOSTILE, max_tokens=8)
    assert found.page.text_content(".turn.prompt .text") == HOSTILE
    assert found.page.evaluate("typeof hacked") == "undefined" and found.page.locator("main img").count() == 0


def test_the_key_is_asked_for_by_the_browser_and_covers_the_page(chromium, embedded):
    with served(embedded, api_keys=("secret",)) as (url, _, recorder):
        with chromium.new_context() as context:
            assert context.request.get(url).status == 401
        context = chromium.new_context(http_credentials={"username": "me", "password": "secret"})
        found = Watched(context, url, recorder)
        found.generate(max_tokens=12)
        assert len(found.tokens()) == 12
        assert found.page.evaluate("document.cookie + Object.keys(localStorage)") == ""
        found.close()


def test_where_the_server_tells_no_steps_the_text_is_plain(chromium, embedded):
    with served(embedded, return_steps=False) as (url, _, recorder):
        found = Watched(chromium.new_context(), url, recorder)
        assert "tells nothing of its drafts" in found.alert()
        found.generate(max_tokens=12)
        text = asked(url, {"temperature": 0.6, "seed": 7, "max_tokens": 12})[0]
        assert found.tokens() == [["token by-plain", text]] and found.page.is_disabled("#slider")
        found.close()


def test_a_server_that_ends_is_said(chromium, embedded):
    with served(embedded) as (url, _, recorder):
        found = Watched(chromium.new_context(), url, recorder)
    found.expected.append("ERR_CONNECTION_REFUSED")
    found.generate(PROMPT, max_tokens=4)
    assert found.alert() and found.page.is_enabled("#go")
    found.close()
