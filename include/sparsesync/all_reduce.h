// Sparse all-reduce of one tensor with a single blocking call per step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sparsesync/matrix.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Holds rows of a tensor and their values. A view.
template <typename T>
struct SparseRows {
  std::span<const Index> indices;  ///< rows of the tensor, increasing
  std::span<const T> values;       ///< `[indices.size(), width]`
};

/// Sums one tensor's row-sparse gradients over all workers, with the scheme `balanced`.
///
/// Use Session (session.h) for buckets of several tensors, for other schemes, for GPUs, or for
/// phases that run in the background. Owns the transport and all memory that it needs. One thread
/// at a time may call it. All workers make the same calls. See examples/cpp/threads.cpp.
/// @code
/// SparseAllReduce<float> all_reduce(network.join(rank), rows, width);
/// const SparseRows<float> sum = all_reduce(indices, values);
/// @endcode
template <typename T>
class SparseAllReduce {
 public:
  /// Joins the all-reduce. Waits for all workers and compares the tensor's shape.
  /// @param transport  this worker's endpoint of the network
  /// @param rows       rows of the tensor
  /// @param width      elements per row
  /// @throws AgreementError if the workers' shapes differ
  /// @throws InputError
  /// @throws PeerLostError
  /// @throws Error the other errors of Session
  SparseAllReduce(std::unique_ptr<Transport> transport, Index rows, Index width);
  ~SparseAllReduce();
  SparseAllReduce(SparseAllReduce&&) noexcept;
  SparseAllReduce& operator=(SparseAllReduce&&) noexcept;

  /// Sums the rows of all workers. Blocks until this worker has the sum.
  /// @param indices  `[nnz]`, in any order; values of a repeated row are added
  /// @param values   `[nnz, width]`
  /// @return the sum, the same bits on all workers; valid until the next call
  /// @throws InputError if an index is outside the tensor, in which case the other workers throw
  ///     RefusedError; or if `values` has the wrong size, which is found before anything is sent
  /// @throws Error the other errors of Session::wait()
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
