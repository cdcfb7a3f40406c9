// The index sets of one step of a trace, tensor by tensor and as they lie in row spaces.
#pragma once

#include <span>
#include <vector>

#include "analysis/trace/trace.h"
#include "schemes/bucket.h"
#include "schemes/index_sets.h"

namespace sparsesync {

/// Of each tensor, the rows that each worker touched at a step.
/// @throws InputError if a file of the trace is not what its header says
std::vector<OwnedIndexSets> tensor_sets(const Trace& trace, int step);

/// The same of each row space of those tensors.
std::vector<OwnedIndexSets> space_sets(const std::vector<OwnedIndexSets>& of_tensors,
                                       std::span<const RowSpace> spaces);

}  // namespace sparsesync
