"""Files of heads are read by name: whole or refused, and pickles only where they are asked for."""

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.draft_heads.formats.base import FormatError, HeadFiles, check_names, check_target, is_targets
from tests import tiny

STATE = {"b.weight": torch.ones(2, 3), "a.ids": torch.arange(4), "a.flag": torch.tensor([True, False])}


def write(folder, state=None, config=None, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    save_file(STATE if state is None else state, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def shards(folder):
    first, second = {"b.weight": STATE["b.weight"]}, {"a.ids": STATE["a.ids"], "a.flag": STATE["a.flag"]}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    table = {**dict.fromkeys(first, "model-00001-of-00002.safetensors")}
    table |= dict.fromkeys(second, "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


LAYOUTS = {
    "one file": lambda folder: save_file(STATE, folder / "model.safetensors"),
    "shards": shards,
    "medusa": lambda folder: save_file(STATE, folder / "medusa_lm_head.safetensors"),
    "another name": lambda folder: save_file(STATE, folder / "head.safetensors"),
    "pickled": lambda folder: torch.save(STATE, folder / "pytorch_model.bin"),
    "pickled medusa": lambda folder: torch.save(STATE, folder / "medusa_lm_head.pt"),
    "pickled, old": lambda folder: torch.save(STATE, folder / "hydra_lm_head.pt", _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_are_those_that_were_saved(layout, tmp_path):
    LAYOUTS[layout](tmp_path)
    files = HeadFiles(tmp_path, pickles=layout.startswith("pickled"))
    assert list(files.headers) == sorted(STATE) and files.config == {} and files.architectures == ()
    for name, tensor in STATE.items():
        assert torch.equal(files.tensor(name), tensor) and files.tensor(name).dtype == tensor.dtype
        assert files.shapes[name] == tuple(tensor.shape) and files.headers[name].device.type == "meta"
    assert files.has("a.ids", "b.weight") and not files.has("a.ids", "c")


def test_safetensors_are_preferred_to_pickles_and_extras_are_no_weights(tmp_path):
    write(tmp_path)
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    torch.save({"embedding": torch.zeros(2)}, tmp_path / "mask_embedding.pt")
    assert set(HeadFiles(tmp_path, pickles=True).headers) == set(STATE)
    assert list(HeadFiles(tmp_path, pickles=True).extra("mask_embedding")) == ["embedding"]
    assert HeadFiles(tmp_path).extra("nothing") is None
    with pytest.raises(FormatError, match=r"pickled mask_embedding.pt: .*only when asked"):
        HeadFiles(tmp_path).extra("mask_embedding")


@pytest.mark.parametrize("layout", ["pickled", "pickled medusa", "pickled, old"])
def test_pickles_are_refused_unless_asked_for(layout, tmp_path):
    LAYOUTS[layout](tmp_path)
    with pytest.raises(FormatError, match=r"holds only pickled weights .*paceline export .* --pickles"):
        HeadFiles(tmp_path)


class Harmful:
    """Runs code when it is unpickled, unless the loader keeps it from that."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


def test_pickle_that_would_run_code_runs_none(tmp_path):
    torch.save({"a": Harmful(tmp_path / "harmed")}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(FormatError, match="more than tensors by name"):
        HeadFiles(tmp_path, pickles=True)
    assert not (tmp_path / "harmed").exists()


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size - 40])


def without_second_shard(folder):
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def index_of_more(folder):
    shards(folder)
    file = folder / "model.safetensors.index.json"
    found = json.loads(file.read_text())
    found["weight_map"]["c.weight"] = "model-00001-of-00002.safetensors"
    file.write_text(json.dumps(found))


def twice(folder):
    shards(folder)
    save_file(STATE, folder / "model-00002-of-00002.safetensors")


def quantised(folder):
    save_file({"a": torch.zeros(4, dtype=torch.int8)}, folder / "model.safetensors")


BROKEN = {
    "nothing": (lambda f: None, "holds no weights of a head"),
    "no index": (lambda f: (shards(f), (f / "model.safetensors.index.json").unlink()), "several files of weights"),
    "truncated": (lambda f: (write(f), cut(f / "model.safetensors")), "is broken or truncated"),
    "cut header": (lambda f: (f / "model.safetensors").write_bytes(b"\x09"), "is broken or truncated"),
    "truncated pickle": (lambda f: (torch.save(STATE, f / "m.bin"), cut(f / "m.bin")), "m.bin is broken, truncated or"),
    "pickled list": (lambda f: torch.save([torch.ones(1)], f / "m.bin"), "holds a list and not tensors by name"),
    "pickled number": (lambda f: torch.save({"a": 3}, f / "m.bin"), "a is no tensor"),
    "missing shard": (without_second_shard, "00002.safetensors is named in .* but missing"),
    "tensor of no shard": (index_of_more, "no shard has c.weight"),
    "tensor of two shards": (twice, "b.weight is in two of its files"),
    "no index at all": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "is no index of shards"),
    "no JSON": (lambda f: write(f) and (f / "config.json").write_text("{"), "config.json is not JSON"),
    "no object": (lambda f: write(f) and (f / "config.json").write_text("[]"), "holds no JSON object"),
    "integers": (quantised, "a is of I8, and known are .*; give unquantised weights"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(case, tmp_path):
    damage, message = BROKEN[case]
    damage(tmp_path)
    with pytest.raises(FormatError, match=message):
        HeadFiles(tmp_path, pickles=True)
    with pytest.raises(FormatError, match="no such directory"):
        HeadFiles(tmp_path / "missing")


def test_file_that_is_cut_after_it_was_opened_is_refused(tmp_path):
    files = HeadFiles(write(tmp_path))
    cut(tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match="cannot be read"):
        files.tensor("b.weight")
    with pytest.raises(FormatError, match="lacks the tensor c"):
        files.tensor("c")


def test_config_values_have_the_type_that_is_asked_for(tmp_path):
    config = {"n": 3, "x": 1, "flag": True, "ids": [1, 2], "inner": {"deep": {"n": 4}}, "none": None, "words": ["a"]}
    files = HeadFiles(write(tmp_path, config={**config, "architectures": ["A"], "speculators_model_type": "eagle3"}))
    assert files.value("n", int) == 3 and files.value("x", float) == 1.0 and files.value("flag", bool) is True
    assert files.value("inner.deep.n", int) == 4 and files.integers("ids") == (1, 2)
    assert files.value("none", int) is files.value("n.deep", int) is files.integers("missing") is None
    assert files.mapping("inner.deep") == {"n": 4} and files.mapping("missing") == {}
    assert files.architectures == ("A",) and files.speculators_type == "eagle3"
    for read, message in (
        (lambda: files.value("flag", int), "flag=True: int is wanted"),
        (lambda: files.value("n", bool), "n=3: bool is wanted"),
        (lambda: files.value("n", str), "n=3: str is wanted"),
        (lambda: files.integers("words"), r"words=\['a'\]: a list of integers"),
        (lambda: files.mapping("n"), "n=3: a mapping is wanted"),
        (lambda: files.required("none", int), "lacks none"),
    ):
        with pytest.raises(FormatError, match=message):
            read()


def test_names_that_do_not_fit_are_named_and_the_targets_own_are_ignored(tmp_path):
    state = {"a": torch.ones(2), "verifier_norm.weight": torch.ones(1), "x.rotary_emb.inv_freq": torch.ones(1)}
    files = HeadFiles(write(tmp_path, state))
    assert set(check_names(files, {"a": (2,)})) == {"verifier_norm.weight", "x.rotary_emb.inv_freq"}
    assert check_names(files, {}, optional={"a": (2,)}, ignored=["nothing*"])
    with pytest.raises(FormatError, match=r"they lack b, c; they hold a, which nothing is known of"):
        check_names(files, {"b": (1,), "c": (1,)})
    with pytest.raises(FormatError, match=r"a has shape \(2,\), and \(3,\) is wanted"):
        check_names(files, {"a": (3,)})


def test_sizes_and_tensors_are_compared_with_the_targets(tmp_path):
    _, target = tiny.target()
    own = target.embed.weight.detach()
    files = HeadFiles(write(tmp_path, {"same": own.clone(), "other": own * 2, "short": own[:3].clone()}))
    assert is_targets(files, "same", own) and not is_targets(files, "missing", own)
    assert not is_targets(files, "other", own) and not is_targets(files, "short", own)
    check_target(files, target, hidden_size=32, vocab_size=tiny.VOCAB)
    with pytest.raises(FormatError, match=f"a vocabulary of 9, and this one has {tiny.VOCAB}; give its own target"):
        check_target(files, target, vocab_size=9)
    with pytest.raises(FormatError, match="hidden states of 64, and this one has 32"):
        check_target(files, target, hidden_size=64)
