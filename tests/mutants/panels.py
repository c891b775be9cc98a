"""Mutants of matrices in panels and of the kernel's threads."""

from tests.mutants.mutant import PANELS, PRODUCT, TEAM, Mutant

MUTANTS = (
    Mutant(
        "panels: every block's sums begin anew",
        "models/cpu/kernel/panels.h",
        "acc[m][v] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[m] + v * PAIRS);",
        "acc[m][v] = _mm512_setzero_ps();",
        (PRODUCT,),
    ),
    Mutant(
        "panels: the second half of a panel that is not full is left out",
        "models/cpu/kernel/panels.h",
        "wide > PAIRS ? (1 << (wide - PAIRS)) - 1 : 0",
        "0",
        (PRODUCT,),
    ),
    Mutant(
        "panels: rows of a tile are those of the first tile",
        "models/cpu/kernel/panels.h",
        "*with = x + m * ldx + 2 * at;",
        "*with = x + 2 * at;",
        (PRODUCT,),
    ),
    Mutant(
        "panels: a group of four bits begins with the sums of the one before",
        "models/cpu/kernel/packed.h",
        "acc[m][v] = GROUPED || first ?",
        "acc[m][v] = first ?",
        (PRODUCT,),
    ),
    Mutant(
        "panels: all groups have the scales of the first",
        "models/cpu/kernel/packed.h",
        "first = false, scales += wide)",
        "first = false)",
        (PRODUCT,),
    ),
    Mutant(
        "panels: bytes lose their signs",
        "models/cpu/kernel/packed.h",
        "raw.bytes, sign, 0xf8);",
        "raw.bytes, sign, 0xf0);",
        (PRODUCT,),
    ),
    Mutant(
        "panels: sums of bytes have the scales of other rows",
        "models/cpu/kernel/packed.h",
        "_mm512_permutex2var_ps(even, _mm512_load_si512(FOURS[v]), odd)",
        "v ? odd : even",
        (PRODUCT,),
    ),
    Mutant(
        "panels: a block of long rows begins with the first block's scales",
        "models/cpu/kernel/packed.h",
        "w.scales_from(n, 2 * at / Nibbles::BLOCK)",
        "w.scales_from(n, 0)",
        (PRODUCT,),
    ),
    Mutant(
        "panels: a model that was converted is read as before",
        "models/cpu/program.py",
        "if isinstance(layer, PackedLinear) and self.dtype != torch.bfloat16:",
        "if False:",
        (PANELS,),
    ),
    Mutant(
        "panels: rows are laid one after another",
        "models/cpu/panels.py",
        "return [piece.reshape(piece.shape[0], piece.shape[2], piece.shape[1]) for",
        "return [piece.transpose(1, 2) for",
        (PANELS,),
    ),
    Mutant(
        "panels: a token of the last panel is looked up as if it were full",
        "models/cpu/kernel/forward.h",
        "wide = std::min(model_.panel_rows, model_.vocab - (token - lane));",
        "wide = model_.panel_rows;",
        (PANELS,),
    ),
    Mutant(
        "panels: weights that are trained are laid out too",
        "models/cpu/panels.py",
        " and not weight.requires_grad",
        "",
        (PANELS,),
    ),
    Mutant(
        "team: a phase is over when its pieces are taken",
        "models/cpu/kernel/team.h",
        "phase.done.load(std::memory_order_acquire) < pieces",
        "phase.taken.load(std::memory_order_acquire) < pieces",
        (TEAM,),
    ),
    Mutant(
        "team: a forked process waits for threads that it does not have",
        "models/cpu/kernel/team.h",
        "if (team->process_ != getpid()) new (team) Team;",
        "",
        (TEAM,),
    ),
)
