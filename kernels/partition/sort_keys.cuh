// RowGroups for kernels: the same results without divisions, and in 32-bit words if these hold all
// rows and groups. For kernel sources only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/views.h"
#include "kernels/cuda/divider.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync::cuda {

/// RowGroups, computed in words of type std::uint32_t or std::uint64_t.
template <typename Word>
class Places {
 public:
  explicit Places(const RowGroups& groups)
      : last_row_(static_cast<Word>(groups.bijection().rows() - 1)),
        mask_(static_cast<Word>(groups.bijection().mask())),
        shift_(groups.bijection().shift()),
        groups_(static_cast<Word>(groups.groups())),
        offset_(static_cast<Word>(groups.offset())),
        by_groups_(groups_) {
    for (int i = 0; i < Bijection::kRounds; ++i) {
      add_[i] = static_cast<Word>(groups.bijection().round(i).add);
      multiply_[i] = static_cast<Word>(groups.bijection().round(i).multiply);
      inverse_[i] = static_cast<Word>(groups.bijection().round(i).inverse);
    }
  }

  /// Computes RowGroups::locate(). For an invalid row, returns any valid place.
  __device__ RowGroups::Place locate(Index row) const {
    const auto [position, residue] = by_groups_.divide(forward(within(row)));
    const Word group = residue + offset_;
    return {static_cast<Index>(group < groups_ ? group : group - groups_),
            static_cast<Index>(position)};
  }

  /// Computes RowGroups::row() for the group with this residue. For an empty position, returns any
  /// valid row.
  __device__ Index row(Word residue, Index position) const {
    return static_cast<Index>(
        backward(within(position * static_cast<Index>(groups_) + static_cast<Index>(residue))));
  }

 private:
  /// Clamps a row or an image: cycle walking from any other number might never return below R.
  __device__ Word within(Index number) const {
    return static_cast<std::uint64_t>(number) <= last_row_ ? static_cast<Word>(number) : last_row_;
  }

  /// Computes Bijection::forward().
  __device__ Word forward(Word x) const {
    do {
      for (int i = 0; i < Bijection::kRounds; ++i) {
        x = (x + add_[i]) & mask_;
        x = x ^ (x >> shift_);
        x = (x * multiply_[i]) & mask_;
      }
      x = x ^ (x >> shift_);
    } while (x > last_row_);
    return x;
  }

  /// Computes Bijection::backward().
  __device__ Word backward(Word x) const {
    do {
      x = x ^ (x >> shift_);
      for (int i = Bijection::kRounds - 1; i >= 0; --i) {
        x = (x * inverse_[i]) & mask_;
        x = x ^ (x >> shift_);
        x = (x - add_[i]) & mask_;
      }
    } while (x > last_row_);
    return x;
  }

  Word last_row_;
  Word mask_;
  unsigned shift_;
  Word groups_;
  Word offset_;
  Divider<Word> by_groups_;
  Word add_[Bijection::kRounds];
  Word multiply_[Bijection::kRounds];
  Word inverse_[Bijection::kRounds];
};

/// Calls `body` with the Places of these groups.
template <typename Body>
void with_places(const RowGroups& groups, Body&& body) {
  // residue + offset is below 2 * groups, so 2^31 groups fit into 32 bits.
  if (groups.bijection().rows() <= Index{1} << 32 && groups.groups() <= Index{1} << 31) {
    return body(Places<std::uint32_t>(groups));
  }
  body(Places<std::uint64_t>(groups));
}

}  // namespace sparsesync::cuda
