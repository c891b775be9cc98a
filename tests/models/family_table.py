"""How far native logits are from transformers', per family: ``python -m tests.models.family_table`` prints a table.

Random models of three layers. Logits in single precision, over a sequence read in chunks and over the nodes of random
trees; greedy sequences of 64 tokens in double precision, plain and drafted, against transformers' ``generate``.
"""

import torch

from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.models.base import LogitsFor
from paceline.models.prefill import feed, prefill
from tests import tiny
from tests.harness import request, run
from tests.models.layouts import VARIANTS, pair, path_to, plain, random_tree, texts, tokens_at

LAYOUTS = {"llama-3": "llama", "gpt2": "gpt2", **{name: kind for name, (kind, _) in VARIANTS.items()}}
CHUNKS = (7, 1, 13, 2, 17)
LENGTHS = (0, 5, 17)
NEW = 64


@torch.no_grad()
def prefill_error(layout):
    """Largest difference of a logit, over two sequences of 40 tokens."""
    model, ours = pair(layout)
    text, view = texts(2, sum(CHUNKS)), ours.new_cache(2, 48).view()
    found = torch.cat(
        [feed(ours, view, text, torch.full((2,), n), n, logits_for=LogitsFor.ALL).logits for n in CHUNKS], dim=1
    )
    return max(float((found[row] - plain(model, text[row].tolist())).abs().max()) for row in range(2))


@torch.no_grad()
def tree_error(layout):
    """Largest difference of a logit, over the valid nodes of nine trees after sequences of three lengths."""
    model, ours = pair(layout)
    text, largest = texts(3, 20), 0.0
    for seed in range(3):
        tree, view = random_tree(3, 12, seed), ours.new_cache(3, 48).view()
        prefill(ours, view, text, torch.tensor(LENGTHS), max(LENGTHS), taps=())
        logits = ours(tree, view).logits
        for row, length in enumerate(LENGTHS):
            for node in tree.valid[row].nonzero()[:, 0].tolist():
                path = tokens_at(tree, row, path_to(tree, row, node))
                theirs = plain(model, text[row, :length].tolist() + path)[-1]
                largest = max(largest, float((logits[row, node] - theirs).abs().max()))
    return largest


def greedy(layout):
    """Whether plain and drafted sequences are ``generate``'s, and tokens per step of the drafted ones."""
    model, ours = pair(layout, torch.float64)
    prompts = [texts(1, length, seed=length)[0].tolist() for length in (1, 9)]
    wanted = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        whole = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False)
        wanted.append(whole[0, len(prompt) :].tolist())
    requests = [request(prompt, max_tokens=NEW) for prompt in prompts]
    options = dict(target=ours, max_length=9 + NEW)
    plainly = run(NoDrafter(), "coupled", requests, **options)
    drafted = run(ModelDrafter(lm=tiny.noisy(ours, 0.03)), "coupled", requests, **options)
    same = plainly.texts == wanted and drafted.texts == wanted
    return same, drafted.summary.emitted / drafted.summary.steps


def rows():
    """One line of the table per layout."""
    for layout, family in LAYOUTS.items():
        same, pace = greedy(layout)
        errors = f"{prefill_error(layout):.1e} | {tree_error(layout):.1e}"
        yield f"| {family} | {layout} | {errors} | {'yes' if same else 'NO'} | {pace:.2f} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| family | layout | prefill: largest error | tree: largest error | greedy text equal | tokens per step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for line in rows():
        print(line, flush=True)
