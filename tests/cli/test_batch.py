import json
import os
from dataclasses import replace

import pytest

from paceline.api import SamplingParams, generate, load
from paceline.cli import run
from paceline.core.noise import split_seed
from paceline.engine.runner import Runner
from tests.api.checkpoints import CONTEXT, pair, without_tokenizer
from tests.cli.files import MAX_TOKENS, PROMPTS, generate_file, journal_of, lines_of, write

SAMPLED = ["--temperature", "0.9", "--seed", "5"]
DRAFTED = ["--draft", str(pair().draft), "--num-draft-tokens", "5"]


@pytest.fixture
def prompts(tmp_path):
    return write(tmp_path / "prompts.txt", PROMPTS)


def interrupt_after(monkeypatch, steps, error=KeyboardInterrupt):
    """The next run is interrupted in its step number ``steps``."""
    count = [0]

    def launch(self, real=Runner.launch):
        count[0] += 1
        if count[0] == steps:
            raise error
        return real(self)

    monkeypatch.setattr(Runner, "launch", launch)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("options", [[], [*DRAFTED, "--batch-size", "3"]], ids=["plain", "drafted"])
def test_prompt_file_equals_one_call_over_all_prompts(prompts, tmp_path, n, options):
    output = tmp_path / "out.jsonl"
    assert generate_file(prompts, output, *SAMPLED, "-n", n, *options) == 0
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, seed=5, n=n)
    expected = generate(load(pair().target), PROMPTS, params)
    lines = lines_of(output)
    assert [line["index"] for line in lines] == list(range(len(PROMPTS)))
    found = [sample for line in lines for sample in line["samples"]]
    assert [(s["seed"], s["tokens"], s["text"], s["finish_reason"]) for s in found] == [
        (r.seed, list(r.token_ids), r.text, r.finish_reason) for r in expected
    ]
    assert [line["num_prompt_tokens"] for line in lines] == [len(r.prompt_tokens) for r in expected[::n]]
    assert found[-1]["seed"] == split_seed(5, n * len(PROMPTS) - 1)
    assert not journal_of(output).exists()


def test_lines_may_be_strings_tokens_or_messages_with_ids(tmp_path):
    target = load(pair().target)
    tokens = target.tokenizer.encode("import os")
    objects = [{"prompt": "import os", "id": "a"}, {"tokens": tokens, "id": 7}, {"prompt": "two\nlines"}]
    prompts, output = write(tmp_path / "p.jsonl", map(json.dumps, objects)), tmp_path / "out.jsonl"
    assert generate_file(prompts, output) == 0
    lines = lines_of(output)
    assert [line.get("id") for line in lines] == ["a", 7, None]
    assert lines[0]["samples"][0]["text"] == lines[1]["samples"][0]["text"]
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    assert lines[2]["samples"][0]["text"] == generate(target, "two\nlines", params)[0].text


PARAMS = (
    {"temperature": 0.0, "repetition_penalty": 1.5, "logit_bias": {"70": 2.0}},
    {"top_k": 4, "max_tokens": MAX_TOKENS + 9, "logprobs": 1},
    {"seed": 11, "min_p": 0.1, "top_p": 0.8, "filter_order": "vllm"},
    {"bad_words": ["def"], "stop_token_ids": list(range(40, 99))},
)


@pytest.mark.parametrize("options", [[], [*DRAFTED, "--batch-size", "3"]], ids=["plain", "drafted"])
def test_lines_may_have_their_own_params(tmp_path, options):
    target, text = load(pair().target), "import os"
    lines = [{"prompt": text, "params": params} for params in PARAMS] + [{"prompt": text}]
    prompts, output = write(tmp_path / "p.jsonl", map(json.dumps, lines)), tmp_path / "out.jsonl"
    assert generate_file(prompts, output, *SAMPLED, "-n", "2", *options) == 0
    shared = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, n=2, seed=5)
    found = [[sample["tokens"] for sample in line["samples"]] for line in lines_of(output)]
    for index, params in enumerate((*PARAMS, {})):
        seed, first = (params["seed"], 0) if "seed" in params else (5, 2 * index)
        for sample, tokens in enumerate(found[index]):
            alone = replace(shared.updated(params), n=1, seed=split_seed(seed, first + sample))
            assert tokens == list(generate(target, text, alone)[0].token_ids)
    assert len(found[1][0]) == MAX_TOKENS + 9 and found[0][0] == found[0][1]
    assert "logprobs" in lines_of(output)[1]["samples"][0] and "logprobs" not in lines_of(output)[0]["samples"][0]


def test_wrong_params_of_a_line_fail_alone(tmp_path):
    wrong = {
        '{"top_k": -3}': "params: top_k=-3: give 0",
        '{"topk": 3}': "params: unknown sampling parameters: topk; known: n, temperature",
        '{"max_tokens": 9999}': f"--max-tokens 9999 exceed the context of {CONTEXT} tokens",
        '{"min_tokens": 99}': f"params: min_tokens=99 is more than max_tokens={MAX_TOKENS}",
        '{"logit_bias": {"999": 1}}': "logit_bias: [999] leave the target's vocabulary of 320 tokens",
        '{"n": 2}': "params with n: it is the same for all prompts",
    }
    lines = [f'{{"prompt": "x", "params": {one}}}' for one in wrong] + ['{"prompt": "x"}']
    assert generate_file(write(tmp_path / "p.jsonl", lines), tmp_path / "out.jsonl") == 1
    found = lines_of(tmp_path / "out.jsonl")
    for index, message in enumerate(wrong.values()):
        assert found[index]["error"].startswith(f"line {index + 1}: ") and message in found[index]["error"]
    assert len(found[-1]["samples"]) == 1


def test_bad_prompts_fail_alone(tmp_path, capsys):
    objects = ['{"prompt": "good"}', "{", "[1]", '{"prompt": ""}', '{"tokens": [1, 99999]}', '{"tokens": [-1]}']
    objects += [json.dumps({"tokens": [1] * CONTEXT}), '{"messages": [{"role": "user", "content": "x"}]}']
    objects += ['{"prompt": "\\ud800"}', '{"prompt": "x", "top_k": 3}', '{"prompt": "good"}']
    prompts, output = write(tmp_path / "p.jsonl", objects), tmp_path / "out.jsonl"
    assert generate_file(prompts, output) == 1
    lines = lines_of(output)
    reasons = {line["index"]: line["error"] for line in lines if "error" in line}
    expected = {
        1: "not JSON",
        2: "no JSON object",
        3: "empty prompt",
        4: "leave the target's vocabulary of 320",
        5: "leave the target's vocabulary of 320",
        6: f"prompt of {CONTEXT} tokens and --max-tokens {MAX_TOKENS} exceed the context of {CONTEXT} tokens; shorten",
        7: "has no chat template",
        8: "cannot be encoded as UTF-8",
        9: "unknown key 'top_k'",
    }
    assert reasons.keys() == expected.keys()
    for index, reason in expected.items():
        assert reasons[index].startswith(f"line {index + 1}: ") and reason in reasons[index]
        assert "prompt 0" not in reasons[index]
    assert lines[0]["samples"][0]["text"] == lines[10]["samples"][0]["text"]
    assert "paceline: 9 of 11 prompts failed; line 2: not JSON" in capsys.readouterr().err
    before = output.read_bytes()
    assert generate_file(prompts, output) == 1, "a finished file says again that prompts failed"
    assert output.read_bytes() == before


def test_file_of_bad_prompts_only_needs_no_engine(tmp_path):
    prompts, output = write(tmp_path / "p.txt", ["", ""]), tmp_path / "out.jsonl"
    assert generate_file(prompts, output) == 1
    assert [line["error"][:18] for line in lines_of(output)] == ["line 1: empty line", "line 2: empty line"]


def test_model_without_tokenizer_takes_token_ids(tmp_path):
    bare = without_tokenizer(tmp_path / "bare")
    prompts = write(tmp_path / "p.jsonl", ['{"tokens": [5, 6]}', '{"prompt": "x"}'])
    assert generate_file(prompts, tmp_path / "out.jsonl", model=bare) == 1
    lines = lines_of(tmp_path / "out.jsonl")
    assert lines[0]["samples"][0]["text"] is None and len(lines[0]["samples"][0]["tokens"]) == MAX_TOKENS
    assert "has no tokenizer" in lines[1]["error"]


@pytest.mark.parametrize(
    "drafter", [[], DRAFTED, ["--drafter", "ngram", "--num-draft-tokens", "5"]], ids=["plain", "model", "ngram"]
)
def test_resumed_file_equals_an_uninterrupted_one_for_any_drafter(prompts, tmp_path, monkeypatch, drafter):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    options = [*SAMPLED, "-n", "2", "--batch-size", "3", "--logprobs", "1"]
    assert generate_file(prompts, whole, *options) == 0
    for steps, error, code in ((3, KeyboardInterrupt, 130), (9, KeyboardInterrupt, 130), (5, OSError("broken"), 2)):
        with monkeypatch.context() as patch:
            interrupt_after(patch, steps, error)
            assert generate_file(prompts, output, *options, *drafter) == code
        assert whole.read_bytes().startswith(output.read_bytes())
        partial = [line for line in journal_lines(output) if cancelled(line)]
        assert partial and all(line["run"] == partial[0]["run"] for line in partial)
    assert generate_file(prompts, output, *options, *drafter) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert not journal_of(output).exists()


def journal_lines(output):
    return [json.loads(line) for line in journal_of(output).read_text().splitlines() if line]


def cancelled(line):
    return any(sample["finish_reason"] == "cancelled" for sample in line["samples"])


def test_nothing_that_was_finished_is_generated_again(prompts, tmp_path, monkeypatch):
    """Texts that end before the first one wait in the journal, and are taken from there."""
    output = tmp_path / "out.jsonl"
    assert generate_file(prompts, tmp_path / "long.jsonl") == 0
    first, *others = (line["samples"][0]["tokens"] for line in lines_of(tmp_path / "long.jsonl"))
    early = next(token for tokens in others for token in tokens[:8] if token not in first)
    options = ["--stop-token-id", early, "--batch-size", "8"]
    assert generate_file(prompts, tmp_path / "whole.jsonl", *options) == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 12)
        assert generate_file(prompts, output, *options) == 130
    waiting = [line for line in journal_lines(output) if not cancelled(line)]
    done = len(lines_of(output))
    admitted = []
    monkeypatch.setattr(
        Runner,
        "begin",
        lambda *given, real=Runner.begin, **options: admitted.extend(given[1]) or real(*given, **options),
    )
    assert generate_file(prompts, output, *options) == 0
    left = [line["index"] for line in waiting if line["index"] >= done]
    assert left, "one has waited"
    assert len(admitted) == 8 - done - len(left)
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_torn_and_broken_lines_are_written_again(prompts, tmp_path):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert generate_file(prompts, whole) == 0
    lines = whole.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    journal_of(output).write_bytes(b"\n" + lines[5] + b'\n{"index": 6, "ru\n' + lines[7][:30])
    assert generate_file(prompts, output) == 0
    assert output.read_bytes() == whole.read_bytes() and not journal_of(output).exists()


REJECTION = ["--drafter", "ngram", "--verifier", "rejection"]
OTHER_RUNS = {
    "model": (["--dtype", "float32"], "another model, backend or precision"),
    "backend": (["--backend", "hf"], "another model, backend or precision"),
    "sampling": (["--seed", "6"], "other sampling options"),
    "verifier": ([*REJECTION], "another verifier, drafter or draft length"),
    "several": (["--seed", "6", *REJECTION], "other sampling options and another verifier"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", OTHER_RUNS)
@pytest.mark.parametrize("place", ["file", "journal"])
def test_other_options_are_refused_by_what_differs_unless_overwriting(case, place, prompts, tmp_path, capsys):
    options, message = OTHER_RUNS[case]
    output = tmp_path / "out.jsonl"
    assert generate_file(prompts, output, *SAMPLED, max_tokens=4) == 0
    if place == "journal":
        output.rename(journal_of(output))
    found = journal_of(output) if place == "journal" else output
    before = found.read_bytes()
    assert generate_file(prompts, output, *SAMPLED, *options, max_tokens=4) == 2
    error = capsys.readouterr().err
    assert f"{found} was written with {message}" in error and "give another --output, or --overwrite" in error
    assert found.read_bytes() == before
    assert generate_file(prompts, output, *SAMPLED, *options, "--overwrite", max_tokens=4) == 0
    assert len(lines_of(output)) == len(PROMPTS) and output.read_bytes() != before
    assert not journal_of(output).exists()


def test_drafter_is_part_of_the_run_where_tokens_depend_on_it(prompts, tmp_path):
    output = tmp_path / "out.jsonl"
    options = [*SAMPLED, "--verifier", "rejection", "--drafter"]
    assert generate_file(prompts, output, *options, "ngram", max_tokens=4) == 0
    assert generate_file(prompts, output, *options, "ngram", max_tokens=4) == 0
    assert generate_file(prompts, output, *options, "ngram:max_ngram=2", max_tokens=4) == 2
    assert generate_file(prompts, output, *options, "ngram", "--num-draft-tokens", "2", max_tokens=4) == 2


def test_changed_prompts_are_refused_and_new_ones_at_the_end_are_done(prompts, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    assert generate_file(prompts, output) == 0
    write(prompts, [*PROMPTS, "import os"])
    assert generate_file(prompts, output) == 0 and len(lines_of(output)) == len(PROMPTS) + 1
    write(prompts, PROMPTS)
    assert generate_file(prompts, output) == 2
    assert f"has a result for line {len(PROMPTS) + 1}, but there are {len(PROMPTS)}" in capsys.readouterr().err
    write(prompts, [PROMPTS[0], "other", *PROMPTS[1:]])
    assert generate_file(prompts, output) == 2
    assert "was written for another prompt in line 2" in capsys.readouterr().err


def test_foreign_files_are_left_alone(prompts, tmp_path, capsys):
    for content in ("my notes\n", '{"index": 0}\n', "[]\n", '{"index": 3, "run": "x"}\n'):
        output = tmp_path / "notes.txt"
        output.write_text(content)
        assert generate_file(prompts, output) == 2
        assert output.read_text() == content
        assert "give another --output, or --overwrite" in capsys.readouterr().err


def test_full_disk_ends_with_a_message_and_whole_lines(prompts, tmp_path, monkeypatch, capsys):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert generate_file(prompts, whole) == 0
    room = [int(whole.stat().st_size * 0.6)]

    def write_some(file, data, real=os.write):
        if file <= 2:
            return real(file, data)
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        count = real(file, data[: room[0]])
        room[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr("paceline.cli.prompt_file.journal.os.write", write_some)
        assert generate_file(prompts, output) == 2
    message = capsys.readouterr().err
    assert f"cannot write {output}: No space left on device; " in message and "run the same command" in message
    kept = output.read_bytes()
    assert kept.endswith(b"\n") and whole.read_bytes().startswith(kept)
    assert generate_file(prompts, output) == 0 and output.read_bytes() == whole.read_bytes()


def test_two_runs_do_not_write_one_file(prompts, tmp_path, capsys):
    fcntl = pytest.importorskip("fcntl")
    output = tmp_path / "out.jsonl"
    with journal_of(output).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert generate_file(prompts, output) == 2
    assert "another run is writing it" in capsys.readouterr().err
    assert generate_file(prompts, output) == 0


@pytest.mark.parametrize("steps", [None, 25])
def test_standard_output_has_the_lines_in_order(prompts, tmp_path, steps, capsys, monkeypatch):
    assert generate_file(prompts, tmp_path / "whole.jsonl", "--batch-size", "2") == 0
    capsys.readouterr()
    if steps is not None:
        interrupt_after(monkeypatch, steps)
    assert generate_file(prompts, "-", "--batch-size", "2") == (0 if steps is None else 130)
    captured = capsys.readouterr()
    printed = [json.loads(line) for line in captured.out.splitlines()]
    whole = lines_of(tmp_path / "whole.jsonl")
    finished = [line for line in printed if not cancelled(line)]
    assert finished == whole[: len(finished)]
    assert captured.err == "", "quiet where nobody looks"
    if steps is None:
        assert len(printed) == len(whole)
    else:
        assert 0 < len(finished) < len(whole) and len(printed) > len(finished)


def test_stats_are_printed_on_request(prompts, tmp_path, capsys):
    assert generate_file(prompts, tmp_path / "out.jsonl", "--stats", *DRAFTED) == 0
    error = capsys.readouterr().err
    for word in ("outputs ", "tokens/step", "= tokens / target steps", "by position", "first token"):
        assert word in error


def test_progress_is_for_terminals(prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert generate_file(prompts, tmp_path / "one.jsonl") == 0
    assert "8/8" in capsys.readouterr().err
    assert generate_file(prompts, tmp_path / "two.jsonl", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_ten_thousand_bad_lines_are_read_at_once(tmp_path):
    prompts = write(tmp_path / "p.txt", [""] * 10_000)
    assert run(["generate", "--model", str(pair().target), "--prompt-file", str(prompts), "--output", "-", "-q"]) == 1
