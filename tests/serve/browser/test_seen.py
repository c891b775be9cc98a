"""What is seen is what the server tells: tokens, steps, trees, charts."""

import pytest

from tests.serve.browser.watched import BODY, PROMPT, asked

SHOWN = {"\n": "↵", " ": "·"}


def visible(text):
    for character, shown in SHOWN.items():
        text = text.replace(character, shown)
    return text if len(text) <= 18 else text[:17] + "…"


@pytest.fixture
def shown(opened):
    found = opened()
    found.generate()
    return found


def test_tokens_have_the_colours_of_who_chose_them(shown):
    text, steps, _ = shown.told()
    tokens = [token for step in steps for token in step["tokens"]]
    classes = {"drafted": "by-draft-0", "corrected": "by-corrected", "bonus": "by-bonus", "plain": "by-plain"}
    found = shown.tokens()
    assert [text for _, text in found] == [token["text"] for token in tokens]
    assert [name.split()[1] for name, _ in found] == [classes[token["source"]] for token in tokens]
    assert "".join(text for _, text in found) == text == asked(shown.url)[0]
    assert len({token["source"] for token in tokens}) > 2
    colours = shown.page.locator(".reply .answer .token").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).borderBottomColor + getComputedStyle(one).borderBottomStyle)"
    )
    pairs = {(name, colour) for (name, _), colour in zip(found, colours, strict=True)}
    assert len(pairs) == len({name for name, _ in pairs}) == len({colour for _, colour in pairs})
    counts = shown.page.locator("#legend .count").all_text_contents()
    assert [int(count) for count in counts] == [
        sum(token["source"] == source for token in tokens) for source in ("drafted", "corrected", "bonus", "plain")
    ]


def test_hovering_tells_probability_depth_and_step(shown):
    _, steps, _ = shown.told()
    number = 0
    for at, step in enumerate(steps[:6]):
        for depth, token in enumerate(step["tokens"], 1):
            span = shown.page.locator(f'.answer [data-token="{number}"]')
            number += 1
            if not token["text"].strip():
                continue
            span.hover()
            tooltip = shown.page.locator("#tooltip")
            assert tooltip.is_visible() and span.get_attribute("aria-describedby") == "tooltip"
            values = tooltip.locator("dd").all_text_contents()
            drafted = token["source"] == "drafted"
            assert values[1] == (
                f"{at + 1}, draft depth {depth}" if drafted else f"{at + 1}, place {depth} of the step"
            )
            assert ("model" in values[0]) == drafted and ("the target" in values[0])
            assert float(values[2].strip("<% ")) == pytest.approx(100 * token["target_probability"], abs=0.51)
            assert values[-1] == str(token["id"])
    shown.page.mouse.move(1300, 20)
    assert not shown.page.locator("#tooltip").is_visible()


def test_every_step_of_the_slider_has_the_tree_that_the_server_told(shown):
    _, steps, _ = shown.told()
    assert int(shown.page.get_attribute("#slider", "max")) == len(steps) - 1 >= 8
    assert shown.page.locator("#strip [data-step]").count() == len(steps)
    for at, step in enumerate(steps):
        shown.step(at)
        assert shown.page.text_content("#replay-title") == f"Step {at + 1} of {len(steps)}"
        accepted = set(step["accepted"])
        wanted = [
            ("root" if not node else "accepted" if node in accepted else "rejected", visible(one["text"]))
            for node, one in enumerate(step["nodes"])
        ]
        if len(step["tokens"]) > len(accepted):
            wanted.append((step["tokens"][-1]["source"], visible(step["tokens"][-1]["text"])))
        assert [(state, label) for state, label, _ in shown.nodes()] == wanted
        rows = shown.page.locator("#nodes tbody tr").evaluate_all("(rows) => rows.map((row) => row.dataset.state)")
        assert rows == [state for state, _ in wanted]
        live = at == len(steps) - 1
        before = sum(len(one["tokens"]) for one in steps[: at + 1])
        classes = [name for name, _ in shown.tokens()]
        assert [number for number, name in enumerate(classes) if "later" in name] == (
            [] if live else list(range(before, len(classes)))
        )
        said = shown.page.text_content("#replay-said")
        assert f"proposed {len(step['nodes']) - 1} token" in said or len(step["nodes"]) == 1


def test_no_box_of_a_tree_lies_on_another(shown):
    script = (
        """(boxes) => boxes.map((box) => ['x', 'y', 'width', 'height'].map((name) => Number(box.getAttribute(name))))"""
    )
    for at in range(int(shown.page.get_attribute("#slider", "max")) + 1):
        shown.step(at)
        boxes = shown.page.locator("#tree .node rect").evaluate_all(script)
        for number, (x, y, width, height) in enumerate(boxes):
            for left, top, wide, high in boxes[:number]:
                assert x >= left + wide or left >= x + width or y >= top + high or top >= y + height


def test_charts_show_the_servers_figures(shown):
    _, steps, _ = shown.told()
    wanted = {}
    for step in steps:
        depths = [0]
        for node in step["nodes"][1:]:
            depths.append(depths[node["parent"]] + 1)
        for depth in set(depths[1:]):
            drafted, accepted = wanted.get(depth, (0, 0))
            wanted[depth] = (drafted + 1, accepted + (len(step["accepted"]) >= depth))
    rows = shown.page.locator("#depths tr").evaluate_all(
        "(rows) => rows.map((row) => [row.dataset.depth, row.dataset.drafted, row.dataset.accepted].map(Number))"
    )
    assert {depth: (drafted, accepted) for depth, drafted, accepted in rows} == wanted
    assert int(shown.page.get_attribute("#speed .curve", "data-points")) == len(steps)
    figures = shown.page.locator("#figures dd").all_text_contents()
    tokens = sum(len(step["tokens"]) for step in steps)
    drafted, accepted = (sum(pair[at] for pair in wanted.values()) for at in (0, 1))
    assert float(figures[0]) == pytest.approx(tokens / len(steps), abs=0.006)
    assert float(figures[1].rstrip("% ")) == pytest.approx(100 * accepted / drafted, abs=0.51)
    assert float(figures[2]) > 0


def test_plain_decoding_is_measured_beside_and_writes_the_same(shown):
    shown.page.click("#plain")
    shown.wait()
    assert not shown.page.locator("#alert").is_visible()  # where the text differs, it says so
    plain = float(shown.page.get_attribute("#speed .plain-line", "data-rate"))
    rate, ratio = (shown.page.locator("#figures dd").nth(at).text_content() for at in (2, 3))
    assert float(ratio[:-1]) == pytest.approx(float(rate) / plain, rel=0.05)
    assert "measured" in shown.page.text_content("#speed .key-plain")


def test_drafts_are_as_deep_as_asked_and_can_be_off(opened):
    found = opened()
    found.page.locator("#depth").fill("1")
    found.generate()
    _, steps, _ = found.told()
    assert found.page.locator("#depths tr").count() == 1
    assert int(found.page.get_attribute("#slider", "max")) == len(steps) - 1
    text = [text for _, text in found.tokens()]
    found.page.uncheck("#drafting")
    assert found.page.is_disabled("#depth")
    found.generate()
    assert "".join(text for _, text in found.tokens()) == "".join(text)
    assert {name for name, _ in found.tokens()} == {"token by-plain"}
    assert "Nothing was drafted" in found.page.text_content("#replay-said")


def test_a_chat_goes_on_and_each_answer_can_be_looked_at(opened):
    found = opened()
    found.page.check("[name=mode][value=chat]", force=True)
    found.page.evaluate("document.querySelector('#options').open = true")
    found.page.fill("[name=system]", "code only")
    found.generate("write a loop", temperature=0, max_tokens=12)
    found.generate("and another", temperature=0, max_tokens=12)
    assert found.page.locator(".turn").count() == 4 and found.page.input_value("#prompt") == ""
    first, second = found.page.locator(".reply .answer").all_text_contents()
    messages = [{"role": "system", "content": "code only"}, {"role": "user", "content": "write a loop"}]
    options = {**BODY, "temperature": 0, "max_tokens": 12}
    assert asked(found.url, {**options, "messages": messages}, "/v1/chat/completions")[0] == first
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "and another"}]
    assert asked(found.url, {**options, "messages": messages}, "/v1/chat/completions")[0] == second
    found.page.locator(".reply").first.locator(".token").last.dispatch_event("click")
    assert (
        found.page.locator(".reply").first.locator(".token.now, .token.later").count() == 0
    )  # its last step: no fading
    found.step(0)
    assert found.page.locator(".reply").first.locator(".token.now").count() > 0
    found.page.click("#clear")
    assert found.page.locator(".turn").count() == 0


def test_a_prompt_that_is_refused_says_why(opened):
    found = opened()
    found.expected.append("400")
    found.generate(max_tokens=5000)
    assert "exceed the limit of" in found.alert() and found.page.is_enabled("#go")
    found.generate(PROMPT, max_tokens=4)
    assert not found.page.locator("#alert").is_visible()
