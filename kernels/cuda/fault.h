// What a kernel finds and the host throws.
#pragma once

#include <cstdint>

namespace sparsesync::cuda {

/// What is wrong with values that a kernel looked at.
enum class Fault : std::uint32_t {
  none,
  outside_range,   // a code's index outside its range
  not_increasing,  // a code's indices
  wrong_count,     // a code with another number of indices than announced
  no_row_there,    // a position that holds no row
  row_of_another,  // a row that is not of its partition
  not_in_union,    // aggregate: an index that the union does not have
};

/// Memory of the host that kernels write a Fault to (record_fault.h). The host reads it after a
/// synchronization. If several threads write, one of the faults remains.
using FaultWord = std::uint32_t;

}  // namespace sparsesync::cuda
