"""Draft models with another tokenizer, through the public calls: the output of plain decoding, and drafts accepted."""

import json
import shutil
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, pipeline

import paceline
from paceline import hf
from paceline.api import SamplingParams, embedded_pair, generate, load, stream
from paceline.api.build import build_drafter
from paceline.api.cross_vocabulary import choose_exchange
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.drafters.host import HostDrafting
from paceline.drafters.model import ModelDrafter
from paceline.models.loading import save
from tests import tiny
from tests.api.checkpoints import make_tokenizer, other_vocabulary, pair
from tests.text.test_retokenizer import sentencepiece

TEXTS = ["def add(first", "for item in", "naïve 日本", "x"]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)
WAYS = ("tli", "slem")


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Draft models by the kind of their tokenizers."""
    folder = tmp_path_factory.mktemp("drafts")
    marked = folder / "sentencepiece"
    tokenizer = sentencepiece()
    model = tiny.llama(seed=5, vocab_size=tokenizer.get_vocab_size() + 7, max_position_embeddings=512)
    save(tiny.native(model), model.config.to_dict(), marked, dtype=torch.float64)
    tokenizer.save(str(marked / "tokenizer.json"))
    return {"byte level": other_vocabulary(folder / "byte level"), "sentencepiece": marked}


@pytest.fixture(scope="module")
def permuted(tmp_path_factory):
    """The embedded target with its tokens in another order."""
    source, folder = embedded_pair()[0], tmp_path_factory.mktemp("permuted")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    loaded = load(source, dtype=torch.float32, device="cpu", enforce_eager=True)
    size = loaded.lm.vocab_size
    order = torch.randperm(loaded.tokenizer.size, generator=torch.Generator().manual_seed(1))
    rows = torch.cat((order, torch.arange(len(order), size)))
    place = {int(old): new for new, old in enumerate(order)}
    with torch.no_grad():  # its LM head is tied to it
        loaded.lm.embed.weight.copy_(loaded.lm.embed.weight[rows].clone())
    save(loaded.lm, loaded.config, folder, dtype=torch.float32)
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"]["vocab"] = {name: place[number] for name, number in raw["model"]["vocab"].items()}
    for token in raw["added_tokens"]:
        token["id"] = place[token["id"]]
    path.write_text(json.dumps(raw))
    return folder


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_output_is_that_of_plain_decoding_in_batches(target, others, kind, way, params):
    plain = generate(target, TEXTS, params)
    drafter = build_drafter(f"model:draft={others[kind]},vocabulary={way}", target=target)
    assert isinstance(drafter, ModelDrafter if way == "tli" else HostDrafting)
    drafted = generate(target, TEXTS, params, drafter=drafter, num_draft_tokens=3)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert sum(sum(one.stats.drafted) for one in drafted) > 0


@pytest.mark.parametrize("way", WAYS)
def test_the_same_model_with_another_tokenizer_is_accepted_nearly_always(permuted, way):
    target = load(embedded_pair()[0], dtype=torch.float32, device="cpu")
    draft = load(permuted, dtype=torch.float32, device="cpu")
    assert choose_exchange(target, draft).way == "tli" and choose_exchange(target, draft).intersection.share == 1
    params = SamplingParams(max_tokens=60, temperature=0.0)
    drafter = f"model:draft={permuted},vocabulary={way}"
    results = generate(target, PYTHON_PROMPTS[:4], params, drafter=drafter, num_draft_tokens=4)
    plain = generate(target, PYTHON_PROMPTS[:4], params)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]
    drafted, accepted = (sum(sum(getattr(one.stats, name)) for one in results) for name in ("drafted", "accepted"))
    assert accepted / drafted > (0.99 if way == "tli" else 0.9)


@pytest.mark.parametrize("way", WAYS)
def test_streamed_text_is_that_of_plain_decoding(target, others, way):
    plain = generate(target, TEXTS[0], GREEDY)[0]
    pieces = stream(target, TEXTS[0], GREEDY, drafter=f"model:draft={others['sentencepiece']},vocabulary={way}")
    assert "".join(piece.text for piece in pieces) == plain.text


def test_the_way_is_chosen_by_what_texts_have_in_common(target, others, tmp_path):
    near, far = load(others["byte level"], device="cpu"), load(pair().draft, device="cpu")
    assert choose_exchange(target, near).way == "tli" and choose_exchange(target, far).way == "same"
    folder = shutil.copytree(others["byte level"], tmp_path / "words")
    make_tokenizer(290, ["zzzz qqqq"] * 3).save(str(folder / "tokenizer.json"))
    words = load(pair().target, device="cpu")
    assert choose_exchange(words, load(folder, device="cpu"), wanted="slem").way == "slem"
    with pytest.raises(ValueError, match=r"exchange drafts as text \(vocabulary=slem\), which are chains"):
        paceline.api.build.build_shaped(
            near,
            target=target,
            shape=paceline.api.build.Topology.branching((2,)),
            vocabulary="slem",
        )


def test_a_missing_tokenizer_is_named(target, others):
    from dataclasses import replace

    bare = replace(load(others["byte level"], device="cpu"), tokenizer=None)
    with pytest.raises(ValueError, match="texts cannot be compared without a tokenizer of each; take a draft"):
        choose_exchange(target, bare)


def test_vllms_key_asks_for_the_intersection(target, others):
    config = {"model": str(others["byte level"]), "num_speculative_tokens": 2, "use_heterogeneous_vocab": True}
    assert isinstance(build_drafter(config, target=target), ModelDrafter)
    assert isinstance(build_drafter({**config, "model": str(pair().draft)}, target=target), ModelDrafter)


@pytest.fixture
def of_transformers(others):
    """A model and an assistant that come from no directory, with their tokenizers."""
    folders = pair().target, others["byte level"]
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
    for one in models:
        one.config._name_or_path = ""
    return *models, *(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")) for folder in folders)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("way", ["call", "patched call", "patch"])
def test_assistant_tokenizers_are_honoured(of_transformers, do_sample, way):
    model, assistant, own, other = of_transformers
    ids = torch.tensor([own.encode("def add(")])
    options = dict(max_new_tokens=20, do_sample=do_sample, eos_token_id=None)
    torch.manual_seed(3)
    plain = hf.generate(model, ids, **options)
    drafting = dict(assistant_model=assistant, tokenizer=own, assistant_tokenizer=other)
    if way == "patch":
        call, drafting = hf.patch(model, **drafting).generate, {}
    else:
        call = hf.patch(model).generate if way == "patched call" else partial(hf.generate, model)
    torch.manual_seed(3)
    drafted = call(ids, **drafting, return_dict_in_generate=True, **options)
    assert drafted.sequences.tolist() == plain.tolist()
    assert sum(drafted.statistics[0].drafted) > 0


def test_a_call_with_another_drafter_leaves_the_tokenizer_of_the_patched_one(of_transformers):
    model, assistant, own, other = of_transformers
    hf.patch(model, assistant_model=assistant, tokenizer=own, assistant_tokenizer=other)
    ids, options = torch.tensor([own.encode("def add(")]), dict(max_new_tokens=20, eos_token_id=None, do_sample=False)
    plain = hf.generate(model, ids, **options).tolist()
    for chosen in (dict(assistant_model="none"), dict(prompt_lookup_num_tokens=3)):
        assert model.generate(ids, **chosen, **options).tolist() == plain
    text = own.decode(plain[0][-6:])
    stopped = model.generate(ids, stop_strings=[text], **options)  # by the tokenizer of the patch
    assert stopped.tolist() == [plain[0][: len(stopped[0])]] and text in own.decode(stopped[0])


def test_pipelines_give_a_patched_model_both_tokenizers(of_transformers):
    model, assistant, own, other = of_transformers
    given = []
    hf.patch(model)
    patched, model.generate = model.generate, lambda *args, **kwargs: given.append(kwargs) or patched(*args, **kwargs)
    options = dict(do_sample=False, max_new_tokens=20, pad_token_id=0)
    with_assistant = pipeline("text-generation", model=model, tokenizer=own)
    with_assistant.assistant_model, with_assistant.assistant_tokenizer = assistant, other
    found = with_assistant("def add(", **options)
    assert given[0]["assistant_tokenizer"] is other
    del model.generate
    assert found == pipeline("text-generation", model=model, tokenizer=own)("def add(", **options)


def test_an_assistants_tokenizer_that_cannot_be_used_is_refused_by_the_patch(of_transformers):
    model, assistant, own, other = of_transformers
    with pytest.raises(ValueError, match=r"have different vocabularies|compared without a tokenizer"):
        hf.patch(model, assistant_model=assistant)
    with pytest.raises(ValueError, match="tokenizer of type NoneType: with assistant_tokenizer"):
        hf.patch(model, assistant_model=assistant, assistant_tokenizer=other)
    with pytest.raises(ValueError, match="needs an assistant_model that is loaded"):
        hf.patch(model, assistant_model="ngram", tokenizer=own, assistant_tokenizer=other)
    assert "generate" not in vars(model)
