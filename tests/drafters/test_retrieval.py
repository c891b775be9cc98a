"""Retrieval: what is found in a datastore, what is drafted from it, and which datastores are refused."""

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from paceline.api import build_drafter, load
from paceline.drafters.datastore import HEADER, PLACES, TOKENS, Datastore, DatastoreError, Range
from paceline.drafters.host import HostDrafting
from paceline.drafters.retrieval import MAX_NODES, RetrievalDrafter
from paceline.train.data.datastore import import_sorter, write_datastore
from paceline.train.data.sources.documents import Tokens
from tests import tiny as models
from tests.api.checkpoints import pair
from tests.harness import decoder_for, expected, request, run

FLOOR = 2.2  # mean acceptance length on the conformance prompts, greedy
VOCAB = models.VOCAB
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])


def stored(folder, documents, *, vocab_size=VOCAB, vocabulary=None):
    """The directory of a datastore."""
    folder.mkdir(parents=True, exist_ok=True)
    made = (Tokens(name="", tokens=np.asarray(tokens)) for tokens in documents)
    write_datastore(folder, made, vocab_size=vocab_size, vocabulary=vocabulary, library=import_sorter())
    return folder


@cache
def known_texts(vocab_size):
    """A datastore of what the tiny target says, every 14th token of it wrong; in a smaller vocabulary, remainders."""
    texts = [[*prompt, *expected(request(prompt, max_tokens=100))] for prompt in PROMPTS]
    for number, text in enumerate(texts):
        for at in range(20 + number, len(text), 14):
            text[at] = (text[at] + 1) % VOCAB
    texts = [[token % vocab_size for token in text] for text in texts]
    return str(stored(Path(tempfile.mkdtemp()) / "store", texts, vocab_size=vocab_size))


def tiny(target):
    return HostDrafting(RetrievalDrafter(store=known_texts(target.vocab_size), min_match=1, offset=3.0))


def matches(tokens, context, most):
    """How many tokens match at the best places, and these places: every one is tried."""
    best, found = 0, []
    for place in range(len(tokens)):
        match = 0
        while match < min(len(context), most) and tokens[place - match] == context[-1 - match]:
            match += 1
        if match > best:
            best, found = match, []
        if match == best:
            found.append(place)
    return best, found if best else []


@pytest.mark.parametrize("vocab_size", [3, 200, 300, 70_000], ids=lambda size: f"{size} tokens")
def test_the_longest_suffix_is_found_wherever_it_is(tmp_path, vocab_size):
    """Tokens of one, two and three bytes; against a search of every place."""
    random = Random(vocab_size)
    alphabet = [0, 1, vocab_size - 1] if vocab_size < 256 else [0, 1, 255, 256, vocab_size - 1]
    for number in range(12):
        documents = [random.choices(alphabet, k=random.randint(1, 30)) for _ in range(random.randint(1, 9))]
        store = Datastore(stored(tmp_path / str(number), documents, vocab_size=vocab_size))
        assert list(store.tokens) == [-1, *(token for document in documents for token in [*document, -1])]
        for _ in range(40):
            context = random.choices(alphabet, k=random.randint(1, 12))
            least, most = random.choice([(1, 3), (2, 64), (4, 5), (1, 64)])
            match, found = matches(list(store.tokens), context, most)
            answer = store.find(context, min_match=least, max_match=most)
            if match < least:
                assert answer is None
            else:
                assert (answer.match, answer.count) == (match, len(found))
                assert sorted(store.places(answer, 10**6)) == found


def test_places_are_spread_evenly_over_the_range(tmp_path):
    store = Datastore(stored(tmp_path, [[before, 9, before] for before in range(8) for _ in range(10)]))
    found = store.find([9], min_match=1, max_match=1)
    assert found == Range(found.first, 80, 1)
    places = store.places(found, 8)
    assert [store.tokens[place + 1] for place in places] == list(range(8)), "they are sorted by what comes before"


def drafted(store, sequence, k=4, **options):
    """What is proposed after ``sequence``."""
    draft = RetrievalDrafter(store=str(store), **options).propose({3: sequence}, k).get(3)
    return [] if draft is None else list(draft.tokens)


TEXTS = [[1, 2, 7, 4, 5, 6], [9, 1, 2, 7, 4, 6], [3, 1, 2, 8, 5], [30, 31, 32, 33, 34, 35, 36, 37]]


@pytest.mark.parametrize(
    ("sequence", "options", "proposal"),
    [
        ([50, 1, 2], {}, [7, 4, 5, 6]),  # most often
        ([50, 1, 2], dict(min_prob=0.5), [7, 4]),  # then 5 and 6 have a third each
        ([50, 1, 2], dict(factor=0.5), [7]),
        ([50, 1, 2], dict(factor=0.0, offset=2.0), [7, 4]),
        ([3, 1, 2], {}, [8, 5]),  # the longest match alone counts; the end of a text ends the draft
        ([3, 1, 2], dict(max_match=2), [7, 4, 5, 6]),
        ([50, 1, 2], dict(min_match=3), []),
        ([7], {}, []),
        ([7], dict(min_match=1), [4, 5]),
        ([31, 32], {}, [33, 34, 35, 36]),
        ([36, 37], {}, []),  # nothing follows the end of a text
        ([6, 9], {}, []),  # texts do not run into each other
    ],
)
def test_drafts_what_follows_most_often(tmp_path, sequence, options, proposal):
    assert drafted(stored(tmp_path, TEXTS), sequence, **options) == proposal


def test_trees_hold_the_likeliest_continuations(tmp_path):
    drafter = RetrievalDrafter(store=str(stored(tmp_path, TEXTS)), tree=True, offset=8.0)
    draft = drafter.propose({0: [50, 1, 2]}, 6)[0]
    assert draft.tokens == [7, 4, 8, 5, 6, 5] and draft.parents == [-1, 0, -1, 1, 1, 2] and draft.match == 2
    assert draft.probs == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])


def test_a_draft_has_at_most_64_tokens(tmp_path):
    store = stored(tmp_path, [list(range(1, 61)) * 3])
    assert len(drafted(store, [1, 2, 3], k=200, offset=500.0)) == MAX_NODES


@pytest.mark.parametrize("tree", [False, True])
def test_a_text_of_the_store_is_accepted_whole(tmp_path, tree):
    model, target = models.target()
    wanted = [request(prompt, max_tokens=33) for prompt in PROMPTS]
    store = stored(tmp_path, [[*one.tokens, *expected(one)] for one in wanted])
    drafter = HostDrafting(RetrievalDrafter(store=str(store), tree=tree))
    result = run(drafter, "coupled", wanted[3:4], target=target, k=3)
    assert result.texts == [expected(wanted[3], model)]
    assert result.steps == 9 and result.summary.acceptance_rate == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(min_match=0), "min_match=0"),
        (dict(max_match=1), "need 1 <= min_match <= max_match"),
        (dict(max_match=257), "max_match=257"),
        (dict(factor=-1.0), "factor=-1.0"),
        (dict(offset=float("nan")), "offset=nan"),
        (dict(min_prob=1.5), "min_prob=1.5"),
        (dict(store=""), "retrieval:DIR, built by paceline datastore build FILES"),
        (dict(store="/nowhere"), "/nowhere: no such datastore; build one: paceline datastore build"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RetrievalDrafter(**{"store": known_texts(VOCAB), **options})


def header(change):
    def apply(folder):
        path = folder / HEADER
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    return apply


def cut(name, size=-5):
    def apply(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut(TOKENS), "tokens.bin has 115 bytes, and 120 belong there: build the datastore again"),
        (cut(PLACES), "places.bin has 95 bytes, and 100 belong there"),
        (lambda folder: (folder / PLACES).unlink(), "places.bin is missing, and 100 belong there"),
        (lambda folder: (folder / TOKENS).write_bytes(bytes(120)), "tokens.bin is damaged"),
        (lambda folder: (folder / HEADER).unlink(), "is no datastore: header.json is not there"),
        (cut(HEADER), "is not a datastore's header"),
        (lambda folder: (folder / HEADER).write_bytes(b"\xff\x00"), "is not a datastore's header"),
        (lambda folder: (folder / HEADER).write_text("[]"), "is not a datastore's header"),
        (header({"format": "arrow"}), "is not a datastore's header"),
        (header({"version": 2}), "a datastore of version 2 and little-endian, and version 1"),
        (header({"byte_order": "big"}), "big-endian"),
        (header({"num_tokens": "x"}), r"is damaged \(num_tokens\)"),
        (header({"place_bytes": 5}), r"is damaged \(place_bytes\)"),
    ],
)
def test_a_store_that_is_not_whole_is_refused(tmp_path, damage, message):
    folder = stored(tmp_path, TEXTS)
    damage(folder)
    with pytest.raises(DatastoreError, match=message):
        Datastore(folder)


def test_a_store_of_another_vocabulary_is_refused(tmp_path):
    ours = load(pair().target)
    other = stored(tmp_path / "other", TEXTS, vocab_size=ours.tokenizer.size, vocabulary="another")
    with pytest.raises(DatastoreError, match=f"another tokenizer .another. than the target's .{ours.tokenizer.digest}"):
        build_drafter(f"retrieval:{other}", target=ours)
    smaller = stored(tmp_path / "smaller", TEXTS, vocab_size=VOCAB - 1)
    with pytest.raises(DatastoreError, match="a vocabulary of 60 tokens, and the target has 61"):
        decoder_for(HostDrafting(RetrievalDrafter(store=str(smaller))), "coupled")
    large = stored(tmp_path / "large", [[99]], vocab_size=VOCAB)
    with pytest.raises(DatastoreError, match="the target has 61"):
        decoder_for(HostDrafting(RetrievalDrafter(store=str(large))), "coupled")


@pytest.mark.parametrize("text", ["retrieval:{}", "retrieval:store={},tree=false", "retrieval:{},min_match=3"])
def test_a_store_is_named_with_or_without_its_option(tmp_path, text):
    ours = load(pair().target)
    fitting = stored(tmp_path, TEXTS, vocab_size=ours.tokenizer.size, vocabulary=ours.tokenizer.digest)
    drafter = build_drafter(text.format(fitting), target=ours)
    assert isinstance(drafter, HostDrafting) and drafter.drafter.store.folder == tmp_path
    assert drafter.drafter.options.min_match == (3 if "min" in text else 2)
