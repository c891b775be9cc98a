"""Mutants of packed weights, of their kernels, and of the thread pool."""

from tests.mutants.mutant import GEMM, PACKED_WEIGHTS, THREAD_POOL, Mutant

MUTANTS = (
    Mutant(
        "packed gemm: every block restarts the sums",
        "kernels/cpu/src/gemm/gemm_bf16.h:panel_tile",
        "$acc[$m][$v] = $first ? _mm512_setzero_ps() : _mm512_loadu_ps($sums[$m] + $v * $PAIRS);",
        "$acc[$m][$v] = _mm512_setzero_ps();",
        (GEMM,),
    ),
    Mutant(
        "packed gemm: the second half of a partial panel is left out",
        "kernels/cpu/src/gemm/gemm_bf16.h:LaneMask::LaneMask",
        "$wide > $PAIRS ? (1 << ($wide - $PAIRS)) - 1 : 0",
        "0",
        (GEMM,),
    ),
    Mutant(
        "packed gemm: every tile reads the rows of the first",
        "kernels/cpu/src/gemm/gemm_bf16.h:gemm_bf16",
        "*$with = $x + $m * $ldx + 2 * $at;",
        "*$with = $x + 2 * $at;",
        (GEMM,),
    ),
    Mutant(
        "packed int4 gemm: a group starts with the sums of the previous one",
        "kernels/cpu/src/gemm/gemm_quantized_bf16.h:quantized_panel_tile",
        "$acc[$m][$v] = $GROUPED || $first ?",
        "$acc[$m][$v] = $first ?",
        (GEMM,),
    ),
    Mutant(
        "packed int4 gemm: all groups use the scales of the first",
        "kernels/cpu/src/gemm/gemm_quantized_bf16.h:quantized_panel_tile",
        "$first = false, $scales += $wide)",
        "$first = false)",
        (GEMM,),
    ),
    Mutant(
        "packed int8 gemm: weights lose their signs",
        "kernels/cpu/src/gemm/gemm_quantized_bf16.h:Int8PanelDecoder::part",
        "$raw.$bytes, $sign, 0xf8);",
        "$raw.$bytes, $sign, 0xf0);",
        (GEMM,),
    ),
    Mutant(
        "packed int8 gemm: sums are scaled by other rows' scales",
        "kernels/cpu/src/gemm/gemm_quantized_bf16.h:reorder_and_scale",
        "_mm512_permutex2var_ps($even, _mm512_load_si512($FOURS[$v]), $odd)",
        "$v ? $odd : $even",
        (GEMM,),
    ),
    Mutant(
        "packed int4 gemm: a block of long rows starts with the first block's scales",
        "kernels/cpu/src/gemm/gemm_quantized_bf16.h:gemm_quantized_panels",
        "$w.$scales_from($n, 2 * $at / $Nibbles::$BLOCK)",
        "$w.$scales_from($n, 0)",
        (GEMM,),
    ),
    Mutant(
        "packed weights: a packed model of another dtype is accepted",
        "models.cpu.program:_Writer.linear",
        "isinstance($layer, $PanelLinear) and self.dtype != torch.bfloat16",
        "False",
        (PACKED_WEIGHTS,),
    ),
    Mutant(
        "packed weights: rows are packed in the wrong order",
        "models.cpu.packed_weights:_units_of_panels",
        "$piece.reshape($piece.shape[0], $piece.shape[2], $piece.shape[1])",
        "$piece.transpose(1, 2)",
        (PACKED_WEIGHTS,),
    ),
    Mutant(
        "packed weights: an embedding in the last panel is read as if the panel were full",
        "kernels/cpu/src/step/forward.h:copy_embedding",
        "$wide = std::min($model.$packed_rows, $model.$vocab - ($token - $node));",
        "$wide = $model.$packed_rows;",
        (PACKED_WEIGHTS,),
    ),
    Mutant(
        "packed weights: trainable weights are packed too",
        "models.cpu.packed_weights:_is_packable",
        "$fits_packed($weight, $packed_width()) and (not $weight.requires_grad)",
        "$fits_packed($weight, $packed_width())",
        (PACKED_WEIGHTS,),
    ),
    Mutant(
        "thread pool: a phase ends when its chunks are taken",
        "kernels/cpu/src/thread_pool.h:Worker::parallel_for",
        "$phase.$done.load(std::memory_order_acquire) < $pieces",
        "$phase.taken.load(std::memory_order_acquire) < $pieces",
        (THREAD_POOL,),
    ),
    Mutant(
        "thread pool: a forked process waits for threads that it does not have",
        "kernels/cpu/src/thread_pool.h:instance",
        "if ($pool->$process != getpid()) new ($pool) $Team;",
        "",
        (THREAD_POOL,),
    ),
)
