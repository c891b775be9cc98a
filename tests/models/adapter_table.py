"""Which architectures the adapter runs; ``python -m tests.models.adapter_table`` prints them as a table."""

import logging
import warnings
from dataclasses import replace

from paceline.drafters.ngram import NgramDrafter
from paceline.models.adapter.adapt import adapt
from paceline.models.loading import ModelError
from tests.harness import expected, request, run
from tests.models.adapter_models import BOTH_WAYS, REFUSED, STYLES
from tests.models.encoder_decoders import START, Naive, context

PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3])


def result(maker):
    """What became of a model: equal to the naive decoder on a ragged batch with drafts, different, or refused."""
    try:
        model = maker()
        ours = adapt(model)
    except ModelError as error:
        return "refused: " + str(error).partition(": ")[2].partition(";")[0]
    if model.config.is_encoder_decoder:
        asked = [
            replace(request([START, 5, 40], max_tokens=40), context=context("t5", row, 3 + row)) for row in range(3)
        ]
        wanted = [expected(one, Naive(model, one.context)) for one in asked]
    else:
        asked = [request(prompt, max_tokens=40) for prompt in PROMPTS]
        wanted = [expected(one, model) for one in asked]
    same = run(NgramDrafter(), "coupled", asked, target=ours).texts == wanted
    return "equal" if same else "DIFFERENT"


def rows():
    """(style, architecture, result) of every model, those that are refused last."""
    makers = [(style, name, maker) for style, models in STYLES.items() for name, maker in models.items()]
    makers += [("encoder-decoder", name, maker) for name, maker in BOTH_WAYS.items()]
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
