// Forward, fused drafting and linear layers in bfloat16.
#include "units/forward.h"

PACELINE_EXPORT_FORWARD(paceline::bf16, bfloat16)
