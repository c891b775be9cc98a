"""The worked example of a package of one's own: found by name, lossless, useful, and free of the host."""

import re
import sys
import tomllib

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from paceline.core.admission import Prefix
from paceline.drafters import DRAFTERS
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.api.checkpoints import pair
from tests.examples.installed import EXAMPLE, put_example
from tests.harness import decoder_for, expected, finish, request, run

FLOOR = 2.4  # mean acceptance length on looping text, greedy
K = 3
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
same_tokens = pytest.mark.parametrize("verifier", ["coupled", "first_token"])


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    put_example(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for registry in (DRAFTERS, VERIFIERS):
            registry.refresh()
        yield folder
    sys.modules.pop("paceline_bigram", None)
    for registry in (DRAFTERS, VERIFIERS):
        registry.refresh()


def bigram():
    return DRAFTERS.find("bigram")()


def requests(max_tokens=40, **sampling):
    return [request(p, max_tokens=max_tokens - i, seed=1000 * i, **sampling) for i, p in enumerate(PROMPTS)]


def test_names_of_the_package_are_found_beside_the_built_in_ones(installed):
    assert "bigram" in DRAFTERS and set(DRAFTERS.builtin) < set(DRAFTERS)
    assert "first_token" in VERIFIERS and set(VERIFIERS.builtin) < set(VERIFIERS)
    assert DRAFTERS.find("bigram").__module__ == VERIFIERS.find("first_token").__module__ == "paceline_bigram"
    assert sys.modules["paceline_bigram"].__file__.startswith(str(installed))


@same_tokens
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}], ids=str)
def test_text_of_a_ragged_batch_equals_plain_decoding(verifier, sampling):
    model, target = tiny.looping_target()
    result = run(bigram(), verifier, requests(**sampling), target=target, k=K)
    assert result.texts == [expected(r, model) for r in requests(**sampling)]
    assert 0 < sum(result.summary.accepted) < sum(result.summary.drafted)


def test_greedy_text_equals_plain_decoding_under_rejection():
    assert run(bigram(), "rejection", requests(), k=K).texts == [expected(r) for r in requests()]


def test_looping_output_is_drafted_well_and_no_further_than_the_verifier_accepts():
    model, target = tiny.looping_target()
    deep = run(bigram(), "coupled", requests(), target=target, k=K)
    shallow = run(bigram(), "first_token", requests(), target=target, k=K)
    assert deep.texts == shallow.texts == [expected(r, model) for r in requests()]
    assert deep.summary.mean_acceptance_length > FLOOR
    assert shallow.summary.accepted[0] > 0 and not any(shallow.summary.accepted[1:])
    assert 1.2 < shallow.summary.mean_acceptance_length <= 2


def known(text):
    """Where each token last stood with another after it."""
    return {token: at for at, token in enumerate(text[:-1])}


def remembered(decoder, row):
    """What the drafter's table says of it."""
    return {token: at for token, at in enumerate(decoder.drafter.last[row].tolist()) if at >= 0}


def test_the_table_holds_the_latest_place_of_every_token_after_every_step():
    decoder = decoder_for(bigram(), "coupled", target=tiny.looping_target()[1], k=K, rows=len(PROMPTS))
    decoder.admit(requests(), range(len(PROMPTS)))
    for _ in range(12):
        for row in range(len(PROMPTS)):
            text = decoder.batch.tokens[row, : decoder.batch.length[row]].tolist()
            assert remembered(decoder, row) == known(text)
        decoder.step()


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ([1, 2, 7, 1, 3, 5, 2, 1], [3, 5, 2, 1]),  # what followed last, along the chain
        ([4, 4], [4, 4, 4, 4]),
        ([1, 2, 3, 2], [3, 2, 3, 2]),
        ([2, 9, 8], []),  # the newest token is new
        ([7], []),
    ],
)
def test_drafts_follow_what_followed_last(text, proposal):
    decoder = decoder_for(bigram(), "coupled", k=4, max_length=64)
    decoder.admit([request(text, max_tokens=20)], [0])
    tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    assert tree.tokens[0, 1:][tree.valid[0, 1:]].tolist() == proposal


def test_a_reused_row_starts_without_the_former_sequence_and_others_are_unchanged():
    decoder = decoder_for(bigram(), "coupled", k=K, rows=2)
    decoder.admit([request([1, 2, 3, 1, 2, 3]), request([4, 5, 6, 4, 5, 6])], [0, 1])
    beside = decoder.drafter.last[1].tolist()
    decoder.release([0])
    decoder.admit([request([9, 8, 9])], [0])
    assert remembered(decoder, 0) == {9: 0, 8: 1}
    assert decoder.drafter.last[1].tolist() == beside


def test_a_row_that_forks_a_prefix_knows_its_whole_prompt():
    decoder = decoder_for(bigram(), "coupled", k=K, rows=2)
    decoder.admit([request([1, 2, 3, 4, 5])], [0])
    prefix_length = request([1, 2, 3, 9, 1, 7])
    decoder.admit([prefix_length], [1], prefixes=[Prefix(row=0, length=3)])
    assert remembered(decoder, 1) == known(prefix_length.tokens)
    result = finish(decoder, rows=[1], prompts=[prefix_length.tokens])
    assert result.texts == [expected(prefix_length)]


@same_tokens
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 9}], ids=str)
def test_the_step_runs_on_fake_tensors(verifier, sampling):
    with FakeTensorMode():
        decoder = decoder_for(
            bigram(), verifier, target=DecoderLM(tiny.target()[1].config), k=K, rows=len(PROMPTS), max_length=64
        )
        decoder.admit(requests(**sampling), range(len(PROMPTS)))
        for _ in range(3):
            decoder.step()
        with pytest.raises(DataDependentOutputException):
            decoder.results()


@pytest.mark.one_in(14)
@same_tokens
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 9}], ids=str)
@pytest.mark.slow
def test_the_step_compiles_whole_and_once(verifier, sampling):
    eager, compiled = (decoder_for(bigram(), verifier, k=K, rows=len(PROMPTS), max_length=64) for _ in range(2))
    for decoder in (eager, compiled):
        decoder.admit(requests(**sampling), range(len(PROMPTS)))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
        for _ in range(5):
            eager.step()
            step()
            assert compiled.batch.tokens[:, :-1].tolist() == eager.batch.tokens[:, :-1].tolist()
            assert compiled.drafter.last.tolist() == eager.drafter.last.tolist()


def test_the_readme_runs_as_written_and_quotes_the_entry_points_as_they_are(capsys):
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    python, toml = (re.search(rf"```{kind}\n(.*?)```", readme, re.DOTALL)[1] for kind in ("python", "toml"))
    exec(python.replace("MODEL_DIR", str(pair().target)), {})
    assert re.fullmatch(r"\d\.\d+ tokens per step\n", capsys.readouterr().out)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tomllib.loads(toml)["project"]["entry-points"] == project["entry-points"]
