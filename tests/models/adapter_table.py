"""Which architectures the adapter runs; ``python -m tests.models.adapter_table`` prints them as a table."""

import logging
import warnings

from paceline.drafters.ngram import NgramDrafter
from paceline.models.adapter.lm import adapt
from paceline.models.loading import ModelError
from tests.harness import expected, request, run
from tests.models.adapter_models import REFUSED, STYLES

PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3])


def result(maker):
    """What became of a model: equal to the naive decoder on a ragged batch with drafts, different, or refused."""
    try:
        model = maker()
        ours = adapt(model)
    except ModelError as error:
        return "refused: " + str(error).partition(": ")[2].partition(";")[0]
    asked = [request(prompt, max_tokens=40) for prompt in PROMPTS]
    same = run(NgramDrafter(), "coupled", asked, target=ours).texts == [expected(one, model) for one in asked]
    return "equal" if same else "DIFFERENT"


def rows():
    """(style, architecture, result) of every model, those that are refused last."""
    makers = [(style, name, maker) for style, models in STYLES.items() for name, maker in models.items()]
    makers += [("refused", name, maker) for name, (maker, _) in REFUSED.items()]
    return [(style, name, result(maker)) for style, name, maker in makers]


def main():
    print("| style | architecture | result |\n| --- | --- | --- |")
    for row in rows():
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    main()
