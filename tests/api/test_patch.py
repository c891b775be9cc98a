"""``paceline.hf.patch``: pipelines, trainers, copies, files and weights that change between calls."""

import copy
import io
import pickle
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Seq2SeqTrainer, pipeline

from paceline import hf
from paceline.hf.patching import Patch
from tests import tiny
from tests.api import checkpoints
from tests.api.drop_in_table import FAMILIES, PAD, assistant_of, model_of, prompts, tokenizer

FOUR = prompts()
LONG = {"max_new_tokens": 24, "pad_token_id": PAD}


@pytest.fixture
def model():
    return FAMILIES["llama"]()


def expected(**options):
    """What an equal model gives that is not patched."""
    return model_of("llama").generate(**FOUR, **LONG, **options).tolist()


def steps_of(model, **options):
    found = model.generate(**FOUR, **LONG, **options, return_dict_in_generate=True)
    assert isinstance(found, hf.SpeculativeOutput)
    return [one.steps for one in found.statistics]


def test_patched_model_generates_here_until_it_is_unpatched(model):
    assert hf.patch(model, assistant_model=assistant_of("llama"), num_assistant_tokens=5) is model
    assert model.generate(**FOUR, **LONG).tolist() == expected()
    assert max(steps_of(model)) < 16
    assert hf.unpatch(model) is model and "generate" not in vars(model)
    assert not isinstance(model.generate(**FOUR, **LONG, return_dict_in_generate=True), hf.SpeculativeOutput)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM is not patched: call paceline\.hf\.patch"):
        hf.unpatch(model)


def test_patching_again_replaces_the_options_and_is_undone_at_once(model):
    hf.patch(hf.patch(model, assistant_model=assistant_of("llama"), num_assistant_tokens=5))
    assert min(steps_of(model)) == 24
    assert "generate" not in vars(hf.unpatch(model))


def test_own_generate_of_a_model_comes_back(model):
    model.generate = own = lambda **_: "own"
    assert hf.patch(hf.patch(model)).generate(**FOUR, **LONG).tolist() == expected()
    assert hf.unpatch(model).generate is own


def test_arguments_of_a_call_come_before_those_of_the_patch(model):
    hf.patch(model, assistant_model=assistant_of("llama"), num_assistant_tokens=5, verifier="rejection")
    few = steps_of(model)
    assert min(steps_of(model, assistant_model="none")) == 24 > max(few)
    assert max(steps_of(model, num_assistant_tokens=1)) > max(few)
    assert model.generate(**FOUR, **LONG, prompt_lookup_num_tokens=4).tolist() == expected()
    with pytest.raises(ValueError, match="unknown verifier 'typical'"):
        model.generate(**FOUR, **LONG, verifier="typical")


def test_positional_arguments_are_those_of_transformers(model):
    config, mask = GenerationConfig(**LONG), {"attention_mask": FOUR["attention_mask"]}
    assert hf.patch(model).generate(FOUR["input_ids"], config, **mask).tolist() == expected()
    with pytest.raises(TypeError, match="got inputs by position and by name"):
        model.generate(FOUR["input_ids"], inputs=FOUR["input_ids"])
    with pytest.raises(TypeError, match="takes 11 positional arguments, and 12 are given"):
        model.generate(*[None] * 12)


def test_what_is_not_supported_is_refused_in_the_call(model):
    with pytest.raises(ValueError, match="num_beams=3 is not supported: give num_beams=1"):
        hf.patch(model).generate(**FOUR, **LONG, num_beams=3)


WRONG = [
    (dict(verifier="typical"), "unknown verifier 'typical'"),
    (dict(assistant_model="nowhere"), "unknown drafter 'nowhere'"),
    (dict(assistant_model=tiny.llama()), "have different vocabularies"),
    (dict(assistant_model="ngram", prompt_lookup_num_tokens=3), "would both draft: give one of them"),
    (dict(num_assistant_tokens=0), "num_assistant_tokens=0: give at least 1"),
    (dict(prompt_lookup_num_tokens=2.5), "prompt_lookup_num_tokens=2.5: give an integer"),
    (dict(batch_size=True), "batch_size=True: give an integer"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_option_is_refused_and_leaves_the_model_as_it_is(model, options, message):
    with pytest.raises(ValueError, match=message):
        hf.patch(model, **options)
    assert "generate" not in vars(model)


def test_model_that_cannot_run_here_is_refused():
    with pytest.raises(ValueError, match="a model of type Linear: give a loaded transformers model"):
        hf.patch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("drafting", [{}, {"prompt_lookup_num_tokens": 4}], ids=["plain", "lookup"])
def test_pipeline_gives_its_texts(model, drafting):
    prompt, options = "for item in items:", dict(do_sample=False, max_new_tokens=20, pad_token_id=PAD)
    plain = pipeline("text-generation", model=model_of("llama"), tokenizer=tokenizer())(prompt, **options)
    assert pipeline("text-generation", model=hf.patch(model, **drafting), tokenizer=tokenizer())(prompt, **options) == (
        plain
    )


def test_trainer_predicts_with_generate(model):
    """The step of Seq2SeqTrainer that generates; the trainer itself needs a library that is not installed here."""
    inputs = {**FOUR, "labels": FOUR["input_ids"]}

    def predicted(model):
        trainer = SimpleNamespace(
            args=SimpleNamespace(predict_with_generate=True, prediction_loss_only=False),
            model=model,
            processing_class=tokenizer(),
            label_smoother=None,
            _prepare_inputs=lambda given: given,
            _pad_tensors_to_max_len=lambda tensor, length: tensor,
            compute_loss_context_manager=torch.no_grad,
        )
        with torch.no_grad():
            return Seq2SeqTrainer.prediction_step(trainer, model, inputs, False, **LONG, num_beams=None)

    plain, found = predicted(FAMILIES["llama"]()), predicted(hf.patch(model))
    assert float(plain[0]) == pytest.approx(float(found[0]))
    assert found[1].tolist() == plain[1].tolist() == expected()


def changed(family, model):
    """A model whose weights are changed in place, by an optimizer and by a copy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = FOUR["input_ids"] % model.config.vocab_size
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.05 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model


CHANGING = {
    **FAMILIES,
    "gpt_neox": lambda: tiny.causal("gpt_neox", vocab_size=300),
    "gemma": lambda: tiny.causal("gemma", vocab_size=300, head_dim=8),
    "bfloat16": lambda: FAMILIES["llama"](dtype=torch.bfloat16),
    "adapter": lambda: tiny.causal("stablelm", vocab_size=300),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", CHANGING)
def test_weights_that_change_in_place_are_seen(family):
    model = CHANGING[family]()
    hf.patch(model, prompt_lookup_num_tokens=4)
    first = model.generate(**FOUR, **LONG).tolist()
    for _ in range(2):
        changed(family, model)
        plain = type(model).generate(model, **FOUR, **LONG).tolist()
        assert model.generate(**FOUR, **LONG).tolist() == plain != first
        first = plain


def test_copies_are_models_of_their_own(model):
    hf.patch(model, assistant_model=assistant_of("llama"))
    model.generate(**FOUR, **LONG)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stored, weights_only=False)):
        assert not isinstance(twin.generate, Patch)
        assert not isinstance(twin.generate(**FOUR, **LONG, return_dict_in_generate=True), hf.SpeculativeOutput)
        with torch.no_grad():
            twin.lm_head.weight.copy_(twin.lm_head.weight.flip(0))
        moved = twin.generate(**FOUR, **LONG).tolist()
        assert moved != expected() == model.generate(**FOUR, **LONG).tolist()
        assert hf.patch(twin).generate(**FOUR, **LONG).tolist() == moved


def test_saved_model_is_the_same_and_whole(model, tmp_path):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hf.patch(model).generate(**FOUR, **LONG)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    state = again.state_dict()
    assert state.keys() == before.keys() and all(torch.equal(state[name], before[name]) for name in before)
    assert again.config.architectures == ["LlamaForCausalLM"]


def test_directory_of_an_assistant_is_loaded_once(monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(checkpoints.pair().target, dtype="auto")
    hf.patch(model, assistant_model=str(checkpoints.pair().draft), num_assistant_tokens=4)
    monkeypatch.setattr("paceline.api.build.load", None)
    ids = torch.tensor([[5, 9, 2], [7, 7, 3]])
    found = model.generate(ids, max_new_tokens=12, pad_token_id=1, return_dict_in_generate=True)
    assert found.sequences.tolist() == type(model).generate(model, ids, max_new_tokens=12, pad_token_id=1).tolist()
    assert min(one.steps for one in found.statistics) < 9
