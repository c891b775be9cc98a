"""Mutants of the CPU kernel."""

from tests.mutants.mutant import AHEAD, ENDING, INVARIANCE, KERNEL, PRODUCT, Mutant

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
        "kernel: every block's sums begin anew",
        "models/cpu/kernel/dots.h",
        "acc[m][n] = first ? Vec<T>{} : sums.of[m * N + n];",
        "acc[m][n] = Vec<T>{};",
        (PRODUCT,),
    ),
    Mutant(
        "kernel: one block's sums serve all tiles that take turns",
        "models/cpu/kernel/dots.h",
        "sums[g], at == 0",
        "sums[0], at == 0",
        (PRODUCT,),
    ),
    Mutant(
        "kernel: what runs ahead reads all tokens at one place",
        "models/cpu/kernel/kernel.cpp",
        "next.start = beyond;",
        "next.start = 0;",
        (AHEAD,),
    ),
    Mutant(
        "kernel: what runs ahead passes the limits of its row",
        "models/cpu/kernel/kernel.cpp",
        "if (plan->valid[row * width + depth])",
        "if (true)",
        (AHEAD,),
    ),
    Mutant(
        "kernel: a text goes on after its stop token",
        "models/cpu/kernel/ending.h",
        "if (stops) until = at + 1;",
        "",
        (ENDING,),
    ),
    Mutant(
        "kernel: an idle row's steps are not counted",
        "models/cpu/kernel/ending.h",
        "t.steps[row] += 1;",
        "t.steps[row] += active;",
        (ENDING,),
    ),
)
