"""Small calls of the whole C ABI, recorded with the package itself and replayed on another instruction set.

A scenario takes the recorder and the panels in which the replaying set packs weights.
"""

from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy

import torch

from paceline.core.batch import Batch
from paceline.core.noise import Philox
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.request import Request
from paceline.core.stats import Stats
from paceline.core.tree import Tree
from paceline.kernels.cpu.instruction_set import load_kernel
from paceline.kernels.cpu.noise import KernelNoise
from paceline.kernels.cpu.ops import CpuOps
from paceline.models.cpu import packed_weights
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import gemm_with_layer
from paceline.models.loading import dtype_name
from paceline.models.native.quantization import SCHEMES
from tests.kernels.cpu import test_batch, test_fused_drafting, test_logprobs, test_processing, test_sampling
from tests.kernels.cpu.emulated.recording import Panels, Recorder, shadow
from tests.kernels.cpu.models import native, quantised
from tests.kernels.cpu.test_noise import keys
from tests.models.layouts import path_to, random_tree, texts

ROWS = (*range(1, 14), 40)  # of a product: few, and as many as a short prompt's
SIZES = ((7, 5), (64, 32), (72, 33), (514, 31), (200, 100), (3136, 29))
LAYOUTS = ("grouped", "multi-query", "gpt2", "gpt2-odd-heads", "gpt_neox", "olmo2", "wide-heads")
SHORT_LAYOUTS = ("grouped", "gpt2")


def dtypes() -> list[torch.dtype]:
    """The precisions of the kernel's models."""
    known = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
    return [dtype for dtype in known if hasattr(load_kernel(), f"paceline_forward_{dtype_name(dtype)}")]


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def layer_of(inner: int, outer: int, scheme: str | None, dtype: torch.dtype) -> torch.nn.Linear:
    weight = torch.randn(outer, inner, generator=torch.Generator().manual_seed(outer)) / inner**0.5
    if scheme is None:
        layer = torch.nn.Linear(inner, outer, bias=False)
        layer.weight = torch.nn.Parameter(weight.to(dtype))
    else:
        layer = SCHEMES[scheme](inner, outer, bias=False)
        layer.load_state_dict(layer.quantise(weight), assign=True)
    return layer.requires_grad_(False)


def products(recorder: Recorder, panels: Panels, *, sizes=SIZES, rows=ROWS) -> None:
    """Products with weights of every format, together and row by row, on one thread and two."""
    for dtype in dtypes():
        for scheme in (None, *SCHEMES):
            for inner, outer in sizes:
                layer = layer_of(inner, outer, scheme, dtype)
                x = torch.randn(max(rows), inner, generator=torch.Generator().manual_seed(1)).to(dtype)
                recorder.case(f"product {dtype} {scheme} {inner}x{outer}")
                multiply = gemm_with_layer(layer, dtype)
                one_by_one = _products(recorder, multiply, x, rows)
                with shadow(recorder, panels):
                    packed = packed_weights.pack_linear(deepcopy(layer), dtype)
                    if isinstance(packed, packed_weights.PackedLinear):
                        recorder.case(f"packed product {dtype} {scheme} {inner}x{outer}")
                        for mine, theirs in zip(
                            _products(recorder, gemm_with_layer(packed, dtype), x, rows), one_by_one, strict=True
                        ):
                            recorder.close(mine, theirs)


def _products(recorder: Recorder, multiply: Callable, x: torch.Tensor, rows) -> list[torch.Tensor]:
    one_by_one = [multiply(row[None]) for row in x]
    for count in rows:
        for num_threads in (1, 2) if count in (1, 6, max(rows)) else (1,):
            with threads(num_threads):
                together = multiply(x[:count])
            for row in range(count):
                recorder.equal(together[row : row + 1], one_by_one[row])
    return one_by_one


def chain(tokens: torch.Tensor) -> Tree:
    return Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))


def forwards(recorder: Recorder, panels: Panels, *, layouts=LAYOUTS, schemes=(None, *SCHEMES)) -> None:
    """Models of several layouts, precisions and weight formats."""
    for dtype in dtypes():
        for layout in layouts:
            for scheme in schemes if layout == layouts[0] else (None,):
                lm = deepcopy(native(layout, dtype) if scheme is None else quantised(layout, dtype, scheme))
                recorder.case(f"model {layout} {dtype} {scheme}")
                expected = _forwards(recorder, CpuDecoder(lm))
                with shadow(recorder, panels):
                    packed = deepcopy(lm)
                    packed_weights.pack_linears(packed)
                    if any(isinstance(layer, packed_weights.PackedLayer) for layer in packed.modules()):
                        recorder.case(f"packed model {layout} {dtype} {scheme}")
                        for mine, theirs in zip(_forwards(recorder, CpuDecoder(packed)), expected, strict=True):
                            recorder.close(mine, theirs)


def _forwards(recorder: Recorder, model: CpuDecoder) -> list[torch.Tensor]:
    """A text token by token, at once, in a batch and on two threads; then a tree, and its paths as chains."""
    tokens, results = texts(3, 14), []
    for row in range(3):
        cache, alone = model.new_cache(1, 40).view(), []
        for at in range(tokens.shape[1]):
            alone.append(model(chain(tokens[row : row + 1, at : at + 1]), cache).logits)
            cache.commit(torch.ones(1, dtype=torch.int64))
        results.append(alone)
    for num_threads in (1, 2):
        with threads(num_threads):
            together = model.new_cache(3, 48).view()
            logits = model(chain(tokens), together).logits
        for row in range(3):
            for at in range(tokens.shape[1]):
                recorder.equal(logits[row : row + 1, at : at + 1], results[row][at])
    known = model.new_cache(1, 64).view()
    model(chain(tokens[:1]), known)
    known.commit(torch.tensor([tokens.shape[1]]))
    tree = random_tree(1, 12, 2, all_valid=True)
    logits = model(tree, known).logits
    for node in (0, 3, 7, 11):
        path = model(chain(tree.tokens[:, path_to(tree, 0, node)]), known).logits
        recorder.equal(logits[:, node], path[:, -1])
    return [*(logits for alone in results for logits in alone), logits]


def drafts(recorder: Recorder, panels: Panels, *, layouts=SHORT_LAYOUTS) -> None:
    """Fused drafting, greedy and sampled, with logits processors, and its tokens by single calls."""
    del panels
    for dtype in dtypes():
        for layout in layouts:
            for name in ("none", "different"):
                for greedy in (True, False):
                    recorder.case(f"fused drafting {layout} {dtype} {name} greedy={greedy}")
                    model = CpuDecoder(native(layout, dtype))
                    made = []
                    for num_threads in (1, 2):
                        with threads(num_threads):
                            made.append(_draft(model, name, greedy))
                    for one, other in zip(*made, strict=True):
                        recorder.equal(one, other)


def _draft(model: CpuDecoder, processing: str, greedy: bool) -> tuple[torch.Tensor, ...]:
    cases = test_fused_drafting
    batch = cases.asked(cases.PROCESSING[processing], vocab=model.vocab_size)
    cache, pending = cases.begun(model)
    valid, tokens = torch.tensor(cases.ROOM).bool(), torch.zeros(3, 5, dtype=torch.int64)
    tokens[:, 0] = batch.root
    assert model.draft_fused(batch, cache, pending, tokens, valid, greedy=greedy)
    return tokens, cache.storage.keys[:, :3], cache.storage.values[:, :3]


def noise(recorder: Recorder, panels: Panels) -> None:
    """Philox words, which are exact, uniforms and exponential races."""
    del panels
    philox = Philox(KernelNoise())
    for key in keys():
        for count in (1, 5, 65):
            recorder.case(f"noise of {key.stream}, {count}")
            philox.bits(key, count)
            for dtype in (torch.float32, torch.float64):
                philox.uniforms(key, count, dtype)
        scores = 4 * torch.randn(*key.position.shape, 333, generator=torch.Generator().manual_seed(2))
        scores[..., ::3] = -torch.inf
        for given in (scores, scores.double()):
            recorder.case(f"race of {key.stream} {given.dtype}")
            philox.choose(given, key)


def sampling(recorder: Recorder, panels: Panels, *, sizes=(5, 65, 1000)) -> None:
    """Samples, argmax and warped scores under many sampling options."""
    del panels
    cases = test_sampling
    given = (*cases.SOME, *cases.ORDERS[::7], *cases.LISTS[::17])
    options = [cases.Sampling(temperature=0.8, seed=seed, **each) for seed, each in enumerate(given)]
    batch = Batch(rows=len(options), max_length=100, max_depth=3, vocab_size=32000, ops=CpuOps(), device=cases.CPU)
    batch.admit(range(len(options)), [Request(tokens=[1], max_tokens=50, sampling=option) for option in options])
    for dtype in dtypes():
        for size in sizes:
            recorder.case(f"sampling {dtype} {size}")
            logits, position = cases.logits_of(len(options), 2, size, dtype), cases.places(len(options), 2)
            batch.pick(logits, position)
            batch.argmax(logits)
            if dtype is torch.float64:  # which scores a filter keeps may depend on the order of a sum
                batch.warp(logits)


def processors(recorder: Recorder, panels: Panels) -> None:
    """Logits processors over trees and chains."""
    del panels
    cases = test_processing
    for dtype in dtypes():
        for name, kind in cases.KINDS.items():
            recorder.case(f"logits processors {name} {dtype}")
            (_, batch) = cases.batches([kind, cases.KINDS["everything"], cases.KINDS["none"]])
            for shape in cases.PARENTS:
                tree = cases.tree_of(shape, 3)
                batch.process_tree(cases.logits_of(3, tree.tokens.shape[1], cases.VOCAB, dtype=dtype), tree)


def logprobs(recorder: Recorder, panels: Panels) -> None:
    """Log-probabilities of decided tokens."""
    del panels
    cases = test_logprobs
    for dtype in dtypes():
        for shape in cases.SHAPES:
            recorder.case(f"log-probabilities {shape} {dtype}")
            size = len(cases.SHAPES[shape])
            logits = 2 * torch.randn(len(cases.ROWS), size, 300, generator=torch.Generator().manual_seed(3)).to(dtype)
            cases.decided(CpuOps(), shape, logits)


def steps(recorder: Recorder, panels: Panels) -> None:
    """The begin and end of steps and the counters: integers, which are exact."""
    del panels
    cases = test_batch
    for shape in cases.SHAPES:
        recorder.case(f"steps {shape}")
        generator = torch.Generator().manual_seed(1)
        _, batch = cases.batches(generator)
        stats = Stats(cases.ROWS, cases.DEPTH, cases.CPU, CpuOps())
        for _ in range(4):
            batch.begin_chain(3)
            batch.ngram_chain(3, NgramOptions())
            batch.ngram_chain(3, NgramOptions(first=True, wrap=False, crop=True))
            tree, outcome = cases.decision(shape, batch, generator)
            stats.record(tree, batch.extend(tree, outcome, cases.NO_SCORES))


def short(recorder: Recorder, panels: Panels) -> None:
    """A little of everything, in seconds."""
    products(recorder, panels, sizes=((72, 33),), rows=(1, 2, 6, 13))
    forwards(recorder, panels, layouts=("grouped",))
    drafts(recorder, panels, layouts=("grouped",))
    noise(recorder, panels)
    sampling(recorder, panels, sizes=(65,))
    steps(recorder, panels)


SCENARIOS = {one.__name__: one for one in (products, forwards, drafts, noise, sampling, processors, logprobs, steps)}
