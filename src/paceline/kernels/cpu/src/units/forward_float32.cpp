// Forward, fused drafting and linear layers in float32.
#include "units/forward.h"

PACELINE_EXPORT_FORWARD(float, float32)
