"""Mutants of what the kernel takes up from hidden states, and of what a head shares."""

from tests.mutants.mutant import AHEAD, ENDING, ENTRANCE, PANELS, RESUMED, STEM, Mutant

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
        "Call call = one_depth(*chain.stem_call, chain, depth, &depth);",
        "const int64_t last = depth ? depth - 1 : 0;\n"
        "    Call call = one_depth(*chain.stem_call, chain, depth, &last);",
        (STEM,),
    ),
    Mutant(
        "ahead: what is recycled reaches the target",
        "models/cpu/kernel/ahead.h",
        "x[h] = narrow<T>(",
        "((T *)chain.hidden)[(row * width + depth) * size + h] = x[h] = narrow<T>(",
        (STEM,),
    ),
    Mutant(
        "ahead: what is not valid gets hidden states",
        "models/cpu/kernel/ahead.h",
        "if (!chain.valid[row * width + depth]) continue;",
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
        "ahead: the root's state lies behind all that may be missing",
        "models/cpu/kernel/ahead.h",
        "states.first + row * states.row_step + last * states.step, root",
        "states.first + row * states.row_step + chain.most * states.step, root",
        (STEM,),
    ),
    Mutant(
        "ahead: a draft goes on where the cache ended before the root was read",
        "models/cpu/kernel/ahead.h",
        "lengths[row] = call.length[row] + last + 1;",
        "lengths[row] = call.length[row] + 1;",
        (AHEAD,),
    ),
    Mutant(
        "ahead: tokens that are missing are one too old",
        "models/cpu/kernel/ahead.h",
        "chain.length[row] - 1 - last + node]",
        "chain.length[row] - 2 - last + node]",
        (AHEAD,),
    ),
    Mutant(
        "ahead: states enter without their norm",
        "models/cpu/kernel/ahead.h",
        "linear<T>(product, (const T *)normed.data(),",
        "linear<T>(product, (const T *)given.first,",
        (ENTRANCE,),
    ),
    Mutant(
        "ahead: an input_projection is not looked for anew",
        "models/cpu/runtime.py",
        "if self._input_projection is None or self._input_projection[0] != place:",
        "if self._input_projection is None:",
        (ENTRANCE,),
    ),
    Mutant(
        "ahead: a chain begins beyond its row's limit",
        "models/cpu/kernel/ending.h",
        "t.limit[row] - length - 1, longest",
        "t.limit[row] - length, longest",
        (ENDING,),
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
