"""What a mutant is, and where the ordinary tests are that should notice it."""

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
SAMPLING = "tests/core/test_sampling.py"
CHAINS = "tests/laws/test_chains.py"
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
PRODUCT = "tests/models/cpu/test_product.py"
AHEAD = "tests/models/cpu/test_ahead.py"
RESUMED = "tests/models/cpu/test_resume.py"
STEM = "tests/models/cpu/test_stem.py"
ENTRANCE = "tests/models/cpu/test_entrance.py"
PANELS = "tests/models/cpu/test_panels.py"
TEAM = "tests/models/cpu/test_team.py"
ENDING = "tests/models/cpu/test_ending.py"
INVARIANCE = "tests/models/cpu/test_invariance.py"
CHOICES = "tests/models/cpu/test_sampling.py"
PROCESSED = "tests/models/cpu/test_processing.py"
PROCESSING = "tests/core/test_processing.py"
OPTIONS = "tests/conformance/test_options.py"
LAWFUL_OPTIONS = "tests/laws/test_processed.py"
