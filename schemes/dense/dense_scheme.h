// Base class of dense_ring and dense_direct: the flat arrays and their chunks.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/views.h"
#include "schemes/bucket_input.h"
#include "schemes/cost.h"
#include "schemes/dense/flat_array.h"
#include "schemes/scheme.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// A scheme that divides a flat array into one even chunk for each worker, which owns its chunk's
/// sums.
class DenseScheme : public Scheme {
 public:
  bool list_owned(std::vector<OwnedPart>& parts) const override;
  std::optional<Imbalance> imbalance(std::span<const IndexSets>) const override {
    return Imbalance{};
  }

 protected:
  explicit DenseScheme(const SchemeEnvironment& environment);

  /// Writes this worker's gradients to the array of sums.
  void write_gradients(BucketInput& input);
  /// Returns a worker's chunk of a round's part of the flat array.
  IndexRange chunk_of(Rank owner, Round round) const;
  /// Uses the array of sums if sums have the values' dtype.
  std::byte* value_bytes() const { return own_sums_ ? sums_.data() : values_.data(); }
  /// Rounds a range of the array of sums to the array of values.
  void round_to_values(IndexRange elements, double scale);

  FlatArray flat_sums_;
  FlatArray flat_values_;
  bool own_sums_;
  Buffer<std::byte> sums_;
  Buffer<std::byte> values_;

 private:
  IndexRange all() const { return {0, flat_sums_.elements()}; }
};

/// Returns the work of writing a worker's gradients to the flat array.
Work work_of_writing(const Workload& workload);

}  // namespace sparsesync
