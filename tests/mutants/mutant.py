"""What a mutant is, and where the ordinary tests are that should notice it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake to plant: in the definition that ``anchor`` names, ``pattern`` becomes ``replacement``.

    The anchor is ``module.path:Class.function`` for Python and ``folder/file.h:Class::function`` for C++, relative to
    the package; without a colon it is the whole file. Patterns are those of ``match_python`` and ``match_cpp``, and
    match exactly once. ``tests`` are where to look first.
    """

    name: str
    anchor: str
    pattern: str
    replacement: str
    tests: tuple[str, ...]


CONFORMANCE = "tests/conformance/test_conformance.py"
DISTRIBUTIONS = "tests/verifiers/test_distributions_sampled.py"
NOISE = "tests/core/test_noise.py"
SAMPLING = "tests/core/test_sampling.py"
CHAINS = "tests/distributions/test_chains.py"
BLOCK = "tests/verifiers/test_block.py"
LOSSY_LENIENT = "tests/verifiers/test_lossy_lenient.py"
LOSSY_TYPICAL = "tests/verifiers/test_lossy_typical.py"
MATCH = "tests/verifiers/test_match.py"
RECURSIVE = "tests/verifiers/test_recursive.py"
SPECTR = "tests/verifiers/test_spectr.py"
TRAVERSAL = "tests/verifiers/test_traversal.py"
MODEL = "tests/drafters/test_model.py"
TREES = "tests/conformance/test_trees.py"
TREE_GROWERS = "tests/drafters/test_tree_growers.py"
TREE_GROWER_LIMITS = "tests/drafters/test_tree_grower_limits.py"
CONFIDENT = "tests/drafters/test_confident.py"
OPTIMAL = "tests/drafters/test_optimal_tree.py"
ADMISSION = "tests/core/test_admission.py"
LOGPROBS = "tests/core/test_logprobs.py"
FORKS = "tests/conformance/test_forks.py"
SCHEDULER = "tests/engine/test_scheduler.py"
STOPS = "tests/api/test_stops.py"
STATISTICS = "tests/api/test_statistics.py"
GENERATE = "tests/api/test_generate.py"
KERNEL = "tests/kernels/cpu/test_kernel.py"
GEMM = "tests/kernels/cpu/test_gemm.py"
FUSED_DRAFTING = "tests/kernels/cpu/test_fused_drafting.py"
RESUMED = "tests/kernels/cpu/test_resume.py"
SHARED_LAYERS = "tests/kernels/cpu/test_shared_layers.py"
INPUT_PROJECTION = "tests/kernels/cpu/test_input_projection.py"
PACKED_WEIGHTS = "tests/kernels/cpu/test_packed_weights.py"
THREAD_POOL = "tests/kernels/cpu/test_thread_pool.py"
KERNEL_BATCH = "tests/kernels/cpu/test_batch.py"
INVARIANCE = "tests/kernels/cpu/test_invariance.py"
OPERATORS = "tests/kernels/cpu/test_operators.py"
CONTEXTS = "tests/kernels/cpu/test_contexts.py"
KERNEL_SAMPLING = "tests/kernels/cpu/test_sampling.py"
KERNEL_PROCESSING = "tests/kernels/cpu/test_processing.py"
PROCESSING = "tests/core/test_processing.py"
OPTIONS = "tests/conformance/test_options.py"
PROCESSED_DISTRIBUTIONS = "tests/distributions/test_processed.py"
RUNNER = "tests/conformance/test_runner.py"
