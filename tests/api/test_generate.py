from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.api import Generation, Source, generate, load, total
from paceline.core.noise import split_seed
from paceline.core.sampling import Sampling
from tests import reference
from tests.api.checkpoints import pair, without_tokenizer

PROMPTS = ["def add(first,", "x", "for item in items:\n    print(item)\nfor item in"]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=11), Sampling(temperature=0.7, top_k=20, top_p=0.9, seed=3)]


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


def drafter(name):
    return pair().draft if name == "model" else name


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("name", ["none", "ngram", "model"])
def test_every_drafter_gives_the_reference_tokens(target, name, sampling):
    model = AutoModelForCausalLM.from_pretrained(pair().target, dtype=torch.float64)
    results = generate(target, PROMPTS, max_tokens=20, sampling=sampling, drafter=drafter(name), ignore_eos=True)
    for row, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        assert result.prompt_tokens == tuple(target.tokenizer.encode(prompt))
        expected = reference.decode(
            model,
            list(result.prompt_tokens),
            max_tokens=20,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=split_seed(sampling.seed, row),
        )
        assert list(result.tokens) == expected
    if name == "model":
        assert total(results).acceptance_rate > 0.3
    if name == "none":
        assert total(results).mean_acceptance_length == 1


@pytest.mark.parametrize("name", ["none", "ngram", "model"])
def test_batch_row_equals_row_alone(target, name):
    options = [Sampling(temperature=1.0, seed=seed) for seed in (5, 6, 7)]
    together = generate(target, PROMPTS, max_tokens=16, sampling=options, drafter=drafter(name))
    alone = [
        generate(target, prompt, max_tokens=16, sampling=option, drafter=drafter(name))[0]
        for prompt, option in zip(PROMPTS, options, strict=True)
    ]
    assert [result.tokens for result in together] == [result.tokens for result in alone]
    assert [result.sources for result in together] == [result.sources for result in alone]
    assert [result.text for result in together] == [result.text for result in alone]


def test_one_seed_for_several_prompts_is_split(target):
    sampling = Sampling(temperature=1.0, seed=9)
    first, second = generate(target, ["x", "x"], max_tokens=24, sampling=sampling)
    assert first.tokens != second.tokens
    assert first.tokens == generate(target, "x", max_tokens=24, sampling=sampling)[0].tokens
    own = replace(sampling, seed=split_seed(9, 1))
    assert second.tokens == generate(target, "x", max_tokens=24, sampling=own)[0].tokens


def test_sources_account_for_every_token(target):
    results = generate(target, PROMPTS, max_tokens=40, drafter=pair().draft, num_draft_tokens=4, ignore_eos=True)
    seen = set()
    for result in results:
        assert len(result.sources) == len(result.tokens) == 40
        drafted = result.sources.count(Source.DRAFTED)
        assert drafted == sum(result.stats.accepted)
        assert len(result.sources) - drafted <= result.stats.steps
        seen |= set(result.sources)
        # After a bonus or a correction a new step begins; a bonus stands behind a whole draft.
        for at, source in enumerate(result.sources[:-1]):
            if source is Source.BONUS:
                assert set(result.sources[max(0, at - 4) : at]) == {Source.DRAFTED}
    assert {Source.DRAFTED, Source.CORRECTED, Source.BONUS} <= seen


def test_steps_without_a_draft_are_plain(target):
    assert set(generate(target, "x", max_tokens=8)[0].sources) == {Source.PLAIN}
    nothing_to_copy = generate(target, [[7]], max_tokens=1, drafter="ngram")[0]
    assert nothing_to_copy.sources == (Source.PLAIN,)


def test_pieces_are_the_results_in_parts(target):
    generation = Generation(target=target, prompts=PROMPTS, max_tokens=20, drafter=pair().draft)
    pieces = [piece for step in generation for piece in step]
    for row, result in enumerate(generation.results()):
        own = [piece for piece in pieces if piece.row == row]
        assert tuple(piece.token for piece in own) == result.tokens
        assert tuple(piece.source for piece in own) == result.sources
        assert "".join(piece.text for piece in own) == result.text
        whole = target.tokenizer.decode([*result.prompt_tokens, *result.tokens])
        assert result.text == whole[len(PROMPTS[row]) :]


def test_interrupted_generation_keeps_what_it_has(target):
    whole = generate(target, "x", max_tokens=30, drafter=pair().draft, ignore_eos=True)[0]
    generation = Generation(target=target, prompts="x", max_tokens=30, drafter=pair().draft, ignore_eos=True)
    steps = iter(generation)
    next(steps), next(steps)
    part = generation.results()[0]
    assert part.finish_reason == "cancelled" and whole.finish_reason == "length"
    assert 0 < len(part.tokens) < 30 and part.tokens == whole.tokens[: len(part.tokens)]
    assert len(part.sources) == len(part.tokens) and whole.text.startswith(part.text)


@pytest.mark.parametrize("name", ["none", "ngram", "model"])
def test_end_of_text_stops_unless_ignored(target, name):
    long = generate(target, "x", max_tokens=20, drafter=drafter(name), ignore_eos=True)[0]
    end = next(token for at, token in enumerate(long.tokens) if at >= 6 and token not in long.tokens[:at])
    ending = replace(target, eos=(end,))
    stopped = generate(ending, "x", max_tokens=20, drafter=drafter(name))[0]
    assert stopped.finish_reason == "stop"
    assert stopped.tokens == long.tokens[: long.tokens.index(end) + 1]
    assert generate(ending, "x", max_tokens=20, drafter=drafter(name), ignore_eos=True)[0].tokens == long.tokens


def test_token_prompts_need_no_tokenizer(tmp_path, target):
    bare = load(without_tokenizer(tmp_path / "bare"))
    result = generate(bare, [[5, 6, 7]], max_tokens=5)[0]
    assert result.text is None and len(result.tokens) == 5
    assert generate(replace(target, tokenizer=None), [[5, 6]], max_tokens=5)[0].tokens == (
        generate(target, [[5, 6]], max_tokens=5)[0].tokens
    )


def test_verifier_with_its_own_noise_is_reproducible(target):
    options = dict(max_tokens=20, sampling=Sampling(temperature=1.0, seed=4), verifier="rejection", ignore_eos=True)
    first, again = (generate(target, PROMPTS, drafter=pair().draft, **options) for _ in range(2))
    assert [result.tokens for result in first] == [result.tokens for result in again]
    assert total(first).acceptance_rate > 0.3
