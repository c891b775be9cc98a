"""Mutants of the kernel's logits processors: which tokens count, when, and how often."""

from tests.mutants.mutant import KERNEL_PROCESSING, Mutant

MUTANTS = (
    Mutant(
        "the kernel takes siblings for ancestors",
        "kernels/cpu/src/sampling/logits_processors.h:collect_path",
        "if ($mine[$m] && $levels[$m] > 0",
        "if ($mine[0] && $levels[$m] > 0",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel sees one draft token too many",
        "kernels/cpu/src/sampling/logits_processors.h:collect_path",
        "std::min($node, $paths->$depth)",
        "std::min($node + 1, $paths->$depth)",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel's penalties see the tokens up to the root only",
        "kernels/cpu/src/sampling/logits_processors.h:penalise",
        "std::count($path.begin(), $path.end(), $path[$i])",
        "0",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel's minimum length is one too long",
        "kernels/cpu/src/sampling/logits_processors.h:ban_late",
        "$end < $p->$late_until[$e]",
        "$end <= $p->$late_until[$e]",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel's minimum length is counted from the root",
        "kernels/cpu/src/sampling/logits_processors.h:ban_late",
        "$end < $p->$late_until[$e]",
        "length_ < $p->$late_until[$e]",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel matches sequences before the draft",
        "kernels/cpu/src/sampling/logits_processors.h:add_sequences",
        "$at($end - $p->$num_before + $i - 1)",
        "$at(length_ - $p->$num_before + $i - 1)",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel forgets the prompt",
        "kernels/cpu/src/sampling/logits_processors.h:penalised",
        "($count > 0 || $p->$prompted[$row * ($p->$vocab + 1) + $token])",
        "$count > 0",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel's n-grams end where the draft begins",
        "kernels/cpu/src/sampling/logits_processors.h:ban_repeats",
        "for (; $place < end_; $place++)",
        "for (; $place < length_; $place++)",
        (KERNEL_PROCESSING,),
    ),
    Mutant(
        "the kernel uses the first row's tokens for all",
        "kernels/cpu/src/sampling/logits_processors.h:ProcessorRunner",
        "if ($row != $row2) $enter($row);",
        "if ($row2 < 0) $enter($row);",
        (KERNEL_PROCESSING,),
    ),
)
