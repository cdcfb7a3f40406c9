// Arithmetic of choose_owners() that the CPU and the GPU share: batches of rows, and loads of
// workers.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"

namespace sparsesync::detail {

/// Consecutive rows among those that several workers touched.
struct OwnerBatch {
  Index begin = 0;
  Index size = 0;
};

/// Divides the rows that several workers touched into batches. The first batches have equal sizes;
/// then each has half of the remaining rows.
class OwnerBatches {
 public:
  /// Number of equal batches that would hold all rows.
  static constexpr Index kBatches = 16;
  /// Size up to which a batch is not halved, because its imbalance does not matter.
  static constexpr Index kSmallest = 16;

  SPARSESYNC_HOST_DEVICE constexpr explicit OwnerBatches(Index rows)
      : rows_(rows), whole_(ceil_div(rows, kBatches)) {
    if (whole_ < kSmallest) whole_ = kSmallest;
  }

  /// Returns the next batch. It is empty after the last row.
  SPARSESYNC_HOST_DEVICE constexpr OwnerBatch next() {
    const Index left = rows_ - at_;
    const Index size = left > whole_ ? whole_ : left > kSmallest ? ceil_div<Index>(left, 2) : left;
    at_ += size;
    return {at_ - size, size};
  }

 private:
  Index rows_;
  Index whole_;
  Index at_ = 0;
};

/// The change of an owner's load by a row that t of n workers touched. The owner sends the sum to n
/// - 1 workers instead of its part to one. It receives t - 1 parts instead of the sum.
struct OwnedRow {
  std::uint64_t sends;
  std::uint64_t receives;  // wraps to -1 for a row that one worker touched

  /// Computes the change from the number of workers that touched the row. With two workers, each
  /// sends a row that both touched, independent of its owner. The row counts as sent nevertheless,
  /// so that owners are spread.
  SPARSESYNC_HOST_DEVICE constexpr OwnedRow(std::uint64_t workers, std::uint64_t touchers)
      : sends(workers > 2 ? workers - 2 : 1), receives(touchers - 2) {}

  /// Returns the load of a worker that sends and receives these numbers of rows, weighted by the
  /// changes that this row makes. With these weights, the sum of the squared loads decreases
  /// fastest.
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t load(std::uint64_t sent,
                                                      std::uint64_t received) const {
    return sends * sent + receives * received;
  }
  /// Returns the total load that a batch of such rows adds to all workers.
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t load_of(const OwnerBatch& batch) const {
    return static_cast<std::uint64_t>(batch.size) * load(sends, receives);
  }
};

/// Returns the row that represents a batch. The number of workers that touched it stands for all
/// rows of the batch.
SPARSESYNC_HOST_DEVICE constexpr Index middle_of(const OwnerBatch& batch) {
  return batch.begin + batch.size / 2;
}

}  // namespace sparsesync::detail
