"""Mutants of the kernel's operators and contexts."""

from tests.mutants.mutant import CONTEXTS, INPUT_PROJECTION, OPERATORS, Mutant

MUTANTS = (
    Mutant(
        "operators: a fake has one axis too few",
        "kernels.cpu.sampling:_tokens_of",
        "$logits.shape[:2]",
        "$logits.shape[:1]",
        (OPERATORS,),
    ),
    Mutant(
        "operators: a fake has the precision of the logits",
        "kernels.cpu.sampling:_scores_of",
        "torch.promote_types($logits.dtype, torch.float32)",
        "$logits.dtype",
        (OPERATORS,),
    ),
    Mutant(
        "operators: the forward does not declare that it writes the logits",
        "models.cpu.forward:forward",
        '("cache_keys", "cache_values", "logits", "hidden")',
        '("cache_keys", "cache_values", "hidden")',
        (OPERATORS,),
    ),
    Mutant(
        "operators: the traced call ignores the kernel",
        "kernels.cpu.operators:kernel_op",
        "torch.compiler.substitute_in_graph($function, skip_signature_check=True)($traced)",
        "pass",
        (OPERATORS,),
    ),
    Mutant(
        "contexts: all caches share one",
        "models.cpu.decoder:CpuDecoder.new_cache",
        "Context()",
        "globals().setdefault('context', Context())",
        (CONTEXTS,),
    ),
    Mutant(
        "contexts: one lock for all",
        "kernels/cpu/src/step/context.h:Context",
        "std::mutex $mutex;",
        "static inline std::mutex $mutex;",
        (CONTEXTS,),
    ),
    Mutant(
        "contexts: the activations of a prompt are kept",
        "kernels/cpu/src/step/context.h:StepMemory::free_large",
        "> $KEPT_BYTES",
        "> 1024 * $KEPT_BYTES",
        (CONTEXTS,),
    ),
    Mutant(
        "contexts: freed when any part of the cache is",
        "core.cache:SlotCache.part",
        "return $part",
        "$part.context = None\nreturn $part",
        (CONTEXTS,),
    ),
    Mutant(
        "operators: a handle names the projection that was compiled first",
        "models.cpu.forward:draft_fused",
        "INPUT_PROJECTIONS[$input_projection]",
        "INPUT_PROJECTIONS[min(INPUT_PROJECTIONS)]",
        (INPUT_PROJECTION,),
    ),
)
