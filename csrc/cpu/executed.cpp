// Kernels of this backend that do exactly what their formulas say. The others say beside themselves what they do.
#include "families/executed.h"

namespace pb::kernels {

void executed_elements(const Launch&, Counts&) {}
void executed_dropout(const Launch&, Counts&) {}
void executed_reduction(const Launch&, Counts&) {}
void executed_cumulative(const Launch&, Counts&) {}
void executed_update(const Launch&, Counts&) {}

}  // namespace pb::kernels
