"""Mutants of the CPU kernel."""

from tests.mutants.mutant import CHOICES, INVARIANCE, KERNEL, Mutant

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
    Mutant(
        "kernel: what reaches the goal is not enough for it",
        "models/cpu/kernel/boundary.h",
        "if (reached >= goal) return value;",
        "if (reached > goal) return value;",
        (CHOICES,),
    ),
    Mutant(
        "kernel: top-p takes its share of what top-k has dropped too",
        "models/cpu/kernel/sampling.h",
        "mass(size, highest, least, desk)",
        "mass(size, highest, NEVER<A>, desk)",
        (CHOICES,),
    ),
    Mutant(
        "kernel: picks use the noise of the position before",
        "models/cpu/kernel/sampling.h",
        "uint32_t(position), 0, 0",
        "uint32_t(position - 1), 0, 0",
        (CHOICES,),
    ),
    Mutant(
        "kernel: a listed runner has its neighbour's word",
        "models/cpu/kernel/race.h",
        "tokens[first + i] % 4 : 0]",
        "(tokens[first + i] + 1) % 4 : 0]",
        (CHOICES,),
    ),
    Mutant(
        "kernel: runners that would win by little are passed over",
        "models/cpu/kernel/race.h",
        "bar_ = value - (A(1e-4)",
        "bar_ = value + (A(0.3)",
        (CHOICES,),
    ),
)
