"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

A mutant dies by an ordinary test: one that was written for the law, not for the mutant.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """``before`` becomes ``after`` in ``file``, where it stands exactly once; ``tests`` are where to look first."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


CONFORMANCE = "tests/conformance/test_conformance.py"
LAWS = "tests/verifiers/test_laws_sampled.py"
NOISE = "tests/core/test_noise.py"
RULE = "tests/verifiers/test_{}.py"
MODEL = "tests/drafters/test_model.py"
TREES = "tests/conformance/test_trees.py"
GROW = "tests/drafters/test_grow.py"
GROWN_LIMITS = "tests/drafters/test_grow_limits.py"
CONFIDENT = "tests/drafters/test_confident.py"
OPTIMAL = "tests/drafters/test_optimal_tree.py"
ADMISSION = "tests/core/test_admission.py"
LOGPROBS = "tests/core/test_logprobs.py"
FORKS = "tests/conformance/test_forks.py"
SCHEDULER = "tests/engine/test_scheduler.py"
STOPS = "tests/api/test_stops.py"
STATISTICS = "tests/api/test_statistics.py"
SEEDS = "tests/api/test_generate.py::test_{}"
KERNEL = "tests/models/cpu/test_kernel.py"
INVARIANCE = "tests/models/cpu/test_invariance.py"

MUTANTS = (
    Mutant(
        "skip commit",
        "decode.py",
        "self.cache.commit(outcome.num_committed, None if tree.chain else outcome.path)",
        "pass",
        (CONFORMANCE,),
    ),
    Mutant(
        "commit a tree as if it were a chain",
        "decode.py",
        "None if tree.chain else outcome.path",
        "None",
        (TREES,),
    ),
    Mutant(
        "shift positions by one",
        "models/attention.py",
        "(length + tree.depth[:, start:])",
        "(length + tree.depth[:, start:] + 1)",
        (CONFORMANCE,),
    ),
    Mutant(
        "drop the ancestor mask",
        "models/attention.py",
        "own = tree.ancestors[:, start:].gather(2, index) & (node < tree.num_nodes)[:, None, :]",
        "own = (tree.ancestors[:, start:].gather(2, index) | True) & (node < tree.num_nodes)[:, None, :]",
        (CONFORMANCE,),
    ),
    Mutant(
        "use row 0's length for all rows",
        "models/attention.py",
        "length = cache.length[:, None]",
        "length = cache.length[:1, None].expand(len(cache.length), 1)",
        (CONFORMANCE,),
    ),
    Mutant(
        "forget the draft's catch-up",
        "drafters/model.py",
        "(outcome.num_committed - 1).clamp(0, tree.max_depth - 1)",
        "(outcome.num_committed - 1).clamp(0, tree.max_depth)",
        (MODEL,),
    ),
    Mutant(
        "verify with a law that was not sampled from",
        "drafters/grow/draws.py",
        "laws=scores.softmax(-1))",
        "laws=logits.softmax(-1))",
        (LAWS,),
    ),
    Mutant(
        "share draft and accept noise",
        "verifiers/rejection.py",
        "Stream.ACCEPT",
        "Stream.DRAFT",
        (LAWS, NOISE),
    ),
    Mutant(
        "accept with >=",
        "core/noise.py",
        "return u * denominator < numerator",
        "return u * denominator <= numerator",
        (NOISE,),
    ),
    Mutant(
        "residual from p",
        "verifiers/rejection.py",
        "residual = (law - refused).clamp(min=0)",
        "residual = law",
        (LAWS,),
    ),
    Mutant(
        "residual subtracts q at the refused token alone",
        "verifiers/rejection.py",
        "residual = (law - refused).clamp(min=0)",
        "residual = (law - refused * (refused == refused.amax(-1, keepdim=True))).clamp(min=0)",
        (LAWS,),
    ),
    Mutant(
        "un-warped bonus",
        "verifiers/rejection.py",
        "law = p.gather(1, row)",
        "law = torch.where((leaf == tree.valid.sum(-1) - 1)[:, None, None], logits.softmax(-1), p).gather(1, row)",
        (LAWS,),
    ),
    Mutant(
        "block: break at the first failure",
        "verifiers/block.py",
        "leaf = torch.where(passes & tree.valid[:, 1:], tree.depth[:, 1:], 0)",
        "leaf = torch.where((passes & tree.valid[:, 1:]).long().cumprod(-1) > 0, tree.depth[:, 1:], 0)",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: the token rule's residual",
        "verifiers/block.py",
        "law = rest.gather(1, row)",
        "law = (scores.softmax(-1) - q).clamp(min=0).gather(1, row)",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: the token rule's test",
        "verifiers/block.py",
        "weights.append((weights[i] * ratio[:, i]).clamp(max=1))",
        "weights.append(ratio[:, i].clamp(max=1))",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: a bonus from the residual of a token that was not drafted",
        "verifiers/drafted.py",
        "laws.mul_((valid & (index >= 0))[..., None])",
        "laws.mul_((index >= 0)[..., None])",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: un-warped bonus",
        "verifiers/block.py",
        "scores = batch.scores(logits, position)  # [B, N, V]",
        "scores = torch.where((tree.depth < tree.valid.sum(-1, keepdim=True) - 1)[..., None], "
        "batch.scores(logits, position), logits)",
        (LAWS,),
    ),
    Mutant(
        "recursive: residual from p",
        "verifiers/recursive.py",
        "left[rows, parent] = torch.where(real & (mass > 0), rest / mass, p)",
        "pass",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "recursive: residual at the refused token alone",
        "verifiers/recursive.py",
        "rest = (p - q).clamp_(min=0)",
        "rest = (p - torch.zeros_like(q).scatter_(1, token, drawn)).clamp_(min=0)",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "recursive: siblings share a coin",
        "verifiers/recursive.py",
        "lane=torch.arange(1, tree.num_nodes, device=left.device)",
        "lane=tree.depth[:, 1:]",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "recursive: the last accepted sibling is followed",
        "verifiers/recursive.py",
        "keep = keep & ~(earlier_siblings(tree) & keep[:, None, :]).any(-1)",
        "keep = keep & ~(earlier_siblings(tree).mT & keep[:, None, :]).any(-1)",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "draws without replacement are tested as with it",
        "verifiers/drafted.py",
        "alone = (tree.draw[:, node] == int(Draw.NO_REPLACEMENT))[:, None]",
        "alone = (tree.draw[:, node] == -1)[:, None]",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "draws without replacement are not renormalised",
        "verifiers/drafted.py",
        "law = law / torch.where(alone & gone.any(-1, keepdim=True), law.sum(-1, keepdim=True), 1.0).clamp(min=1e-37)",
        "pass",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "a fixed choice is tested by the draft's law",
        "verifiers/drafted.py",
        "fixed = (index < 0).to(like.dtype)[:, None]",
        "fixed = 0 * (index < 0).to(like.dtype)[:, None]",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "invalid siblings are taken for drawn ones",
        "verifiers/drafted.py",
        "gone = alone & tree.valid[:, 1:node] & (",
        "gone = alone & (",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "recursive: refusals by invalid nodes",
        "verifiers/recursive.py",
        "real = tree.valid[:, node, None] & (drawn > 0)",
        "real = drawn > 0",
        (RULE.format("recursive"),),
    ),
    Mutant(
        "traversal: the parent's law is left as it was",
        "verifiers/traversal.py",
        "left[rows, parent] = torch.where(real[:, None], rest / refused[:, None], p)",
        "pass",
        (RULE.format("traversal"),),
    ),
    Mutant(
        "traversal: the parent's weight is left as it was",
        "verifiers/traversal.py",
        "weight[rows, parent] = torch.where(real, mass / refused, whole)",
        "pass",
        (RULE.format("traversal"),),
    ),
    Mutant(
        "traversal: tested from the root to the leaves",
        "verifiers/traversal.py",
        "2 * tree.num_nodes).argmin(-1)",
        "-1).argmax(-1)",
        (RULE.format("traversal"),),
    ),
    Mutant(
        "traversal: siblings in any order",
        "verifiers/traversal.py",
        "before = (earlier_siblings(tree) * size[:, None, :]).sum(-1)",
        "before = (earlier_siblings(tree).mT * size[:, None, :]).sum(-1)",
        (RULE.format("traversal"),),
    ),
    Mutant(
        "traversal: siblings share a coin",
        "verifiers/traversal.py",
        "lane=torch.arange(1, tree.num_nodes, device=left.device)",
        "lane=tree.depth[:, 1:]",
        (RULE.format("traversal"),),
    ),
    Mutant(
        "spectr: the residual without its factor",
        "verifiers/spectr.py",
        "rest = (law - share[:, None] * taken).clamp_(min=0)",
        "rest = (law - taken).clamp_(min=0)",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "spectr: rho of one",
        "verifiers/spectr.py",
        "taken, beta, some = reach(high)",
        "high = torch.ones_like(high); taken, beta, some = reach(high)",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "spectr: bisection ends on the wrong side",
        "verifiers/spectr.py",
        "low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)",
        "low, high = torch.where(valid, middle, low), torch.where(valid, high, middle)",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "spectr: paths that left the text stay alive",
        "verifiers/spectr.py",
        "alive = candidate & hit[:, None] & (tree.tokens == tree.tokens[rows, chosen][:, None])",
        "alive = candidate & hit[:, None]",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "spectr: only the accepted path stays alive",
        "verifiers/spectr.py",
        "alive = candidate & hit[:, None] & (tree.tokens == tree.tokens[rows, chosen][:, None])",
        "alive = candidate & hit[:, None] & (node == chosen[:, None])",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "spectr: a key of noise for every depth's coin",
        "verifiers/spectr.py",
        "lane=torch.where(candidate, node, node + depth * len(node))",
        "lane=node",
        (NOISE,),
    ),
    Mutant(
        "spectr: the factor of one candidate",
        "verifiers/spectr.py",
        "return taken, beta, -torch.expm1(number * torch.log1p(-beta))",
        "return taken, beta, -torch.expm1(torch.log1p(-beta))",
        (RULE.format("spectr"),),
    ),
    Mutant(
        "matching draws with noise of its own",
        "verifiers/match.py",
        "own = batch.pick(logits, batch.length[:, None] + tree.depth)",
        "own = batch.pick(logits, batch.length[:, None] + 10 + tree.depth)",
        (RULE.format("match"),),
    ),
    Mutant(
        "a lenient rule passes for lossless",
        "verifiers/lossy_lenient.py",
        "lossless: ClassVar[bool] = False",
        "lossless: ClassVar[bool] = True",
        (RULE.format("lossy_lenient"),),
    ),
    Mutant(
        "the lenience reaches the residual",
        "verifiers/lossy_lenient.py",
        "rest = (law - q.gather(1, row)).clamp(min=0)",
        "rest = (law - self.lenience * q.gather(1, row)).clamp(min=0)",
        (RULE.format("lossy_lenient"),),
    ),
    Mutant(
        "typical: the first path instead of the likeliest",
        "verifiers/lossy_typical.py",
        "score = (tree.ancestors * score[:, None, :]).sum(-1)",
        "score = (tree.ancestors * score[:, None, :]).sum(-1) * 0",
        (RULE.format("lossy_typical"),),
    ),
    Mutant(
        "typical: the larger of both bounds",
        "verifiers/lossy_typical.py",
        ".clamp(max=self.epsilon)",
        ".clamp(min=self.epsilon)",
        (RULE.format("lossy_typical"),),
    ),
    Mutant(
        "noise keyed by position only under rejection",
        "core/batch.py",
        "step=self.steps.view(shape), lane=lane, stage=stage",
        "step=0, lane=0, stage=0",
        (NOISE,),
    ),
    Mutant(
        "target noise keyed by the step",
        "core/batch.py",
        "return Key(seed=seed, position=position, stream=stream)",
        "return Key(seed=seed, position=position, stream=stream, step=self.steps.view(shape))",
        (CONFORMANCE,),
    ),
    Mutant(
        "generate past the end of the text",
        "core/batch.py",
        "until = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, outcome.num_committed)",
        "until = outcome.num_committed",
        (CONFORMANCE,),
    ),
    Mutant(
        "overshoot the limit",
        "core/batch.py",
        "num = torch.minimum(until, self.limit - self.length)",
        "num = until",
        (TREES,),
    ),
    Mutant(
        "a fork copies one slot too few",
        "core/cache.py",
        "layer[admission.rows, :longest] = layer[admission.source, :longest]",
        "layer[admission.rows, : longest - 1] = layer[admission.source, : longest - 1]",
        (ADMISSION,),
    ),
    Mutant(
        "rows are forked one after another",
        "core/cache.py",
        "layer[admission.rows, :longest] = layer[admission.source, :longest]",
        "[layer[i, :longest].copy_(layer[j, :longest].clone()) for i, j in zip(admission.rows, admission.source)]",
        (ADMISSION,),
    ),
    Mutant(
        "a fork of the draft's cache is claimed and not made",
        "drafters/model.py",
        "view = storage.begin(admission, torch.minimum(admission.forked, storage.length[admission.source]))",
        "length = torch.minimum(admission.forked, storage.length[admission.source]); "
        "storage.length.index_copy_(0, admission.rows, length); view = storage.view(admission.rows)",
        (f"{FORKS}::test_acceptance_after_a_fork_is_that_without",),
    ),
    Mutant(
        "a draft that has fallen behind is forked as if it had not",
        "drafters/model.py",
        "torch.minimum(admission.forked, storage.length[admission.source])",
        "admission.forked",
        (f"{FORKS}::test_fork_of_a_row_whose_draft_has_fallen_behind",),
    ),
    Mutant(
        "a stop token comes one token too late",
        "core/batch.py",
        "early = position < self.min_length[:, None]",
        "early = position <= self.min_length[:, None]",
        (ADMISSION,),
    ),
    Mutant(
        "a log-probability is read at the token's own node",
        "core/batch.py",
        "nodes = torch.nn.functional.pad(outcome.path, (1, 0)).clamp(min=0)",
        "nodes = torch.nn.functional.pad(outcome.path, (0, 1)).clamp(min=0)",
        (LOGPROBS,),
    ),
    Mutant(
        "the samples of a prompt share their noise",
        "api/requests.py",
        "split_seed(base, first + at)",
        "split_seed(base, first)",
        (SEEDS.format("one_seed_is_split_over_prompts_and_samples"),),
    ),
    Mutant(
        "prompts without seeds share their noise",
        "api/requests.py",
        "first = count if shared or option.seed is None else 0",
        "first = count if shared else 0",
        (SEEDS.format("without_a_seed_no_two_texts_of_two_calls_share_their_noise"),),
    ),
    Mutant(
        "a stop string ends the text with the step",
        "api/continuation.py",
        "                self._trim = (len(gain.tokens), gain.num_accepted, at + 1)\n                break",
        "                self._trim = (len(gain.tokens), gain.num_accepted, at + 1)",
        (STOPS,),
    ),
    Mutant(
        "what a stop string cuts is counted",
        "api/continuation.py",
        "if self._trim is None:",
        "if self._trim is not False:",
        (STOPS,),
    ),
    Mutant(
        "a stop string counts one token before min_tokens",
        "api/continuation.py",
        "armed = len(self._tokens) > self.params.min_tokens\n        stopped",
        "armed = len(self._tokens) >= self.params.min_tokens\n        stopped",
        (f"{STOPS}::test_min_tokens_hold_for_stop_strings",),
    ),
    Mutant(
        "the beginning of a stop string is shown",
        "text/stops.py",
        "shown = len(pending) - state.length",
        "shown = len(pending)",
        (STOPS,),
    ),
    Mutant(
        "a cancelled row runs on",
        "engine/scheduler.py",
        "        self.decoder.release([job.row])\n        del self._running",
        "        del self._running",
        (SCHEDULER,),
    ),
    Mutant(
        "an interrupted admission loses its requests",
        "engine/scheduler.py",
        "self._waiting.extendleft(reversed(left))",
        "del left",
        (f"{SCHEDULER}::test_an_interrupted_admission_loses_no_request",),
    ),
    Mutant(
        "a row whose admission failed serves as a prefix",
        "engine/scheduler.py",
        "if p.prefix is not None and self._held[p.prefix.row] else None",
        "if p.prefix is not None else None",
        (f"{SCHEDULER}::test_nobody_copies_from_a_row_whose_admission_failed",),
    ),
    Mutant(
        "a row is taken to hold less than it does",
        "engine/scheduler.py",
        "self._held[row].extend(report.tokens[row])",
        "self._held[row].extend(report.tokens[row][:-1])",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "a row is taken to hold its newest token",
        "engine/scheduler.py",
        "text[:-1] for row, text in self._held.items()",
        "text for row, text in self._held.items()",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "steps are taken plainly where drafts decide the tokens",
        "api/engine.py",
        "watched = isinstance(count, int) and rule.same_tokens and",
        "watched = isinstance(count, int) and",
        (f"{STATISTICS}::test_no_plain_steps_under",),
    ),
    Mutant(
        "kernel: a node of a chain sees those after it",
        "models/cpu/kernel/attention.h",
        "soften(&scores[(i * group + g) * ld], length + from + nodes[i].node + 1, ld);",
        "soften(&scores[(i * group + g) * ld], longest, ld);",
        (KERNEL,),
    ),
    Mutant(
        "kernel: a node of a tree sees its cousins",
        "models/cpu/kernel/attention.h",
        "if (mine[j]) path.push_back(length + j);",
        "path.push_back(length + j);",
        (KERNEL,),
    ),
    Mutant(
        "kernel: positions by node instead of depth",
        "models/cpu/kernel/attention.h",
        "length + call.depth[at.row * call.depth_step + at.node], model",
        "length + call.start + at.node, model",
        (KERNEL,),
    ),
    Mutant(
        "kernel: row 0's length for all rows",
        "models/cpu/kernel/attention.h",
        "length = call.length[row], from = call.start;",
        "length = call.length[0], from = call.start;",
        (KERNEL,),
    ),
    Mutant(
        "kernel: a view's rows are taken as the storage's",
        "models/cpu/kernel/attention.h",
        "call.row_index ? call.row_index[row] : row",
        "row",
        (KERNEL,),
    ),
    Mutant(
        "kernel: single columns are summed in another order",
        "models/cpu/kernel/scalar.h",
        "V four[4] = {a, V{}, V{}, V{}};",
        "for (int j = 1; j < int(sizeof a / sizeof a[0]); j++) a[0] += a[j], a[j] = 0; V four[4] = {a, V{}, V{}, V{}};",
        (INVARIANCE,),
    ),
    Mutant(
        "kernel: what is not valid keeps what memory held",
        "models/cpu/kernel/kernel.cpp",
        "if (!filled[row]) std::memset",
        "if (false) std::memset",
        (KERNEL,),
    ),
    Mutant(
        "commit a draft's tree as if it were a chain",
        "drafters/model.py",
        "torch.where(kept, slots + 1, -1)",
        "None",
        (f"{GROW}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
    Mutant(
        "commit the wrong path in the draft's cache",
        "drafters/model.py",
        "torch.where(kept, slots + 1, -1)",
        "torch.where(kept, outcome.path, -1)",
        (f"{GROW}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
    Mutant(
        "commit the root behind its path",
        "drafters/model.py",
        "self.cache.truncate(self.cache.length - rooted.long())",
        "pass",
        (f"{GROW}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
    Mutant(
        "siblings share a lane",
        "drafters/grow/draws.py",
        "lane=level.node)",
        "lane=level.first[0])",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "parents share a race",
        "drafters/grow/draws.py",
        "lane=level.first)",
        "lane=0)",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a tree one deeper than its limit",
        "drafters/grow/topology.py",
        "self.depths <= room[:, None]",
        "self.depths - 1 <= room[:, None]",
        (f"{GROWN_LIMITS}::test_no_node_stands_deeper_than_the_limit_leaves",),
    ),
    Mutant(
        "a child below an invalid parent",
        "drafters/grow/topology.py",
        "grows = take(above, step.level.parent) &",
        "grows = batch.active[:, None] &",
        (f"{GROWN_LIMITS}::test_a_padded_vocabulary_is_cut_or_filled_though_it_be_narrower_than_the_tree",),
    ),
    Mutant(
        "shared draws one position too far",
        "drafters/grow/topology.py",
        "batch.length[:, None] + depth, step.level",
        "batch.length[:, None] + depth + 1, step.level",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "greedy rows draw siblings from a law that has one token",
        "drafters/grow/draws.py",
        "    order = torch.where(rows, likeliest(logits, level.width), order)\n",
        "",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a law of the wrong parent",
        "drafters/grow/topology.py",
        "place = {node: i for i, node in enumerate(inner)}",
        "place = {node: 0 for node in inner}",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a rerank that drops parents",
        "drafters/grow/confident.py",
        "best = worth[:, 1:].sort(dim=-1, descending=True, stable=True).indices[:, : self.shape.num_drafted] + 1",
        "best = worth.shape[1] - worth[:, 1:].flip(1).sort(dim=-1, descending=True, stable=True)"
        ".indices[:, : self.shape.num_drafted] - 1",
        (CONFIDENT,),
    ),
    Mutant(
        "worth of a node without its path's",
        "drafters/grow/confident.py",
        "[..., None] + share).flatten(1)",
        "[..., None] * 0 + share).flatten(1)",
        (CONFIDENT,),
    ),
    Mutant(
        "expanded nodes take others' slots",
        "drafters/grow/confident.py",
        "above = place.gather(1, keep // width)",
        "above = place.gather(1, keep % place.shape[1])",
        (CONFIDENT,),
    ),
    Mutant(
        "finishers in reverse",
        "core/noise.py",
        "topk(count, dim=-1)",
        "topk(count, dim=-1, largest=False)",
        (NOISE,),
    ),
    Mutant(
        "a tree's value without its depth",
        "drafters/grow/optimal.py",
        "best(size - 1, levels - 1, 0)",
        "best(size - 1, levels, 0)",
        (OPTIMAL,),
    ),
)
