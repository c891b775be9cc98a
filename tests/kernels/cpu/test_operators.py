"""Every kernel entry of a step is an operator whose schema, fake and mutations are true; steps compile with them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.core.batch import Batch
from paceline.core.columns import Columns
from paceline.core.early_stop import LEVELS, StopRule
from paceline.core.noise import Key, Stream, tag_of
from paceline.core.request import Processing, Request
from paceline.core.sampling import Sampling
from paceline.core.stats import Stats
from paceline.core.tree import Tree
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.block_config import BlockConfig
from paceline.draft_heads.medusa import MedusaConfig, MedusaHead
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.engine.runner import ops_for
from paceline.kernels.cpu.instruction_set import current_set
from paceline.kernels.cpu.operators import LIBRARY
from paceline.kernels.cpu.ops import CpuOps
from paceline.kernels.cpu.sampling import ProcessorTensors
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.kv_view import KVView
from tests import tiny
from tests.harness import decoder_for, request

pytestmark = pytest.mark.one_in(11)

CPU = torch.device("cpu")
ROWS, NODES, VOCAB, DEPTH = 2, 3, 64, 4
HELD = []  # what the handles and addresses of samples name
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
PROCESSING = Processing(
    presence_penalty=0.3, bias=(((3,), 0.5), ((2, 5), 1.0)), no_repeat_ngram=2, late=((7, 5),), allowed=range(60)
)


def flat(*arguments):
    """The arguments of an operator: groups of tensors one by one."""
    found = []
    for argument in arguments:
        if isinstance(argument, Columns):
            found.extend(argument.tensors)
        elif isinstance(argument, ProcessorTensors | KVView):
            found.extend(argument)
        else:
            found.append(argument)
    return tuple(found)


def rows():
    batch = Batch(rows=ROWS, max_length=24, max_depth=DEPTH, vocab_size=VOCAB, ops=CpuOps(), device=CPU)
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=3)
    asked = [
        Request(tokens=[1, 2, row], max_tokens=9, stop_tokens=[4], sampling=sampling, processing=PROCESSING)
        for row in range(ROWS)
    ]
    batch.admit(range(ROWS), asked)
    batch.early_stop.notes.fill_(3)
    return batch


def samples():
    """Arguments of every operator, as steps give them."""
    for name, arguments in step_samples():
        yield name, (current_set(), *arguments)
    yield from forwards()
    yield from drafts()


def step_samples():
    """Of the operators of a step, without the instruction set."""
    batch, stats = rows(), Stats(ROWS, DEPTH, CPU)
    columns, options = batch.columns, batch.sampling.columns
    processors = ProcessorTensors.of(batch.processing, batch.tokens, batch.length)
    logits = torch.randn(ROWS, NODES, VOCAB, generator=torch.Generator().manual_seed(0))
    tree = Tree.make(
        torch.full((ROWS, NODES), 5),
        torch.tensor([-1, 0, 0]).expand(ROWS, -1),
        torch.ones(ROWS, NODES, dtype=torch.bool),
        max_depth=1,
    )
    shape = (tree.tokens, tree.parents.contiguous(), tree.depth, tree.valid, tree.origin)
    decided = (torch.tensor([[2], [-1]]), torch.tensor([2, 1]), torch.tensor([4, 6]))
    key = Key(seed=torch.arange(4), position=torch.arange(4) + 9, stream=Stream.DRAFT)
    fields = (key.seed, key.position, torch.arange(4), torch.zeros(4, dtype=torch.int64), tag_of(key))
    top, last = torch.tensor([2, -1]), (decided[0], decided[1])
    yield "random_words", (*fields, 5)
    yield "uniforms", (*fields, 5, False)
    yield "uniforms", (*fields, 5, True)
    yield "exponential_race", (*fields, torch.randn(4, 70, dtype=torch.float64))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for wanted in (None, tree.valid):
            for offset in (None, batch.length):
                yield "sample", flat(options, logits.to(dtype), tree.depth, offset, wanted)
        yield "argmax", (logits.to(dtype),)
        yield "warp", flat(options, logits.to(dtype))
        if dtype is not torch.float16:
            drafted = torch.full((ROWS, NODES, 2), -1)
            yield "process", flat(processors, logits.to(dtype), drafted)
            yield "process_tree", flat(processors, logits.to(dtype), tree.tokens, tree.depth, tree.ancestors, 1)
            yield "process_tree", flat(processors, logits.to(dtype), tree.tokens, None, None, NODES - 1)
        for warped in (False, True):
            given = (options, warped, batch.tokens, batch.length, top, logits.to(dtype), *last, 2)
            yield "logprobs", flat(*given)
        not_finite = logits.to(dtype).masked_fill(logits == logits[0, 0].max(), torch.inf)
        yield "find_not_finite", (not_finite, *last, 2, torch.zeros(ROWS, dtype=torch.int64))
    yield "begin_chain", flat(columns, 3, 20)
    for rules in ((False, True, True), (True, False, False)):
        yield "ngram_chain", flat(columns, 3, 3, 1, *rules)
    yield "match", (*shape[:-1], torch.full((ROWS, NODES), 5), 1)
    for counts in (None, batch.processing.counts):
        yield "extend", flat(columns, counts, *shape, *decided, 1, 2)
    for dtype in (torch.bfloat16, torch.float64):
        states = [torch.randn(ROWS, NODES, size).to(dtype) for size in (2, 3)]
        for path, first in ((None, None), (decided[0], torch.tensor([1, 0]))):
            queue, count = torch.zeros(ROWS, 9, 5, dtype=dtype), torch.tensor([3, 0])
            yield "queue_states", (states, path, first, decided[1], queue, count)
            yield "keep_last", (states[0], path, decided[1], torch.zeros(ROWS, 2, 2, dtype=dtype))
    yield "record", flat(stats.columns, *shape, *decided, 1)


def forwards():
    model = CpuDecoder(tiny.target()[1])
    cache, size = model.new_cache(ROWS, 24).view(), model.lm.config.hidden_size
    tree = Tree.make_chain(torch.full((ROWS, NODES), 5), torch.ones(ROWS, NODES, dtype=torch.bool))
    HELD.extend((model, cache))
    nodes = (tree.tokens, tree.depth, tree.valid, tree.ancestors, 0, True)
    called = (model._kernel_model.handle, cache.storage.workspace.address, KVView.of(cache), cache.layers)
    logits = torch.zeros(ROWS, NODES, model.vocab_size, dtype=model.dtype)
    hidden = [torch.zeros(ROWS, NODES, size, dtype=model.dtype) for _ in range(2)]
    yield "forward", flat(*called, *nodes, 2, logits, (0, 1), hidden, None, None, 0, 0)
    yield "forward", flat(*called, *nodes, 0, None, (), [], None, None, 0, 0)
    yield "forward", flat(*called, *nodes, 0, None, (0, 2), hidden, None, None, 0, 1)
    resumed, ready = torch.randn_like(hidden[0]), torch.tensor([[True, False, False]] * ROWS)
    view = KVView(cache.storage.keys, cache.storage.values, cache.length, torch.arange(ROWS))
    yield "forward", flat(*called[:2], view, called[3], *nodes, 2, logits, (), [], resumed, ready, 0, 0)


def drafts():
    model, batch = CpuDecoder(tiny.target()[1]), rows()
    cache, other = model.new_cache(ROWS, 24).view(), model.new_cache(ROWS, 24).view()
    HELD.extend((model, cache))
    handle, size = model._kernel_model.handle, model.lm.config.hidden_size
    called = (handle, cache.storage.workspace.address, KVView.of(cache), cache.layers, batch.sampling.columns)
    processors = ProcessorTensors.of(batch.processing, batch.tokens, batch.length)
    tokens, valid = torch.ones(ROWS, 1 + DEPTH, dtype=torch.int64), torch.ones(ROWS, 1 + DEPTH, dtype=torch.bool)
    chain = (batch.processing.vocab_size, batch.tokens, batch.length, tokens, valid, False)
    count = torch.zeros(ROWS, dtype=torch.int64)
    alone = (*[None] * 13, (), None, None)
    yield "draft_fused", flat(*called, *[None] * 14, *chain, *[None] * 3, count, 0, None, *alone)
    states = torch.zeros(ROWS, 1, size, dtype=model.dtype)
    hidden = torch.zeros(ROWS, 1 + DEPTH, size, dtype=model.dtype)
    models = MedusaHead.make(MedusaConfig(), model.lm, generator=torch.Generator()).depth_models
    HELD.append(models)
    reads = (count + 1, 1, states, None, None, models.handle)
    yield "draft_fused", flat(*called, *[None] * 14, *chain, *[None] * 3, *reads, *alone[3:])
    config = BlockConfig(block_size=5, mask_token_id=1, taps=(1,), num_layers=1)
    head = BlockHead.make(config, model.lm, generator=torch.Generator()).requires_grad_(False)
    head.use_kernels()
    block, drafter = head.block_input(head.context_projection()), CpuDecoder(head.decoder)
    own = drafter.new_cache(ROWS, 24).view()
    HELD.extend((block, drafter, own))
    called_block = (drafter._kernel_model.handle, own.storage.workspace.address, KVView.of(own), own.layers, called[4])
    reads = (count + 1, 1, torch.randn_like(states), None, None, None, block.handle)
    yield "draft_fused", flat(*called_block, *[None] * 14, *chain, *[None] * 3, *reads, *alone[4:])
    slots, vocab = block.num_slots, drafter.vocab_size
    filled = (torch.zeros(ROWS, slots, vocab, dtype=model.dtype), torch.ones(ROWS, slots, size, dtype=model.dtype))
    yield "read_block", flat(*called_block[:4], block.handle, count + 1, reads[2], tokens, valid, *filled)
    shared = (None, None, None, None, None, handle, KVView.of(other), other.layers, hidden, torch.ones_like(hidden))
    batch.early_stop.plan(StopRule(((0.6,) * LEVELS,) * ROWS, (0.5,) * ROWS))  # after one token
    batch.early_stop.notes.zero_()
    stops = batch.early_stop.columns
    yield "draft_fused", flat(*called, processors, *chain, stops, count, 0, states, *shared)


OPERATORS = sorted(name.split("::")[1] for name in LIBRARY._op_defs)


def operator(name):
    return getattr(torch.ops.paceline, name).default


def samples_of(wanted):
    return [arguments for name, arguments in samples() if name == wanted]


@pytest.mark.parametrize("name", OPERATORS)
def test_schema_and_fake_match_what_the_kernel_does(name):
    given = samples_of(name)
    assert given
    with torch.no_grad():
        for arguments in given:
            torch.library.opcheck(operator(name), arguments, test_utils=CHECKS)


@pytest.mark.parametrize("name", OPERATORS)
def test_declared_mutations_are_those_that_happen(name):
    declared, changed = set(), set()
    for arguments in samples_of(name):
        parts = [argument if isinstance(argument, list) else [argument] for argument in arguments]
        before = [[part.clone() if isinstance(part, torch.Tensor) else None for part in group] for group in parts]
        with torch.no_grad():
            operator(name)(*arguments)
        for spec, group, held in zip(operator(name)._schema.arguments, parts, before, strict=True):
            if spec.alias_info is not None and spec.alias_info.is_write:
                declared.add(spec.name)
            if any(old is not None and not torch.equal(new, old) for new, old in zip(group, held, strict=True)):
                changed.add(spec.name)
    assert changed == declared


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_run_on_fake_tensors(name):
    given = samples_of(name)
    with FakeTensorMode() as mode:
        for arguments in given:
            fakes = [
                [mode.from_tensor(one) for one in part]
                if isinstance(part, list)
                else mode.from_tensor(part)
                if isinstance(part, torch.Tensor)
                else part
                for part in arguments
            ]
            operator(name)(*fakes)


STEP = ["forward", "process_tree", "sample", "match", "extend", "record"]
CASES = {
    "plain": (lambda: NoDrafter(), 0, ["begin_chain", *STEP]),
    "chain": (lambda: ModelDrafter(lm=CpuDecoder(tiny.target()[1])), 2, ["begin_chain", "draft_fused", *STEP]),
    "ngram": (lambda: NgramDrafter(), 2, ["ngram_chain", *STEP]),
    "tree": (lambda: tree_drafter(), 2, ["process", "warp", "uniforms", *STEP]),
}


def tree_drafter():
    drafter = ModelDrafter(lm=CpuDecoder(tiny.target()[1]))
    drafter.shape, drafter.branches = Topology.branching((2, 1)), True
    return drafter


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_compiles_to_the_operators(case, backend):
    drafter, depth, wanted = CASES[case]
    target, made, found = CpuDecoder(tiny.target()[1]), [], []
    for _ in range(2):
        decoder = decoder_for(
            drafter(), "coupled", target=target, k=depth, rows=2, parts=dict(ops=ops_for(CPU)), max_length=40
        )
        penalties = dict(frequency_penalty=0.4, bias=(((5,), 0.5),), no_repeat_ngram=3)
        asked = [request([1, 2, 3], temperature=0.7, seed=1, logprobs=2), request([4], processing=penalties)]
        decoder.admit(asked, range(2))
        made.append(decoder)
    compile_graph = torch._dynamo.lookup_backend(backend)

    def compiler(graph, inputs):
        targets = [str(node.target) for node in graph.graph.nodes if "paceline" in str(node.target)]
        found.append([name.split(".")[1] for name in targets])
        return compile_graph(graph, inputs)

    torch._dynamo.reset()
    step = torch.compile(made[1].step, fullgraph=True, backend=compiler)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(5):
            made[0].step()
            step()
            assert torch.equal(made[0].batch.tokens[:, :-1], made[1].batch.tokens[:, :-1])
            assert torch.equal(made[0].batch.results, made[1].batch.results)
            for one, other in zip(*(decoder.cache.read(0) for decoder in made), strict=True):
                assert torch.equal(one, other)
    assert len(found) == 1 and set(found[0]) == {*wanted, "find_not_finite", "logprobs"}
    assert made[0].stats.summary() == made[1].stats.summary()
