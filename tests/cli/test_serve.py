"""``paceline serve``: what is refused, in one line and before a model is loaded; tests/serve has the process itself."""

import socket
import subprocess

import pytest

from paceline.cli import run
from paceline.cli.app import read_options
from paceline.cli.commands import serve as command
from paceline.serve import network
from tests.api.checkpoints import pair


@pytest.fixture
def refused(monkeypatch, capsys):
    """What is said of a command that is refused, without a model."""
    model = str(pair().target)  # saving it prints
    capsys.readouterr()
    monkeypatch.setattr(command.ServedModelOptions, "load", lambda _: pytest.fail("a model was loaded"))
    for name in network.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def check(*words):
        assert run(["serve", model, *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("paceline: ")
        return line

    return check


def test_addresses_that_others_reach_need_a_key(refused, monkeypatch):
    assert "--host 0.0.0.0 without a key" in refused("--host", "0.0.0.0", "--port", 0)
    assert "--host :: without a key" in refused("--host", "::", "--port", 0)
    assert "give an address of this machine" in refused("--host", "no.such.host.invalid")
    monkeypatch.setenv("VLLM_API_KEY", "key")
    with network.bind("0.0.0.0", 0, has_key=bool(network.read_keys((), None))) as bound:
        assert network.url_of(bound, encrypted=True).startswith("https://127.0.0.1:")


def test_a_port_in_use_is_refused_also_to_the_second_of_two_that_begin(refused):
    with network.bind("127.0.0.1", 0, has_key=False) as other:  # which listens already, though it answers nothing yet
        port = other.getsockname()[1]
        assert f"--port {port}: in use at 127.0.0.1; give another" in refused("--port", port)
    with network.bind("127.0.0.1", port, has_key=False):
        pass  # free again, at once
    assert "70000: give 0 to 65535" in refused("--port", 70000)


def test_keys_come_from_options_a_file_or_the_environment(tmp_path, refused, monkeypatch):
    assert network.read_keys((), None) == ()
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    assert network.read_keys((), None, {"VLLM_API_KEY": "theirs"}) == ("theirs",)
    assert network.read_keys((), None, {"VLLM_API_KEY": "theirs", "PACELINE_API_KEY": "ours"}) == ("ours",)
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert network.read_keys(("given",), file, {"PACELINE_API_KEY": "ours"}) == ("given", "one", "two")
    assert "No such file" in refused("--api-key-file", tmp_path / "none")
    file.write_text("\n")
    assert "no key in it" in refused("--api-key-file", file)
    file.write_bytes(b"\xff\xfe")
    assert "not a text" in refused("--api-key-file", file)
    for key in ("two words", "schlüssel", ""):
        assert "a key is empty, or has" in refused("--api-key", key)


def test_certificates_are_read_before_the_model(tmp_path, refused):
    missing = tmp_path / "none.pem"
    assert "without --ssl-certfile" in refused("--ssl-keyfile", missing)
    assert "No such file" in refused("--ssl-certfile", missing)
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    assert "PEM form" in refused("--ssl-certfile", broken, "--ssl-keyfile", broken)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -out".split()
    subprocess.run([*words, certificate, "-keyout", key], check=True, capture_output=True)
    network.check_certificate(key, certificate)


def test_options_that_contradict_each_other_or_have_no_sense(refused):
    config = '{"method": "ngram"}'
    assert "give one of them" in refused("--speculative-config", config, "--drafter", "ngram")
    assert "unknown" in refused("--speculative-config", '{"method": "nothing"}')
    assert "--profile" in refused("--profile", "nowhere.json", "--drafter", "ngram")
    assert "give at least 1" in refused("--max-num-seqs", 0)
    assert "give at least 2" in refused("--max-model-len", 1)
    for value in ("0", "-1", "inf", "nan"):
        assert "give a positive number of seconds" in refused("--drain-timeout", value)
    assert "known are" in refused("--uvicorn-log-level", "loud")
    assert "it begins with a slash" in refused("--root-path", "proxy")


def test_a_missing_extra_is_named(monkeypatch, capsys):
    import importlib.util
    import sys

    own = importlib.util.find_spec
    for name in [name for name in sys.modules if name.startswith("paceline.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else own(name))
    assert run(["serve", str(pair().target)]) == 2
    assert "needs uvicorn, not installed here: run pip install 'paceline[serve]'" in capsys.readouterr().err


def test_without_a_model_the_embedded_pair_is_served_and_its_draft_model_drafts():
    options = read_options(["serve", "--num-draft-tokens", "3"])
    drafting = options._drafting()
    drafting.check()
    assert drafting.draft is not None and drafting.draft.endswith("draft") and drafting.count == 3
    assert options._target().lm.num_layers > 1
    assert read_options(["serve", "--drafter", "none"])._drafting().draft is None
    assert read_options(["serve", str(pair().target)])._drafting().draft is None


def test_addresses_of_version_6_are_written_in_brackets():
    try:
        bound = network.bind("::1", 0, has_key=False)
    except OSError:
        pytest.skip("no IPv6 here")
    with bound:
        assert network.url_of(bound, encrypted=False).startswith("http://[::1]:")
        assert bound.family is socket.AF_INET6
