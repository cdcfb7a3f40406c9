// The simple case: one tensor's gradients, summed over all workers by one call a step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sparsesync/matrix.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Rows of a tensor and their values. A view.
template <typename T>
struct SparseRows {
  std::span<const Index> indices;  // increasing
  std::span<const T> values;       // [indices.size(), width]
};

/// Sums one tensor's row-sparse gradients over all workers, step after step, by the scheme
/// `balanced`. Buckets, other schemes and background phases are Session's (session.h).
/// @code
/// SparseAllReduce<float> all_reduce(network.join(rank), rows, width);
/// const SparseRows<float> sum = all_reduce(indices, values);
/// @endcode
template <typename T>
class SparseAllReduce {
 public:
  /// Agrees with all workers on the tensor's shape.
  /// @param transport  this worker's end of the network
  /// @throws AgreementError where workers differ, what Session throws
  SparseAllReduce(std::unique_ptr<Transport> transport, Index rows, Index width);
  ~SparseAllReduce();
  SparseAllReduce(SparseAllReduce&&) noexcept;
  SparseAllReduce& operator=(SparseAllReduce&&) noexcept;

  /// Sums all workers' rows. Called by all of them alike; waits for the sum.
  /// @param indices  any order; repeats are summed
  /// @param values   [indices.size(), width]
  /// @return the same on all workers; valid until the next call
  /// @throws InputError for an index outside of the tensor, or values that are not as many; what
  ///         Session::wait() throws
  SparseRows<T> operator()(std::span<const Index> indices, std::span<const T> values);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

extern template class SparseAllReduce<float>;
extern template class SparseAllReduce<double>;
extern template class SparseAllReduce<std::int32_t>;
extern template class SparseAllReduce<std::int64_t>;

}  // namespace sparsesync
