"""Small random models of every supported layout, and comparisons with transformers over sequences and trees."""

from functools import cache

import torch

from paceline.core.tree import Tree
from paceline.models.prefill import prefill
from tests import tiny

MAX_POSITIONS = 128
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.5)

# Name -> family and options of a layout beside Llama's and GPT-2's.
VARIANTS = {
    "mistral": ("mistral", dict(sliding_window=None)),
    "mistral-window": ("mistral", dict(sliding_window=80, head_dim=12)),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn-tied": ("qwen2", dict(rope_parameters=YARN_ROPE, tie_word_embeddings=True)),
    "qwen3": ("qwen3", dict(head_dim=12)),
    "qwen3-bias": ("qwen3", dict(head_dim=8, attention_bias=True, tie_word_embeddings=True)),
    "gpt_neox": ("gpt_neox", dict(rotary_pct=0.25)),
    "gpt_neox-sequential": ("gpt_neox", dict(use_parallel_residual=False, rotary_pct=0.5, hidden_act="gelu_new")),
    "gpt_neox-whole": ("gpt_neox", dict(rotary_pct=1.0, tie_word_embeddings=True, attention_bias=False)),
    "gpt_neox-linear": ("gpt_neox", dict(rope_parameters={**LINEAR_ROPE, "partial_rotary_factor": 0.5})),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "phi3-partial": ("phi3", dict(partial_rotary_factor=0.5, sliding_window=128)),
    "gemma": ("gemma", dict(head_dim=12)),
    "granite": ("granite", GRANITE),
    "granite-bias": ("granite", dict(GRANITE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "smollm3": ("smollm3", dict(no_rope_layer_interval=2)),
    "smollm3-listed": ("smollm3", dict(no_rope_layers=[0, 1, 0], tie_word_embeddings=False)),
}


def _variant(name):
    kind, options = VARIANTS[name]
    return lambda dtype: tiny.causal(kind, dtype=dtype, **options)


LAYOUTS = {
    "llama-2": lambda dtype: tiny.llama(dtype=dtype, num_key_value_heads=4),
    "llama-3": lambda dtype: tiny.llama(dtype=dtype, rope_parameters=LLAMA3_ROPE),
    "linear": lambda dtype: tiny.llama(dtype=dtype, rope_parameters=LINEAR_ROPE),
    "yarn": lambda dtype: tiny.llama(dtype=dtype, rope_parameters=YARN_ROPE),
    "grouped": lambda dtype: tiny.llama(dtype=dtype, num_key_value_heads=2, rms_norm_eps=1e-5),
    "multi-query": lambda dtype: tiny.llama(dtype=dtype, num_key_value_heads=1),
    "tied": lambda dtype: tiny.llama(dtype=dtype, tie_word_embeddings=True),
    "head-dim": lambda dtype: tiny.llama(dtype=dtype, head_dim=12),
    "wide-heads": lambda dtype: tiny.llama(dtype=dtype, head_dim=144),
    "gpt2": lambda dtype: tiny.gpt2(dtype=dtype),
    "gpt2-odd-heads": lambda dtype: tiny.gpt2(dtype=dtype, n_embd=28, n_head=4),
    "gpt2-inner-untied": lambda dtype: tiny.gpt2(dtype=dtype, n_inner=40, tie_word_embeddings=False),
    **{name: _variant(name) for name in VARIANTS},
}


def shaken(model, seed=5):
    """``model`` with noise on its norms and biases, which are all ones and zeros when fresh."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model


def fresh(layout, dtype=torch.float64):
    """A transformers model of its own."""
    return shaken(LAYOUTS[layout](dtype))


def pointers(model):
    """Where each parameter is in memory, by name."""
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters(remove_duplicate=False)}


@cache
@torch.inference_mode(False)  # whoever asks first: others train them
def pair(layout, dtype=torch.float32):
    """(transformers model, ours) with equal weights."""
    model = fresh(layout, dtype)
    return model, tiny.native(model)


@torch.no_grad()
def plain(model, tokens):
    """Logits [T, V] of one sequence, by one uncached forward of the transformers model."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def texts(rows, length, seed=7):
    """Random token ids [rows, length]."""
    return torch.randint(tiny.VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def random_tree(rows, nodes, seed, *, all_valid=False):
    """Trees that branch anywhere, a different one in every row, with some branches invalid."""
    generator = torch.Generator().manual_seed(seed)
    parents = torch.full((rows, nodes), -1)
    valid = torch.ones(rows, nodes, dtype=torch.bool)
    for row in range(rows):
        for node in range(1, nodes):
            parents[row, node] = torch.randint(max(0, node - 4), node, (), generator=generator)
            dropped = not all_valid and float(torch.rand((), generator=generator)) < 0.2
            valid[row, node] = valid[row, parents[row, node]] and not dropped
    tokens = torch.randint(tiny.VOCAB, (rows, nodes), generator=generator)
    return Tree.make(tokens, parents, valid, max_depth=nodes - 1)


def first_nodes(tree, count):
    """The same trees without the nodes from ``count`` on."""
    return Tree.make(tree.tokens[:, :count], tree.parents[:, :count], tree.valid[:, :count], max_depth=count - 1)


def path_to(tree, row, node):
    """Nodes from the root to ``node``, both included, by walking the parents."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[row, node])
    return path[::-1]


def tokens_at(tree, row, nodes):
    return [int(tree.tokens[row, node]) for node in nodes]


def close(ours, theirs, atol=1e-4):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def committed(ours, sequences, lengths, *, capacity=64, layers=None):
    """A view whose rows hold the first ``lengths`` tokens of ``sequences``."""
    view = ours.new_cache(len(lengths), capacity).view(layers=layers)
    prefill(ours, view, sequences, torch.tensor(lengths), max(lengths), taps=())
    assert view.length.tolist() == list(lengths)
    return view


def check_nodes(logits, tree, model, known, **tolerance):
    """The logits of every valid node are those of a plain forward on ``known[row]`` and the node's path; how many."""
    nodes = tree.valid.nonzero().tolist()
    for row, node in nodes:
        path = tokens_at(tree, row, path_to(tree, row, node))
        close(logits[row, node], plain(model, [*known[row], *path])[-1], **tolerance)
    return len(nodes)


def beginnings(sequences, lengths):
    """The first ``lengths`` tokens of ``sequences``."""
    return [sequence[:length].tolist() for sequence, length in zip(sequences, lengths, strict=True)]
