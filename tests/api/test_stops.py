"""Stop strings, stop tokens and length limits at every position within a step."""

from itertools import pairwise

import pytest

from paceline.api import Engine, SamplingParams, Source, generate, load
from paceline.drafters import DRAFTERS
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.verifiers import VERIFIERS
from tests import harness
from tests.api.checkpoints import pair
from tests.api.engines import bare, engine, greedy, naive, read_by
from tests.api.scripted import DRAFTS, TEXT, draft, script, target, tokenizer

pytestmark = pytest.mark.one_in(11)

K = 4
SCRIPT = script()
PROMPT = list(SCRIPT[:1])
PLAIN = SCRIPT[1:]  # what every continuation would be if nothing ended it


@pytest.fixture(params=[SyncReader, AsyncReader], autouse=True)
def order(request, monkeypatch):
    """Every test runs with a synchronous and with an asynchronous reader."""
    read_by(monkeypatch, request.param)


every_draft = pytest.mark.parametrize("kind", DRAFTS)


def spelled(count):
    """The text of the first ``count`` output tokens."""
    return tokenizer().decode([*PROMPT, *PLAIN[:count]])[len(tokenizer().decode(PROMPT)) :]


# Without a character that is not complete.
SETTLED = [spelled(count).rstrip("\ufffd") for count in range(len(PLAIN) + 1)]


def stopped(stops, *, include=False, min_tokens=0, texts=SETTLED):
    """(tokens kept, text, stop string) for the first of ``stops`` in ``texts``, by naive search; None without one."""
    for count, (before, after) in enumerate(pairwise(texts), start=1):
        if count <= min_tokens:
            continue
        ends = [
            (end, -len(stop), stop)
            for stop in stops
            for end in range(len(before) + 1, len(after) + 1)
            if after[:end].endswith(stop)
        ]
        if ends:
            end, _, stop = min(ends)
            return count, after[: end if include else end - len(stop)], stop
    return None


def run(kind, params, *, eos=(), **options):
    """Results of one request per entry of ``params``, and their pieces."""
    running = Engine(
        target(eos=eos), drafter=draft(DRAFTS[kind]), num_draft_tokens=K, batch_size=16, max_length=128, **options
    )
    stream = running.submit([PROMPT] * len(params), params)
    pieces = list(stream)
    return stream.results(), pieces


def assert_result(result, pieces, *, tokens, text, reason, stop):
    """Check all fields of a result that follow from its tokens."""
    own = [piece for piece in pieces if piece.index == result.index]
    assert result.token_ids == tuple(tokens)
    assert result.text == text == "".join(piece.text for piece in own)
    assert (result.finish_reason, result.stop_reason) == (reason, stop)
    assert [piece.finish_reason for piece in own] == [None] * (len(tokens) - 1) + [reason]
    assert [piece.token for piece in own] == list(tokens) and [piece.source for piece in own] == list(result.source)
    counts_follow(result)


def counts_follow(result):
    """The statistics count exactly the tokens that were kept."""
    stats, source = result.stats, result.source
    assert stats.summary.emitted == len(result.token_ids) == len(source)
    assert sum(stats.accepted) == source.count(Source.DRAFTED)
    own = len(source) - source.count(Source.DRAFTED)
    assert stats.steps == own + (source[-1] is Source.DRAFTED), "a step ends with the target's own token, or is cut"
    assert stats.mean_acceptance_length == len(result.token_ids) / stats.steps
    assert sum(stats.drafted[:1]) == stats.steps - sum(stats.no_draft.values())
    depth, accepted = 0, [0] * len(stats.accepted)
    for one in source:
        if one is Source.DRAFTED:
            accepted[depth] += 1
        depth = depth + 1 if one is Source.DRAFTED else 0
    assert stats.accepted == accepted
    assert all(kept <= drafted for kept, drafted in zip(stats.accepted, stats.drafted, strict=True))


def test_the_script_has_characters_of_several_tokens():
    assert tokenizer().decode(SCRIPT) == TEXT
    sizes = {len(after) - len(before) for before, after in pairwise(SETTLED)}
    assert 0 in sizes and max(sizes) > 1 and len(PLAIN) > 40


def windows():
    """Stop strings from the middle of a token to the middle of one of the next three."""
    for count in range(1, len(PLAIN) - 2):
        for span in (1, 2, 3):
            begin, end = len(SETTLED[count - 1]), len(SETTLED[count + span - 1])
            if end > begin:
                yield SETTLED[-1][begin + (end - begin > 2) : end]
                yield SETTLED[-1][begin : max(begin + 1, end - 1)]


@every_draft
def test_stop_strings_at_every_position_of_a_step(kind):
    stops = list(dict.fromkeys(windows()))
    include = [index % 2 == 1 for index in range(len(stops))]
    params = [
        greedy(max_tokens=100, stop=stop, include_stop_str_in_output=keep)
        for stop, keep in zip(stops, include, strict=True)
    ]
    results, pieces = run(kind, params)
    for stop, keep, result in zip(stops, include, results, strict=True):
        count, text, _ = stopped([stop], include=keep)
        assert_result(result, pieces, tokens=PLAIN[:count], text=text, reason="stop", stop=stop)


def test_accepted_lengths_and_ends_of_every_kind_occur():
    """The sweep above covers every accepted length."""
    last = set()
    for kind in DRAFTS:
        results, _ = run(kind, [greedy(max_tokens=100, stop=stop) for stop in list(dict.fromkeys(windows()))[::3]])
        for result in results:
            depth = 0
            while depth < len(result.source) and result.source[-1 - depth] is Source.DRAFTED:
                depth += 1
            last.add((result.source[-1], depth % (K + 1)))
    assert last >= {(Source.DRAFTED, depth) for depth in range(1, K + 1)} | {(Source.CORRECTED, 0), (Source.BONUS, 0)}


SEVERAL = (
    ["return", "turn", "ret"],
    [" return", "\n    return h"],
    ["日", "本日", "日本"],
    [")", "é)", "(é)"],
    ["never in it", "items:"],
    ["add(é, 日本):\n    return héé→日", "never"],
)


@every_draft
@pytest.mark.parametrize("include", [False, True])
def test_first_stop_string_to_complete_ends_the_output(kind, include):
    params = [greedy(max_tokens=100, stop=stops, include_stop_str_in_output=include) for stops in SEVERAL]
    results, pieces = run(kind, params)
    for stops, result in zip(SEVERAL, results, strict=True):
        count, text, stop = stopped(stops, include=include)
        assert_result(result, pieces, tokens=PLAIN[:count], text=text, reason="stop", stop=stop)


@every_draft
def test_min_tokens_hold_for_stop_strings(kind):
    """A stop string that completes earlier is ignored; one that begins earlier may complete later."""
    cases = [(stop, least) for stop in ("é", "日", " ", "e", "print", "turn h") for least in (1, 6, 13, 14, 15, 30, 55)]
    cases = [(stop, least, stopped([stop], min_tokens=least)) for stop, least in cases]
    cases = [case for case in cases if case[2] is not None]
    assert len({count for _, _, (count, _, _) in cases}) > 10
    results, pieces = run(kind, [greedy(max_tokens=100, stop=stop, min_tokens=least) for stop, least, _ in cases])
    for (_, least, (count, text, stop)), result in zip(cases, results, strict=True):
        assert len(result.token_ids) > least
        assert_result(result, pieces, tokens=PLAIN[:count], text=text, reason="stop", stop=stop)


@every_draft
@pytest.mark.parametrize("own", [False, True], ids=["asked for", "the model's own"])
def test_stop_tokens_at_every_position_of_a_step(kind, own):
    """The stop token is one of the token ids, but only on request part of the text."""
    tokens = list(dict.fromkeys(PLAIN))
    for include in (False, True):
        if own:
            outcomes = [run(kind, [greedy(max_tokens=90)], eos=(token,)) for token in tokens[:: 5 - include]]
            results = [
                (token, result[0], p) for token, (result, p) in zip(tokens[:: 5 - include], outcomes, strict=True)
            ]
            include = False
        else:
            params = [
                greedy(max_tokens=90, stop_token_ids=[token], include_stop_str_in_output=include) for token in tokens
            ]
            results, pieces = run(kind, params)
            results = [(token, result, pieces) for token, result in zip(tokens, results, strict=True)]
        for token, result, pieces in results:
            count = PLAIN.index(token) + 1
            text = spelled(count if include else count - 1)
            assert_result(result, pieces, tokens=PLAIN[:count], text=text, reason="stop", stop=None if own else token)


@every_draft
def test_stop_at_the_last_token_takes_precedence_over_length(kind):
    stops = list(dict.fromkeys(windows()))[::4]
    wanted = [stopped([stop]) for stop in stops]
    params = [greedy(max_tokens=count, stop=stop) for stop, (count, _, _) in zip(stops, wanted, strict=True)]
    results, pieces = run(kind, params)
    for (count, text, stop), result in zip(wanted, results, strict=True):
        assert_result(result, pieces, tokens=PLAIN[:count], text=text, reason="stop", stop=stop)
    firsts = [PLAIN.index(token) + 1 for token in dict.fromkeys(PLAIN)]
    params = [greedy(max_tokens=count, stop_token_ids=[PLAIN[count - 1]]) for count in firsts]
    for count, result in zip(firsts, run(kind, params)[0], strict=True):
        assert (result.finish_reason, len(result.token_ids)) == ("stop", count)


@every_draft
def test_length_limit_flushes_held_back_text(kind):
    """Neither the beginning of a stop string nor half a character is lost."""
    stops = ["return X", "日本)X", "items: printX", "éX"]
    results, pieces = run(kind, [greedy(max_tokens=count, stop=stops) for count in range(1, len(PLAIN) + 1)])
    for count, result in enumerate(results, start=1):
        assert_result(result, pieces, tokens=PLAIN[:count], text=spelled(count), reason="length", stop=None)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_strings_in_random_model_output(drafter, temperature):
    """Random tokens, many of them parts of characters, against a search in the undrafted text."""
    loaded = load(pair().target, device="cpu")
    given = pair().draft if drafter == "model" else drafter
    plain = generate(loaded, "x", SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True))[0]
    prompt, spell = list(plain.prompt_tokens), loaded.tokenizer.decode
    texts = [spell([*prompt, *plain.token_ids[:count]])[len(spell(prompt)) :] for count in range(25)]
    texts = [text.removesuffix("\ufffd") for text in texts]
    stops = [texts[-1][at : at + 2] for at in range(0, len(texts[-1]) - 2)]
    params = [
        SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True, stop=stop) for stop in stops
    ]
    results = generate(loaded, ["x"] * len(stops), params, drafter=given, num_draft_tokens=5)
    for stop, result in zip(stops, results, strict=True):
        count, text, _ = stopped([stop], texts=texts)
        assert (result.token_ids, result.text, result.stop_reason) == (plain.token_ids[:count], text, stop)
        counts_follow(result)


@pytest.mark.each_value
@pytest.mark.parametrize(("drafter", "verifier"), harness.family_cases())
@pytest.mark.parametrize("own", [False, True], ids=["asked for", "the model's own"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_hold_for_stop_tokens(drafter, verifier, own, temperature):
    """Before ``min_tokens`` they are never chosen; after it they end the output."""
    prompts = ([5, 9, 2], [1], [8] * 6)
    endless = SamplingParams(temperature=temperature, max_tokens=20, seed=11)
    likely = sorted({token for prompt in prompts for token in naive(prompt, endless, 11)[:5]})[:8]
    same_tokens, changed = VERIFIERS.find(verifier).same_tokens, 0
    for least in (0, 1, 4, 7):
        params = SamplingParams(
            temperature=temperature,
            max_tokens=20,
            seed=11,
            min_tokens=least,
            stop_token_ids=None if own else likely,
        )
        eos = tuple(likely) if own else ()
        running = engine(drafter, verifier, target=bare(eos=eos), batch_size=3)
        for result in running.generate(prompts, [params] * 3):
            assert len(result.token_ids) > least or result.finish_reason == "length"
            assert not set(result.token_ids[:least]) & set(likely)
            if temperature == 0 or same_tokens:
                plain = naive(prompts[result.index], params, result.seed, eos=eos)
                assert list(result.token_ids) == plain
                changed += plain != naive(prompts[result.index], endless, result.seed)[: len(plain)]
    assert changed or (temperature > 0 and not same_tokens), "a ban that changes no text shows nothing"


def test_ban_ends_exactly_after_min_tokens():
    """A token that plain decoding chooses at a position is banned until there, and allowed right after."""
    prompt = [5, 9, 2]
    plain = naive(prompt, greedy(max_tokens=12), 0)
    at = next(at for at, token in enumerate(plain) if at >= 3 and token not in plain[:at])
    for drafter in DRAFTERS:
        for least, ends in ((at, True), (at + 1, False)):
            [result] = engine(drafter, batch_size=1).generate(
                [prompt], greedy(max_tokens=12, min_tokens=least, stop_token_ids=[plain[at]])
            )
            assert (len(result.token_ids) == at + 1 and list(result.token_ids) == plain[: at + 1]) is ends


def test_special_tokens_are_left_out_of_the_text_by_default():
    """An end-of-text token in the middle of an output that ignores it, and at its end."""
    tokens = [*SCRIPT[:5], 0, *SCRIPT[5:9], 0, *SCRIPT[9:]]
    plain, spell = tokens[1:], tokenizer().decode
    loaded = target(tokens, eos=(0,))
    for skip in (True, False):
        running = Engine(
            loaded, drafter=draft(DRAFTS["all right"], tokens), num_draft_tokens=5, batch_size=3, max_length=64
        )
        wanted = [
            (greedy(max_tokens=12, ignore_eos=True, skip_special_tokens=skip), 12, 12),
            (greedy(max_tokens=12, skip_special_tokens=skip), 5, 4),
            (greedy(max_tokens=12, skip_special_tokens=skip, include_stop_str_in_output=True), 5, 5),
        ]
        results = running.generate([PROMPT] * 3, [params for params, _, _ in wanted])
        for (_, num_tokens, num_spelled), result in zip(wanted, results, strict=True):
            assert list(result.token_ids) == plain[:num_tokens]
            whole = spell([*PROMPT, *plain[:num_spelled]], skip_special=skip)
            assert result.text == whole[len(spell(PROMPT)) :]


def test_without_detokenizing_there_is_no_text():
    [result] = Engine(target(), batch_size=1, max_length=64).generate([PROMPT], greedy(detokenize=False))
    assert result.text is None and result.token_ids == PLAIN[:16]


@every_draft
def test_criterion_ends_the_output_at_its_token(kind):
    seen = []

    def criterion(tokens):
        seen.append(list(tokens))
        return len(tokens) == 9

    running = Engine(target(), drafter=draft(DRAFTS[kind]), num_draft_tokens=K, batch_size=1, max_length=128)
    stream = running.submit([PROMPT], greedy(max_tokens=40), criterion=criterion)
    pieces = list(stream)
    assert seen == [list(PLAIN[:count]) for count in range(1, 10)]
    assert_result(stream.results()[0], pieces, tokens=PLAIN[:9], text=spelled(9), reason="stop", stop=None)
