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

/// Cuts the rows that several workers touched into batches: equal ones at first, then each has half
/// of the rows that are left.
class OwnerBatches {
 public:
  /// Equal batches that all rows would give.
  static constexpr Index kBatches = 16;
  /// A batch of so few rows is not halved: their imbalance does not matter.
  static constexpr Index kSmallest = 16;

  SPARSESYNC_HOST_DEVICE constexpr explicit OwnerBatches(Index rows)
      : rows_(rows), whole_(ceil_div(rows, kBatches)) {
    if (whole_ < kSmallest) whole_ = kSmallest;
  }

  /// Returns the next batch, which is empty once there are no more rows.
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

/// The change of an owner's load by a row: the owner sends the sum to n - 1 workers instead of its
/// part to one, and receives t - 1 parts instead of the sum.
struct OwnedRow {
  std::uint64_t sends;
  std::uint64_t receives;  // wraps to -1 for a row of one toucher

  /// Two workers each send a row that both touched, whoever owns it. It counts as sent all the
  /// same, so that owners are spread.
  SPARSESYNC_HOST_DEVICE constexpr OwnedRow(std::uint64_t workers, std::uint64_t touchers)
      : sends(workers > 2 ? workers - 2 : 1), receives(touchers - 2) {}

  /// The load of a worker that sends and receives so many rows, weighed by the changes that this
  /// row makes: with these weights the sum of the squared loads falls fastest.
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t load(std::uint64_t sent,
                                                      std::uint64_t received) const {
    return sends * sent + receives * received;
  }
  /// The load that a batch of such rows adds to all workers together.
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t load_of(const OwnerBatch& batch) const {
    return static_cast<std::uint64_t>(batch.size) * load(sends, receives);
  }
};

/// The row whose touchers stand for those of a batch.
SPARSESYNC_HOST_DEVICE constexpr Index middle_of(const OwnerBatch& batch) {
  return batch.begin + batch.size / 2;
}

}  // namespace sparsesync::detail
