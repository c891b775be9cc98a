// Forward, fused drafting and linear layers in float64.
#include "units/forward.h"

PACELINE_EXPORT_FORWARD(double, float64)
