"""Mutants of the kernel's processors: whose text counts, when, and how often."""

from tests.mutants.mutant import PROCESSED, Mutant

KERNEL = "models/cpu/kernel/processing.h"

MUTANTS = (
    Mutant(
        "the kernel takes siblings for ancestors",
        KERNEL,
        "if (mine[m] && levels[m] > 0",
        "if (mine[0] && levels[m] > 0",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel sees one draft token too many",
        KERNEL,
        "std::min(node, paths_->depth)",
        "std::min(node + 1, paths_->depth)",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel's penalties see the root's text only",
        KERNEL,
        "std::count(path_.begin(), path_.end(), path_[i])",
        "0",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel's minimum length is one too long",
        KERNEL,
        "end_ < p_->late_until[e]",
        "end_ <= p_->late_until[e]",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel's minimum length is counted from the root",
        KERNEL,
        "end_ < p_->late_until[e]",
        "length_ < p_->late_until[e]",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel meets runs before the draft",
        KERNEL,
        "at(end_ - p_->num_before + i - 1)",
        "at(length_ - p_->num_before + i - 1)",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel forgets the prompt",
        KERNEL,
        "(count > 0 || p_->prompted[row_ * (p_->vocab + 1) + token])",
        "count > 0",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel's n-grams end where the draft begins",
        KERNEL,
        "for (; place < end_; place++)",
        "for (; place < length_; place++)",
        (PROCESSED,),
    ),
    Mutant(
        "the kernel takes the first row's text for all",
        KERNEL,
        "if (row != row_) enter(row);",
        "if (row_ < 0) enter(row);",
        (PROCESSED,),
    ),
)
