"""Texts with mistakes, and the texts as they should be: what an encoder-decoder that corrects reads and says.

The suite ``correct`` of the benchmark and the recipe of a target that corrects share this module, which knows nothing
of models.
"""

from itertools import pairwise
from random import Random

from paceline.bench.editing import MISSPELT, Edit, Lengths

TASK = "correct"
LENGTHS = Lengths(least=100, most=130)  # of a text: at least 128 tokens of the recipe's tokenizer
FEWEST, MOST = 2, 6  # mistakes of a text
ABBREVIATIONS = frozenset({"e.g.", "i.e.", "etc.", "vs.", "cf."})  # no sentence begins after them


def with_mistakes(text: str, random: Random) -> Edit | None:
    """``text`` as the answer, and as the prompt with mistakes of four kinds; None where one could not be told from it.

    Words are misspelt or doubled, "a" stands for "an" or the other way round, sentences begin with a small letter.
    """
    words = text.split(" ")
    if not set(words).isdisjoint(MISSPELT.values()) or any(first == second for first, second in pairwise(words)):
        return None
    kinds = [
        {at: MISSPELT[word] for at, word in enumerate(words) if word in MISSPELT},
        {at: f"{word} {word}" for at, word in enumerate(words) if word.isalpha() and word.islower()},
        {at: "an" if word == "a" else "a" for at, word in enumerate(words) if word in ("a", "an")},
        {
            at + 1: after[0].lower() + after[1:]
            for at, (word, after) in enumerate(pairwise(words))
            if word.endswith(".") and word not in ABBREVIATIONS and after.istitle()
        },
    ]
    kinds = [places for places in kinds if places]
    if not kinds:
        return None
    for _ in range(random.randint(FEWEST, MOST)):
        places = random.choice(kinds)
        at = random.choice(list(places))
        words[at] = places[at]
    return Edit(TASK, " ".join(words), text)
