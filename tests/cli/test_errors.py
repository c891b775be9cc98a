"""Every wrong input of the command line: one line that names the value, the limit and the way out, and exit code 2."""

import io
import os
import shutil
import subprocess
import sys

import pytest
import torch

from paceline.api import load
from paceline.cli import run
from paceline.draft_heads.files import save_head
from paceline.draft_heads.linear_prophet import LinearProphetConfig, LinearProphetHead
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import CONTEXT, config_of, nothing_in_common, pair, without_tokenizer

GIVEN = ["generate", "--model", "TARGET"]
FILE = [*GIVEN, "--prompt-file", "PROMPTS"]


def text(*words, prompt="def add("):
    return [*GIVEN, *words, prompt]


REFUSED = {
    # what is asked of the shell
    "no such command": (["summon"], ['Unknown command "summon"', "generate"]),
    "unknown option": (text("--speed", "9"), ["Unknown option: --speed. Did you mean --seed?"]),
    "no model": (["generate", "x"], ["--model is missing"]),
    "no number": (text("--seed", "x"), ["Invalid value for --seed", 'convert "x" into int']),
    "no prompt on a terminal": (GIVEN, ["no prompt: give one as argument, pipe one in, or give --prompt-file FILE"]),
    "argument that is not UTF-8": (text(prompt="caf\udce9"), ["argument caf\\udce9: it is not UTF-8; convert it"]),
    "option that is not UTF-8": (text("--stop=\udce9"), ["argument --stop=\\udce9: it is not UTF-8; convert it"]),
    "the studies": (["experiment"], ["the studies are now `python -m benchmarks resume`"]),
    "prompt that is not UTF-8": ([*GIVEN, "-"], ["standard input is not UTF-8", "convert it"]),
    "log level": (text("-v", "loud"), ["--log-level loud: known are debug, info, warning, error"]),
    "quiet and loud": (text("-q", "-v", "info"), ["--quiet and --log-level info: give one of them"]),
    "colour": (text("--color", "red"), ["--color red: known are always, never, auto"]),
    "rejected tokens of nothing": (text("--show-rejected"), ["--show-rejected without a drafter: give --draft DIR or"]),
    "rejected tokens as JSON": (
        text("--show-rejected", "--json", "--drafter", "ngram"),
        ["--show-rejected with --json: it shows plain text alone"],
    ),
    # the model
    "no such directory": (
        ["generate", "--model", "/nowhere/at/all", "x"],
        ["no such model directory: /nowhere/at/all"],
    ),
    "not a model": (["generate", "--model", "ROOT", "x"], ["not a model: ", "no config.json", "give a directory"]),
    "no tokenizer": (
        ["generate", "--model", "BARE", "x"],
        ["has no tokenizer", "put tokenizer.json beside config.json"],
    ),
    "dtype": (text("--dtype", "int3"), ["--dtype int3: known are float32, bfloat16"]),
    "device": (text("--device", "tpu"), ["unknown device 'tpu'; known: cpu, cuda"]),
    "threads": (text("--threads", "0"), ["--threads 0: give at least 1"]),
    "threads without cores": (
        text("--threads", "100000"),
        [f"--threads 100000: give at least 1 and at most {os.cpu_count()}, the number of this machine's cores"],
    ),
    "threads of the demo": (["demo", "--threads", "100000"], ["--threads 100000: give at least 1 and at most"]),
    "threads of the roofline": (["roofline", "--threads", "100000"], ["--threads 100000: give at least 1 and at"]),
    "a file as a model": (
        ["generate", "--model", "PROMPTS", "x"],
        ["not a model: ", "prompts.txt is a file; give the directory that holds config.json"],
    ),
    "a head as a model": (
        ["generate", "--model", "HEAD", "x"],
        ["head is a draft head, not a model: give it as the draft (--draft", "trained for (tiny) here"],
    ),
    "a URL as a model": (
        ["generate", "--model", "hf://foo", "x"],
        ["no such model: hf://foo; Hub ids are given without hf://, as 'organisation/name'"],
    ),
    "a web page as a model": (
        ["generate", "--model", "https://huggingface.co/owner/name/tree/main", "x"],
        ["Hub ids are given without https://, as 'owner/name'"],
    ),
    "a model without a name": (["generate", "--model", "", "x"], ["a model without a name: give a directory or a Hub"]),
    "a size that is a word": (
        ["generate", "--model", "WORDY", "x"],
        ["config.json has hidden_size='wide': hidden_size is a whole number; correct it, or take"],
    ),
    "weights of fewer layers": (
        ["generate", "--model", "SHALLOW", "x"],
        ["the weights do not fit config.json: they lack model.layers.3.", " others; take config.json and all files of"],
    ),
    "revision of a directory": (
        text("--revision", "main"),
        ["revision='main'", "only models of the Hub have revisions"],
    ),
    "batch size": (text("--batch-size", "0"), ["--batch-size 0: give at least 1"]),
    # drafting
    "unknown drafter": (text("--drafter", "oracle"), ["unknown drafter 'oracle'; known: ", "given by --draft"]),
    "drafter without its model": (text("--drafter", "model"), ["needs a draft model, give --draft DIR"]),
    "two drafters": (
        text("--drafter", "ngram", "--draft", "DRAFT", "--num-draft-tokens", "3"),
        ["--num-draft-tokens 3 with --drafter ngram and --draft", "give one of the two drafters"],
    ),
    "two drafters under rejection": (
        text("--drafter", "ngram", "--draft", "DRAFT", "--verifier", "rejection"),
        ["2 drafters and a verifier whose tokens depend on what is drafted", "give one drafter, or the verifier"],
    ),
    "a drafter and none": (text("--drafter", "none", "--draft", "DRAFT"), ['the drafter "none" is one of several']),
    "name as a draft model": (text("--draft", "/none"), ["--draft cannot be loaded: no such model directory: /none"]),
    "a file as a draft": (
        text("--draft", "PROMPTS"),
        ["--draft cannot be loaded: not a model: ", "prompts.txt is a file; give the dir"],
    ),
    "no model as a draft": (text("--draft", "ROOT"), ["--draft cannot be loaded: not a model: ", "has no config.json"]),
    "a URL as a draft": (
        text("--draft", "hf://a/b"),
        ["--draft cannot be loaded: no such model: hf://a/b; Hub ids are", "as 'a/b'"],
    ),
    "a model as a drafter": (text("--drafter", "DRAFT"), ["unknown drafter", "a draft model is given by --draft"]),
    "draft length of no drafter": (
        text("--num-draft-tokens", "4"),
        ["--num-draft-tokens 4 without a drafter: there are no drafts; give --draft DIR or --drafter ngram too"],
    ),
    "verifier of no drafter": (text("--verifier", "rejection"), ["--verifier rejection without a drafter: there are"]),
    "verifier of the drafter none": (
        text("--verifier", "rejection", "--drafter", "none"),
        ["--verifier rejection with --drafter none: there are no drafts"],
    ),
    "profile of no drafter": (text("--profile", "PROMPTS"), ["--profile ", "without a drafter: it is for draft leng"]),
    "verifier that does not fit": (
        text("--drafter", "ngram", "--verifier", "spectr"),
        [
            "the verifier 'spectr' does not fit the drafter 'ngram': ngram drafts tokens that are chosen rather than "
            "sampled, and spectr verifies only those that are sampled from the draft's probabilities; give another "
            "drafter, or one of the verifiers block, coupled,"
        ],
    ),
    "vocabulary": (
        text("--draft", "OTHER"),
        ["(297 tokens) and draft", "different vocabularies, without a token in common"],
    ),
    "unknown verifier": (text("--verifier", "maybe"), ["unknown verifier 'maybe'; known: block, coupled"]),
    "unknown option of a verifier": (
        text("--verifier", "lossy_typical:gamma=1"),
        ["verifier 'lossy_typical' has no option 'gamma'; known: epsilon=0.09, delta=0.3"],
    ),
    "threshold": (text("--verifier", "lossy_typical:epsilon=2"), ["epsilon=2.0, delta=0.3: give numbers above 0"]),
    "unknown option of a drafter": (
        text("--drafter", "ngram:depth=2"),
        ["drafter 'ngram' has no option 'depth'; known: max_ngram=3, min_ngram=1"],
    ),
    "model by name with options": (
        text("--drafter", "model:lm=x"),
        ["drafter 'model' has no option 'lm'; known: draft"],
    ),
    "draft length": (text("--num-draft-tokens", "-2"), ["--num-draft-tokens -2: give 0 (no drafting) or a positive"]),
    "draft length twice": (
        text("--num-draft-tokens", "3", "--drafter", '{"method": "ngram", "num_speculative_tokens": 2}'),
        ["--num-draft-tokens 3 and num_speculative_tokens in --drafter: give one of them"],
    ),
    "method of vLLM": (
        text("--drafter", '{"method": "ernie_mtp"}'),
        ["method='ernie_mtp': models of this kind and their MTP layers are not read: give method 'draft_model' with a"],
    ),
    "broken JSON": (text("--drafter", '{"method"'), ["is not JSON"]),
    # sampling; tests/api/test_params.py has what SamplingParams refuses
    "cold": (text("--temperature", "-1"), ["temperature=-1.0: give a finite number of at least 0"]),
    "seed": (text("--seed", "-4"), ["seed=-4: give an integer from 0"]),
    "bias without value": (text("--logit-bias", "5"), ["--logit-bias 5: give ID=VALUE, such as 42=1.5 or 42=-inf"]),
    "bias of several": (text("--logit-bias", "5,6=1"), ["--logit-bias 5,6=...: give one token; use --sequence-bias"]),
    "endless bias": (text("--logit-bias", "5=inf"), ["logit_bias[5]=inf: give a finite bias, or -inf to ban"]),
    "biased id": (text("--logit-bias", "9999=1"), ["logit_bias: [9999] leave the target's vocabulary of 320 tokens;"]),
    "biased sequence": (text("--sequence-bias", "a=1"), ["--sequence-bias a=1: give ID,ID=VALUE, such as 42,7=-2"]),
    "bad ids": (text("--bad-word-ids", "5;6"), ["--bad-word-ids 5;6: give token ids, such as 42,7"]),
    "empty bad word": (text("--bad-word", ""), ["bad_words=['']: give a string or several, none of them empty"]),
    "begin-suppressed id": (
        text("--begin-suppress-token-id", "x"),
        ["Invalid value for --begin-suppress-token-id", "into int"],
    ),
    # where texts end
    "no tokens": (text("--max-tokens", "0"), ["max_tokens=0: give at least 1"]),
    "too many tokens": (text("--max-tokens", "9999"), [f"exceed the limit of {CONTEXT} tokens; shorten the prompt or"]),
    "empty prompt": (text(prompt=""), ["empty prompt: give at least one token"]),
    # chats
    "no template": (text("--chat"), ["has no chat template: give the prompt as text, or put chat_template.jinja"]),
    "system without chat": (text("--system", "x"), ["--system without --chat: give --chat too"]),
    "two systems": (
        text("--chat", "--system", "x", prompt='[{"role": "system", "content": "y"}]'),
        ["--system and messages that begin with a system message: give one of them"],
    ),
    # output
    "logprobs in a text": (text("--logprobs", "2"), ["--logprobs 2: plain text cannot show them, give --json too"]),
    "too many logprobs": (text("--json", "--logprobs", "99"), ["logprobs=99: give a count from 0 to 20"]),
    "output that exists": (text("--output", "PROMPTS"), ["exists already; give another name, or --overwrite"]),
    "output in no directory": (text("--output", "/no/where/x"), ["no such directory: /no/where; create it, or give"]),
    "output is a directory": (text("--output", "ROOT"), ["no plain file; give another name, or - for standard output"]),
    "nothing to overwrite": (text("--overwrite"), ["--overwrite without --output FILE: there is nothing to overwrite"]),
    # prompt files
    "a file of UTF-16": ([*GIVEN, "--prompt-file", "WIDE", "--output", "-"], ["wide.txt: not a file of UTF-8 text;"]),
    "no text": ([*GIVEN, "--prompt-file", "WEIGHTS", "--output", "-"], ["safetensors: not a file of UTF-8 text;"]),
    "a folder": ([*GIVEN, "--prompt-file", "ROOT", "--output", "-"], ["Is a directory; give a file that can be read"]),
    "prompt and file": ([*FILE, "--output", "-", "x"], ["a prompt and --prompt-file: give one of them"]),
    "file without output": (FILE, ["--prompt-file without --output: give --output FILE.jsonl, or - for standard"]),
    "no such file": (
        [*GIVEN, "--prompt-file", "/none.txt", "--output", "-"],
        ["/none.txt: No such file", "can be read"],
    ),
    "empty file": ([*GIVEN, "--prompt-file", "EMPTY", "--output", "-"], ["no prompts in it; give one per line"]),
    "output is the input": ([*FILE, "--output", "PROMPTS"], ["is the prompt file itself: give another name"]),
    "results on a device": ([*FILE, "--output", "/dev/full"], ["/dev/full: no plain file; give another name, or -"]),
    "results in no directory": ([*FILE, "--output", "/no/where/x"], ["no such directory: /no/where"]),
    "fresh seed": ([*FILE, "--output", "-", "--seed", "-1"], ["could not be resumed, give a seed from 0"]),
    "stop without tokenizer": (
        ["generate", "--model", "BARE", "--prompt-file", "PROMPTS", "--output", "-", "--stop", "x"],
        ["has no tokenizer to find it with; give --stop-token-id"],
    ),
    "words without tokenizer": (
        ["generate", "--model", "BARE", "--prompt-file", "PROMPTS", "--output", "-", "--bad-word", "x"],
        ["has no tokenizer to encode them with; give bad_words_ids"],
    ),
    "biased id of all prompts": ([*FILE, "--output", "-", "--logit-bias", "999=1"], ["[999] leave the target's voc"]),
    # scoring
    "nothing to score": (["score", "--model", "TARGET"], ["nothing to score: give one of PROMPT CONTINUATION, --file"]),
    "half a pair": (["score", "--model", "TARGET", "x"], ["PROMPT without CONTINUATION: give both, or --text FILE"]),
    "two sources": (
        ["score", "--model", "TARGET", "--text", "PROMPTS", "--file", "PROMPTS"],
        ["--file and --text: give"],
    ),
    "stride of a pair": (["score", "--model", "TARGET", "--stride", "9", "x", "y"], ["--stride 9 without --text"]),
    "stride": (["score", "--model", "TARGET", "--stride", "0", "--text", "PROMPTS"], ["stride=0: give 1 to 511"]),
    "no such text": (["score", "--model", "TARGET", "--text", "/none"], ["--text /none: No such file"]),
    "text too short": (["score", "--model", "TARGET", "--text", "SHORT"], ["short.txt: one token alone"]),
    "no such pairs": (["score", "--model", "TARGET", "--file", "/none"], ["--file /none: No such file"]),
    "empty pairs": (["score", "--model", "TARGET", "--file", "EMPTY"], ["no lines in it; give objects like"]),
    "empty continuation": (["score", "--model", "TARGET", "x", ""], ["empty continuation: give at least one token"]),
    "scoring batch": (
        ["score", "--model", "TARGET", "--batch-size", "0", "x", "y"],
        ["--batch-size 0: give at least 1"],
    ),
    # inspecting
    "inspecting nothing": (["inspect"], ["--model is missing"]),
    "inspecting no model": (["inspect", "ROOT"], ["not a model: "]),
    "inspecting nowhere": (["inspect", "/nowhere/at/all"], ["no such model directory: /nowhere/at/all"]),
    "context": (["inspect", "TARGET", "--context", "99999"], [f"--context 99999: give 2 to {CONTEXT}"]),
    "rows": (["inspect", "TARGET", "--batch-size", "0"], ["--batch-size 0: give at least 1"]),
    "drafted": (["inspect", "TARGET", "--num-draft-tokens", "-1"], ["--num-draft-tokens -1: give at least 0"]),
    "precision": (["inspect", "TARGET", "--dtype", "int3"], ["--dtype int3: known are float32, bfloat16"]),
    "revision": (["inspect", "TARGET", "--revision", "x"], ["--revision x", "only models of the Hub have revisions"]),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "prompts.txt").write_text("def add(\n")
    (folder / "empty.jsonl").touch()
    (folder / "short.txt").write_text("a")
    (folder / "wide.txt").write_bytes("def\n".encode("utf-16"))
    for name, change in (("wordy", {"hidden_size": "wide"}), ("shallow", {"num_hidden_layers": 4})):
        shutil.copytree(pair().target, folder / name)
        config_of(folder / name, **change)
    own = load(pair().target).lm
    head = LinearProphetHead.make(LinearProphetConfig(), own, generator=torch.Generator().manual_seed(0))
    save_head(head, folder / "head", target_name="tiny", fingerprint=fingerprint(own))
    return {
        "HEAD": folder / "head",
        "WORDY": folder / "wordy",
        "SHALLOW": folder / "shallow",
        "WIDE": folder / "wide.txt",
        "WEIGHTS": pair().target / "model.safetensors",
        "TARGET": pair().target,
        "DRAFT": pair().draft,
        "ROOT": pair().root,
        "OTHER": nothing_in_common(folder / "other"),
        "BARE": without_tokenizer(folder / "bare"),
        "PROMPTS": folder / "prompts.txt",
        "EMPTY": folder / "empty.jsonl",
        "SHORT": folder / "short.txt",
    }


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_clear_line_and_exit_code_two(case, places, capsys, monkeypatch):
    arguments, messages = REFUSED[case]
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8") if "-" in arguments else Terminal()
    monkeypatch.setattr("sys.stdin", stdin)
    assert run([str(places.get(word, word)) for word in arguments]) == 2
    captured = capsys.readouterr()
    for message in messages:
        assert message in captured.err
    assert captured.err.startswith("paceline: ") and captured.err.count("\n") == 1
    assert captured.out == ""
    assert places["PROMPTS"].read_text() == "def add(\n", "nothing was written"


EARLY = {
    "model": ["generate", "--model", "/nowhere/at/all", "x"],
    "head": ["generate", "--model", "HEAD", "x"],
    "draft": text("--draft", "ROOT"),
    "scoring": ["score", "--model", "hf://a/b", "x", "y"],
    "inspecting": ["inspect", "ROOT"],
    "threads": text("--threads", "100000"),
}


def test_a_mistyped_path_is_refused_before_torch_is_imported(places):
    cases = [[str(places.get(word, word)) for word in words] for words in EARLY.values()]
    code = (
        "import sys; from paceline.cli import run\n"
        f"codes = [run(case) for case in {cases!r}]\n"
        "print(codes, sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{[2] * len(cases)} []\n", done.stderr
    assert len(done.stderr.splitlines()) == len(cases)


def test_a_group_of_commands_alone_shows_what_it_has(capsys):
    assert run(["data"]) == 0
    captured = capsys.readouterr()
    assert "regenerate" in captured.out and captured.err == ""


def test_bytes_of_a_file_name_need_no_encoding(places, tmp_path, capsys):
    """Names of files are bytes: one that is not UTF-8 is found."""
    prompts = tmp_path / "caf\udce9.txt"
    prompts.write_text("def")
    words = ["generate", "--model", places["TARGET"], "--prompt-file", prompts, "--output", "-", "--max-tokens", "2"]
    assert run([str(word) for word in words]) == 0


def test_no_drafting_may_be_asked_for_without_a_drafter(capsys):
    for words in (["--num-draft-tokens", "0"], ["--verifier", "coupled"]):
        assert run([str(word) for word in (*GIVEN[:2], pair().target, "--max-tokens", 2, *words, "def")]) == 0
