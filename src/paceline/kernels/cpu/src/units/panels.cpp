// Products with packed integers, for models of every precision.
#include "gemm/gemm_panels.h"

namespace paceline::panels {

template void gemm_panels<Int8Decoder>(const Matrix &, int, int, const float *, int, const EmitSums &);
template void gemm_panels<Int4Decoder>(const Matrix &, int, int, const float *, int, const EmitSums &);

}  // namespace paceline::panels
