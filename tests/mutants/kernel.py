"""Mutants of the CPU kernel."""

from tests.mutants.mutant import INVARIANCE, KERNEL, Mutant

MUTANTS = (
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
)
