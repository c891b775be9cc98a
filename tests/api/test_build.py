import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import paceline
from paceline.agreement import agree
from paceline.api.build import Drafting, build_drafter, build_drafting, build_verifier
from paceline.api.loading import load
from paceline.core.plan import Fixed, Plan
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.registry import Registry
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.verifiers import VERIFIERS
from paceline.verifiers.lossy_typical import LossyTypical
from tests import tiny
from tests.api.checkpoints import CONTEXT, VOCAB, make_tokenizer, nothing_in_common, pair, without_tokenizer

ANY = frozenset(Draw)
TREE = "[(0,), (1,), (1,0), (0, 0), (0,0,0)]"


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


def draft_model(**overrides):
    """A transformers model in memory with the target's vocabulary."""
    return tiny.llama(seed=3, **{"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, **overrides})


class Repeating(HostDrafter):
    """Proposes the last token again."""

    def propose(self, sequences, num_draft_tokens):
        return {row: [tokens[-1]] * num_draft_tokens for row, tokens in sequences.items()}


def test_host_drafter_drafts_and_changes_no_token(target):
    params = paceline.SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    plain, drafted = (
        paceline.generate(target, [[5, 9, 2]], params, drafter=d, num_draft_tokens=5)[0] for d in (None, Repeating())
    )
    assert drafted.token_ids == plain.token_ids and sum(drafted.stats.drafted) > 0


def test_drafters_are_built_from_every_accepted_type(target):
    draft = load(pair().draft, device="cpu")
    assert isinstance(build_drafter(None, target=target), NoDrafter)
    assert isinstance(build_drafter("ngram", target=target), NgramDrafter)
    for given in (draft, pair().draft, str(pair().draft)):
        assert isinstance(build_drafter(given, target=target), ModelDrafter)
    assert isinstance(build_drafter(Repeating(), target=target), HostDrafting)
    ready = NgramDrafter(max_ngram=2)
    assert build_drafter(ready, target=target) is ready
    assert build_drafting(ready, target=target) == Drafting(drafter=ready, num_draft_tokens=None)


def test_draft_directory_takes_the_dtype_of_the_target():
    target = load(pair().target, dtype=torch.float32, device="cpu")
    drafter = build_drafter(pair().draft, target=target)
    assert drafter.lm.dtype is target.dtype is torch.float32
    drafter = build_drafter({"model": str(pair().draft), "num_speculative_tokens": 3}, target=target)
    assert drafter.lm.dtype is torch.float32
    assert load(pair().target).dtype is torch.float64


def test_draft_without_tokenizer_is_accepted_by_vocabulary_size(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", num_hidden_layers=1)
    assert isinstance(build_drafter(folder, target=target), ModelDrafter)
    assert isinstance(build_drafter(folder, target=replace(target, tokenizer=None)), ModelDrafter)


def test_draft_with_nothing_in_common_is_refused_with_both_sizes(target, tmp_path):
    folder = nothing_in_common(tmp_path / "draft")
    sizes = (
        rf"target .*target \(297 tokens\) and draft {folder} \(3 tokens\) have different vocabularies, without a token "
        "in common; take"
    )
    for given in (folder, load(folder, device="cpu"), {"model": str(folder), "num_speculative_tokens": 2}):
        with pytest.raises(ValueError, match=sizes):
            build_drafter(given, target=target)
    message = r"target .*target \(320 tokens\) and draft LlamaForCausalLM \(90 tokens\) have different vocabularies"
    with pytest.raises(ValueError, match=message):
        build_drafter(draft_model(vocab_size=90, num_hidden_layers=1), target=target)


def test_padded_vocabularies_with_one_tokenizer_are_accepted(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", vocab_size=304, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"\(320 tokens\) and draft .* \(304 tokens\)"):
        build_drafter(folder, target=target)  # nothing proves that they are of one tokenizer
    make_tokenizer().save(str(folder / "tokenizer.json"))
    assert isinstance(build_drafter(folder, target=target), ModelDrafter)


def test_target_drafts_for_itself(target, tmp_path):
    assert build_drafter(target, target=target).lm.lm is target.lm
    bare = load(without_tokenizer(tmp_path / "bare"), device="cpu")
    assert build_drafter(bare, target=bare).lm.lm is bare.lm
    eager = replace(bare, enforce_eager=True)
    assert build_drafter(eager, target=eager).lm is bare.lm


def test_transformers_model_drafts_over_its_own_weights(target):
    model = draft_model(num_hidden_layers=1)
    drafter = build_drafter(model, target=target)
    assert isinstance(drafter, ModelDrafter)
    with torch.no_grad():
        model.lm_head.weight.fill_(0.5)
    assert bool((drafter.lm.lm.head.weight == 0.5).all())


def test_draft_on_another_device_is_refused(target):
    lm = SimpleNamespace(device=torch.device("meta"), vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"is on cpu and draft .*draft on meta: load both on one device"):
        build_drafter(replace(load(pair().draft, device="cpu"), lm=lm), target=target)


KNOWN = ", ".join(DRAFTERS)
UNKNOWN = [
    ("eagle9", f"unknown drafter 'eagle9': no such directory; known names: {KNOWN}; or give"),
    ("model", "drafter 'model' needs a draft model: give its directory instead of the name"),
    ("", "unknown drafter ''"),
    (5, f"a drafter of type int; known names: {KNOWN}; or give a draft model's directory, Hub id"),
    (dict, "a drafter the class dict; known names"),
    ({"ngram"}, "a drafter of type set; known names"),
]


@pytest.mark.parametrize(("drafter", "message"), UNKNOWN)
def test_unknown_drafter_is_refused_with_the_known_names(target, drafter, message):
    with pytest.raises(ValueError, match=message):
        build_drafting(drafter, target=target)


def test_missing_draft_directory_is_refused(target, tmp_path):
    for given in (tmp_path / "nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match=r"no such model directory: .*nowhere"):
            build_drafter(given, target=target)


class NeedsOptions(NgramDrafter.__base__):
    """A drafter of another package that cannot be made from its name alone."""

    draws = ANY

    def __init__(self, *, heads, depth=2):
        pass

    def propose(self, batch, plan):
        raise NotImplementedError


def test_missing_drafter_options_are_named(target, monkeypatch):
    entries = {**DRAFTERS.entries, "heads": f"{__name__}:NeedsOptions"}
    monkeypatch.setattr("paceline.api.build.DRAFTERS", Registry("drafter", entries))
    with pytest.raises(
        ValueError, match="drafter 'heads' needs heads: give a NeedsOptions instead of the name, or heads:"
    ):
        build_drafter("heads", target=target)


class Configurable:
    """A verifier of another package with options of every kind."""

    lossless, same_tokens, wants, branches = False, False, (Draw.FIXED,), True

    def __init__(
        self, *, width: int, rate: float = 0.5, on: bool = False, word: "str | None" = None, lm: object = None
    ):
        self.options = (width, rate, on, word)

    def __call__(self, tree, logits, batch):
        raise NotImplementedError


class Unannotated(Configurable):
    def __init__(self, width=3, *more, other=None, **rest):
        self.options = (width,)


class Misannotated(Configurable):
    def __init__(self, *, width: "Elsewhere" = 3):  # noqa: F821
        self.options = (width,)


@pytest.fixture
def verifiers(monkeypatch):
    kinds = {"own": "Configurable", "bare": "Unannotated", "broken": "Misannotated"}
    entries = {name: f"{__name__}:{kind}" for name, kind in kinds.items()}
    monkeypatch.setattr("paceline.api.build.VERIFIERS", Registry("verifier", {**VERIFIERS.entries, **entries}))


OPTIONS = {
    "own:width=4": (4, 0.5, False, None),
    "own:width=-4,rate=1e-3,on=true,word=left:right": (-4, 0.001, True, "left:right"),
    "own: on = False , width = 1, rate=2": (1, 2.0, False, None),
    "own:width=1,word=a=b": (1, 0.5, False, "a=b"),
    "own:width=1,word=none": (1, 0.5, False, None),
    "bare": (3,),
    "bare:width=9": (9,),
    "broken": (3,),
}


@pytest.mark.parametrize("text", OPTIONS)
def test_verifier_options_are_parsed_by_type(verifiers, text):
    assert build_verifier(text).options == OPTIONS[text]


def test_lossy_thresholds_are_set_by_name_and_change_acceptance(target):
    rule = build_verifier("lossy_typical:epsilon=0.3,delta=0.09")
    assert isinstance(rule, LossyTypical) and (rule.epsilon, rule.delta) == (0.3, 0.09)
    assert build_verifier("lossy_lenient:lenience=1").lenience == 1.0
    params = paceline.SamplingParams(max_tokens=24, temperature=1.0, seed=2)

    def run_with(verifier):
        (result,) = paceline.generate(
            target, [[5, 9, 2] * 4], params, drafter="ngram", verifier=verifier, num_draft_tokens=5
        )
        assert not result.stats.lossless
        return result

    easy, strict = (run_with(f"lossy_typical:epsilon={value}") for value in ("1e-9", "1.0,delta=1"))
    assert easy.stats.acceptance_rate == 1.0 > strict.stats.acceptance_rate
    assert run_with(LossyTypical(epsilon=1e-9)).token_ids == easy.token_ids


def test_verifier_instance_is_used_as_it_is():
    ready = LossyTypical(epsilon=0.5)
    assert build_verifier(ready) is ready


class Plain(Plan):
    """A plan of another package that needs no arguments."""

    max_draft_tokens = 0

    def __call__(self):
        return StepPlan(0)


def test_class_is_made_where_an_instance_is_expected(target):
    assert isinstance(build_drafter(NgramDrafter, target=target), NgramDrafter)
    assert isinstance(build_drafter(Repeating, target=target).drafter, Repeating)
    assert isinstance(build_verifier(LossyTypical), LossyTypical)
    engine = paceline.Engine(target, drafter=NgramDrafter, num_draft_tokens=Plain, max_length=90)
    assert isinstance(engine.decoder.plan, Plain)


CLASSES = {
    "drafter with arguments": (dict(drafter=NeedsOptions), "NeedsOptions is a class; give NeedsOptions(heads=...)"),
    "drafter without methods": (dict(drafter=HostDrafter), "HostDrafter is a class that does not implement propose"),
    "one of several": (dict(drafter=["ngram", ModelDrafter]), "ModelDrafter is a class; give ModelDrafter(lm=...)"),
    "plan": (dict(drafter="ngram", num_draft_tokens=Fixed), "Fixed is a class; give Fixed(num_draft_tokens=...)"),
    "no plan": (dict(drafter="ngram", num_draft_tokens=int), "num_draft_tokens=<class 'int'>: give a number"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_class_that_cannot_be_made_is_refused(target, case):
    options, message = CLASSES[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        paceline.generate(target, [[5, 9, 2]], **options)


WRONG = [
    ("typical:epsilon=1", "unknown verifier 'typical'; known: bare, block"),
    ("lossy_typical:gamma=1", "verifier 'lossy_typical' has no option 'gamma'; known: epsilon=0.09, delta=0.3"),
    ("own:depth=1", "'own' has no option 'depth'; known: width, rate=0.5"),
    ("coupled:epsilon=1", "verifier 'coupled' has no option 'epsilon'; it takes none"),
    ("bare:more=1", "verifier 'bare' has no option 'more'; known: width=3, other=None"),
    ("own:rate=1", "verifier 'own' needs width: give a Configurable instead of the name, or own:width="),
    ("lossy_typical:epsilon=high", "epsilon=high of the verifier 'lossy_typical': give a number"),
    ("own:width=1.5", "width=1.5 of the verifier 'own': give a whole number"),
    ("own:width=1,on=1", "on=1 of the verifier 'own': give true or false"),
    ("own:width=1,lm=dir", "lm=dir of the verifier 'own': it takes object, which cannot be written as text"),
    ("bare:other=1", "other=1 of the verifier 'bare': it takes an object, which cannot be written"),
    ("broken:width=1", "width=1 of the verifier 'broken': it takes an object, which cannot"),
    ("lossy_lenient:lenience=0", "lenience=0.0: give a number above 0 and at most 1"),
    ("coupled:", "verifier 'coupled:': '' is not an option; write NAME:option=value,option=value"),
    ("own:width", "verifier 'own:width': 'width' is not an option; write NAME:option=value"),
    ("own:width=", "verifier 'own:width=': 'width=' is not an option"),
    ("own:=1", "'=1' is not an option"),
    ("own:width=1,", "verifier 'own:width=1,': '' is not an option"),
    ("own:width=1,width=2", "verifier 'own:width=1,width=2': width is given twice; give it once"),
    ("", "unknown verifier ''; known"),
    (dict, "a verifier the class dict; known names: bare, block"),
    (Configurable, "Configurable is a class; give Configurable(width=...)"),
    (5, "a verifier of type int; known names: bare, block"),
    (None, "a verifier of type NoneType; known names: bare"),
]


@pytest.mark.parametrize(("verifier", "message"), WRONG)
def test_unknown_verifier_is_refused_with_the_known_names(verifiers, verifier, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build_verifier(verifier)


def test_drafter_options_are_parsed_by_type(target):
    drafter = build_drafter("ngram:max_ngram=4,min_ngram=2", target=target)
    assert (drafter.max_ngram, drafter.min_ngram) == (4, 2)
    drafter = build_drafter("ngram:max_ngram=4,match=first,wrap=false", target=target)
    assert drafter.options == NgramOptions(max_ngram=4, first=True, wrap=False)
    for text, message in (
        (
            "ngram:depth=2",
            "drafter 'ngram' has no option 'depth'; known: max_ngram=3, min_ngram=1, match=last, wrap=True",
        ),
        ("ngram:match=best", "match='best': give last or first"),
        ("ngram:wrap=1", "wrap=1 of the drafter 'ngram': give true or false"),
        ("ngram:max_ngram=x", "max_ngram=x of the drafter 'ngram': give a whole number"),
        ("ngram:max_ngram=0", "min_ngram=1, max_ngram=0: need 1 <= min_ngram <= max_ngram"),
        ("none:k=1", "drafter 'none' has no option 'k'; it takes none: give 'none' alone"),
        ("model:lm=x", "drafter 'model' has no option 'lm'; known: draft, vocabulary=auto"),
        ("model:vocabulary=tli", "drafter 'model' needs draft"),
        ("model:draft=x,vocabulary=one", "vocabulary='one': give auto, tli, slem"),
        ("slem", "drafter 'slem' needs a draft model: give its directory instead of the name, or model:draft=DIR"),
        ("slem:draft=x", "drafter 'slem:draft=x': write model:draft=x,vocabulary=slem"),
        ("ngrm:max_ngram=4", "unknown drafter 'ngrm:max_ngram=4': no such directory; known names"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_drafter(text, target=target)


class Branching(NgramDrafter.__base__):
    draws, branches = ANY, True

    def propose(self, batch, plan):
        raise NotImplementedError


def test_tree_drafter_with_a_chain_verifier_names_tree_verifiers():
    with pytest.raises(
        ValueError, match="Branching drafts trees that branch, and rejection verifies chains alone"
    ) as seen_results:
        agree(Branching(), build_verifier("rejection"))
    named = str(seen_results.value).partition("one of the verifiers ")[2].split(", ")
    assert named and all(build_verifier(name).branches for name in named)


def test_draft_directory_name_may_begin_with_a_brace(target, tmp_path):
    shutil.copytree(pair().draft, tmp_path / "{draft}")
    assert isinstance(build_drafter(tmp_path / "{draft}", target=target), ModelDrafter)
