"""``return_steps``: the drafts of a stream, told where the server may, and the answer that they add up to."""

import math

import pytest

from paceline.api import SamplingParams, load
from paceline.api.build import build_shaped
from paceline.drafters.tree.shapes import Topology
from paceline.serve.steps import steps_of as steps_of_pieces
from tests.api.checkpoints import pair
from tests.serve.served import PROMPT, engine, events, running, serving, target

BODY = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 5}
CHAT = {"messages": [{"role": "user", "content": "x = 1"}], "max_tokens": 12, "temperature": 0, "return_steps": True}


async def steps_of(client, body, path="/v1/completions"):
    """By choice: its text, its steps, and how many of them an event had."""
    texts, steps, counts = {}, {}, []
    for event in await events(client, path, {**body, "return_steps": True}):
        (choice,) = event["choices"]
        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + text
        steps.setdefault(choice["index"], []).extend(choice.get("steps", ()))
        counts.append(len(choice.get("steps", ())))
    return texts, steps, counts


def offline(prompt, made=None, **options):
    return (made or engine()).generate(prompt, SamplingParams(**options))


def check_identities(steps, result):
    """What holds of the steps of any output, whatever drafted them."""
    tokens = [token for step in steps for token in step["tokens"]]
    assert [token["id"] for token in tokens] == list(result.token_ids)
    assert [token["source"] for token in tokens] == list(result.source)
    assert [token["drafter"] for token in tokens] == list(result.origin)
    assert "".join(token["text"] for token in tokens) == result.text
    assert [step["step"] for step in steps] == list(range(1, result.stats.steps + 1))
    newest = result.prompt_tokens[-1]
    for step in steps:
        nodes, path, own = step["nodes"], step["accepted"], step["tokens"]
        assert nodes[0]["id"] == newest and nodes[0]["parent"] is None and nodes[0]["drafter"] is None
        assert [nodes[node]["parent"] for node in path] == [0, *path][: len(path)]
        assert [nodes[node]["id"] for node in path] == [token["id"] for token in own[: len(path)]]
        assert [token["node"] for token in own] == [*path, None][: len(own)] and len(own) - len(path) in (0, 1)
        assert all(0 <= node["parent"] < at for at, node in enumerate(nodes) if at)
        assert (step["no_draft"] is None) == (len(nodes) > 1)
        newest = own[-1]["id"]
        seconds = step["seconds"]
        assert seconds["total"] == pytest.approx(sum(value for name, value in seconds.items() if name != "total"))
    drafted = [0] * len(result.stats.drafted)
    for step in steps:
        depths = [0]
        for node in step["nodes"][1:]:
            depths.append(depths[node["parent"]] + 1)
        for depth in set(depths[1:]):
            drafted[depth - 1] += 1
    assert drafted == list(result.stats.drafted)
    accepted = [sum(len(step["accepted"]) > depth for step in steps) for depth in range(len(drafted))]
    assert accepted == list(result.stats.accepted)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", [False, True])
def test_accepted_paths_and_what_follows_them_are_the_answer(temperature, tree):
    options = {}
    if tree:
        options = {"drafter": tree_drafter(), "num_draft_tokens": 2}

    async def check():
        async with serving(steps=True, **options) as client:
            body = {**BODY, "temperature": temperature, "n": 2}
            wanted = offline([PROMPT], engine(**options), n=2, max_tokens=24, temperature=temperature, seed=5)
            texts, steps, _ = await steps_of(client, body)
            for number, result in enumerate(wanted):
                assert texts[number] == result.text
                check_identities(steps[number], result)
            assert sum(len(step["accepted"]) for found in steps.values() for step in found) > 4

    running(check())


def test_pieces_of_several_steps_may_come_together():
    made = engine()
    stream = made.submit(PROMPT, SamplingParams(max_tokens=24, temperature=0.0), steps=True)
    pieces = list(stream)
    check_identities(steps_of_pieces(target().tokenizer, pieces), *stream.results())
    assert sum(piece.step is not None for piece in pieces) > 4


def test_chats_have_steps_too():
    async def check():
        async with serving(steps=True) as client:
            tokens = target().tokenizer.chat(CHAT["messages"])
            (wanted,) = offline([tokens], max_tokens=12, temperature=0.0)
            texts, steps, _ = await steps_of(client, CHAT, "/v1/chat/completions")
            assert texts[0] == wanted.text
            check_identities(steps[0], wanted)

    running(check())


@pytest.mark.parametrize("options", [{"stop": ["e"]}, {"max_tokens": 7}, {"stop_token_ids": [70, 71, 72]}])
def test_what_a_limit_cuts_off_is_in_no_path(options):
    async def check():
        async with serving(steps=True) as client:
            body = {**BODY, "temperature": 0, **options}
            given = {name: value for name, value in body.items() if name not in ("prompt",)}
            (wanted,) = offline([PROMPT], **given)
            _, steps, _ = await steps_of(client, body)
            check_identities(steps[0], wanted)

    running(check())


def test_a_stop_string_cuts_a_path_where_the_output_ends():
    made = engine()
    whole = made.submit(PROMPT, SamplingParams(max_tokens=96, temperature=0.0), steps=True)
    pieces = list(whole)
    # A token that a draft went on after, whose text was not there before.
    begin, chosen = 0, None
    for at, piece in enumerate(pieces):
        if piece.step is not None:
            for place in range(len(piece.step.draft.path) - 1):
                before = "".join(one.text for one in pieces[: begin + place])
                text = pieces[begin + place].text
                if chosen is None and text.strip() and text not in before:
                    chosen = text
            begin = at + 1
    assert chosen is not None
    cut = made.submit(PROMPT, SamplingParams(max_tokens=96, temperature=0.0, stop=[chosen]), steps=True)
    pieces = list(cut)
    (result,) = cut.results()
    assert result.finish_reason == "stop" and result.stats.steps > 0
    check_identities(steps_of_pieces(target().tokenizer, pieces), result)


def test_probabilities_are_the_models():
    async def check():
        async with serving(steps=True) as client:
            params = {"max_tokens": 24, "temperature": 0.8, "seed": 5}
            (wanted,) = offline([PROMPT], logprobs=0, **params)
            _, steps, _ = await steps_of(client, BODY)
            tokens = [token for step in steps[0] for token in step["tokens"]]
            for token, found in zip(tokens, wanted.logprobs, strict=True):
                assert token["target_probability"] == pytest.approx(math.exp(found.raw), rel=1e-4)
                assert token["sampled_probability"] == pytest.approx(math.exp(found.processed), rel=1e-4)
            checked = [node for step in steps[0] for node in step["nodes"][1:]]
            assert checked and all(node["draft_probability"] is None for node in checked)  # none are recorded for it

    running(check())


def test_the_drafters_probabilities_are_reported_where_it_records_them():
    async def check():
        async with serving(steps=True, verifier="rejection") as client:
            _, steps, _ = await steps_of(client, BODY)
            nodes = [node for step in steps[0] for node in step["nodes"][1:]]
            assert nodes and all(0 < node["draft_probability"] <= 1 for node in nodes)

    running(check())


def test_a_request_may_draft_less_or_nothing_and_its_tokens_stay():
    async def check():
        async with serving(steps=True) as client:
            whole, _, _ = await steps_of(client, BODY)
            for most in (0, 1, 3):
                texts, steps, _ = await steps_of(
                    client, {**BODY, "speculative_config": {"num_speculative_tokens": most}}
                )
                assert texts == whole
                assert max(len(step["nodes"]) for step in steps[0]) == 1 + most
                if not most:
                    assert "the request's own limit is 0" in {step["no_draft"] for step in steps[0]}
                    assert {token["source"] for step in steps[0] for token in step["tokens"]} == {"plain"}
            answer = await client.post(
                "/v1/completions", json={**BODY, "speculative_config": {"num_speculative_tokens": 0}}
            )
            assert answer.json()["choices"][0]["text"] == whole[0]  # a whole answer, too

    running(check())


def test_steps_are_reported_only_where_the_server_may_and_only_to_those_who_ask():
    async def check():
        for allowed in (False, True):
            async with serving(steps=allowed) as client:
                for event in await events(client, "/v1/completions", BODY):
                    assert "steps" not in event["choices"][0]
                answer = await client.post(
                    "/v1/completions", json={**BODY, "return_steps": True, "stream": not allowed}
                )
                assert answer.status_code == 400 and answer.json()["error"]["param"] == "return_steps"
                expected = "without stream: give stream: true" if allowed else "tells nothing of its drafts"
                assert expected in answer.json()["error"]["message"]

    running(check())


def test_who_does_not_ask_pays_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr("paceline.core.step_drafts.StepDrafts.of", lambda *given: calls.append(given))

    async def check():
        async with serving(steps=True) as client:
            await client.post("/v1/completions", json=BODY)
            assert not calls

    running(check())


def tree_drafter():
    shape = Topology(((0,), (1,), (0, 0), (0, 1), (1, 0)))
    return build_shaped(load(pair().draft), target=target(), shape=shape)
