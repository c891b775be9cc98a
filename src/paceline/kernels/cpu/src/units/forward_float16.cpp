// Forward, fused drafting and linear layers in float16.
#include "units/forward.h"

PACELINE_EXPORT_FORWARD(paceline::f16, float16)
