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
MODEL = "tests/drafters/test_model.py"
TREES = "tests/conformance/test_trees.py"

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
        "read = tree.max_depth - 1",
        "read = tree.max_depth",
        (MODEL,),
    ),
    Mutant(
        "verify with a law that was not sampled from",
        "drafters/model.py",
        "return token[:, 0], scores.softmax(-1)[:, 0]",
        "return token[:, 0], logits.softmax(-1)[:, 0]",
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
)
