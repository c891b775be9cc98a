"""Mutants of what the kernel takes up from hidden states, and of what a head shares."""

from tests.mutants.mutant import PANELS, RESUMED, STEM, Mutant

MUTANTS = (
    Mutant(
        "resume: who was behind stays where it stood",
        "models/cpu/kernel/forward.h",
        ": buffer(STREAM, --left);",
        ": buffer(STREAM, (--left, i));",
        (RESUMED,),
    ),
    Mutant(
        "resume: all nodes of a row get the first one's hidden state",
        "models/cpu/kernel/forward.h",
        " + at.node * call_.resumed_step",
        "",
        (RESUMED,),
    ),
    Mutant(
        "resume: keys of all nodes are made anew below",
        "models/cpu/kernel/forward.h",
        "at < joined; at++) pass(call_.layers[at], behind_, attention, walk);",
        "at < joined; at++) pass(call_.layers[at], nodes_, attention, walk);",
        (RESUMED,),
    ),
    Mutant(
        "ahead: the stem reads a token where its head does",
        "models/cpu/kernel/ahead.h",
        "Call below = one_depth(*chain.stem_call, chain, depth, &depth);",
        "const int64_t before = depth - 1;\n    Call below = one_depth(*chain.stem_call, chain, depth, &before);",
        (STEM,),
    ),
    Mutant(
        "ahead: what is recycled reaches the target",
        "models/cpu/kernel/ahead.h",
        "x[h] = narrow<T>(",
        "((T *)chain.hidden)[(row * (chain.depth + 1) + depth) * size + h] = x[h] = narrow<T>(",
        (STEM,),
    ),
    Mutant(
        "ahead: what is not valid gets hidden states",
        "models/cpu/kernel/ahead.h",
        "if (!call.valid[row * call.valid_step]) continue;",
        "",
        (STEM,),
    ),
    Mutant(
        "ahead: a stem of another precision is read as the head's",
        "models/cpu/runtime.py",
        "isinstance(stem.lm, CpuDecoder) and stem.lm.dtype == self.dtype",
        "isinstance(stem.lm, CpuDecoder)",
        (STEM,),
    ),
    Mutant(
        "panels: what a head shares with its target is laid again",
        "models/cpu/panels.py",
        "if holders[layer.weight.data_ptr()] == 1:",
        "if True:",
        (PANELS,),
    ),
    Mutant(
        "panels: a layer of two blocks is laid for each of them",
        "models/cpu/panels.py",
        "if layer not in laid:",
        "if True:",
        (PANELS,),
    ),
)
