"""Runs as files: what is saved is what is shown, opened again anywhere; what is no run is refused with its reason."""

import json

import pytest

from tests.serve.browser.test_used import HOSTILE
from tests.serve.browser.watched import Watched


def picture(found):
    """What is seen of a run, step by step."""
    seen = [found.tokens(), found.page.locator("#figures dd").all_text_contents()]
    seen += [found.page.text_content("#depths"), found.page.locator("#speed .curve").get_attribute("d")]
    for at in range(int(found.page.get_attribute("#slider", "max")) + 1):
        found.step(at)
        seen += [found.nodes(), found.page.text_content("#replay-said"), found.page.text_content("#times")]
    return seen


def test_a_saved_run_is_opened_as_it_was(opened, tmp_path):
    found = opened()
    found.generate(max_tokens=24)
    file = found.downloaded("#save", tmp_path)
    saved = json.loads(file.read_text())
    text, steps, reason = found.told()
    assert (saved["text"], saved["steps"], saved["finish_reason"]) == (text, steps, reason)
    assert saved["request"]["seed"] == 7 and saved["format"] == "paceline-run"
    before = picture(found)
    other = opened()
    other.page.set_input_files("#open", file)
    other.page.wait_for_selector(".answer .token")
    assert picture(other) == before
    assert other.downloaded("#save", tmp_path / "again").read_text() == file.read_text()


def test_an_exported_page_needs_no_server(opened, chromium, tmp_path):
    found = opened()
    found.generate(max_tokens=24)
    before = picture(found)
    file = found.downloaded("#export", tmp_path)
    text = file.read_text()
    assert "connect-src" not in text and "default-src 'none'" in text and "/page/" not in text.split("<script")[0]
    alone = Watched(chromium.new_context(offline=True), file.as_uri(), None)
    assert picture(alone) == before
    assert not alone.page.locator("#composer").is_visible() and not alone.page.locator("#export").is_visible()
    assert alone.downloaded("#save", tmp_path).exists()
    alone.close()


def test_markup_in_runs_stays_text(opened, chromium, tmp_path):
    found = opened()
    found.generate(max_tokens=12)
    run = json.loads(found.downloaded("#save", tmp_path).read_text())
    run["prompt"] = run["model"] = run["text"] = HOSTILE
    run["drafters"] = [HOSTILE]
    for step in run["steps"]:
        step["no_draft"] = HOSTILE
        for one in (*step["tokens"], *step["nodes"]):
            one["text"], one["drafter"] = HOSTILE, one["drafter"] and HOSTILE
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(run))
    found.page.set_input_files("#open", file)
    found.until("document.querySelector('#model').textContent.startsWith('</script>')")
    exported = found.downloaded("#export", tmp_path)
    alone = Watched(chromium.new_context(), exported.as_uri(), None)
    for one in (found, alone):
        assert {text for _, text in one.tokens()} == {HOSTILE}
        assert one.page.text_content(".turn.prompt .text") == HOSTILE
        one.page.locator(".answer .token").first.hover()
        for at in range(len(run["steps"])):
            one.step(at)
        assert one.page.evaluate("typeof hacked") == "undefined"
        assert one.page.locator("img, main script, #tooltip script").count() == 0
    alone.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: "{", "it is not JSON"),
        (lambda run: [], '"format" is not "paceline-run"'),
        (lambda run: {**run, "version": 2}, "version 2, and this page reads version 1"),
        (lambda run: {**run, "text": 5}, '"text" are texts'),
        (lambda run: {**run, "steps": 5}, '"steps" is a list'),
        (lambda run: {**run, "plain": {"seconds": 0, "tokens": 1}}, '"plain" has'),
        (lambda run: {**run, "steps": [{**run["steps"][0], "nodes": []}]}, "step 1 has no root"),
        (lambda run: {**run, "steps": [{**run["steps"][0], "accepted": [99]}]}, "step 1 accepts a node"),
        (lambda run: {**run, "steps": [{**run["steps"][0], "seconds": {}}]}, "step 1 has no number"),
        (lambda run: {**run, "messages": [{"role": "user"}]}, '"messages" is a chat'),
    ],
)
def test_what_is_no_run_is_refused_with_its_reason(opened, tmp_path, change, said):
    found = opened()
    found.generate(max_tokens=4)
    run = json.loads(found.downloaded("#save", tmp_path).read_text())
    before, changed = found.tokens(), change(run)
    file = tmp_path / "changed.json"
    file.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    found.page.set_input_files("#open", file)
    assert said in found.alert() and found.tokens() == before
