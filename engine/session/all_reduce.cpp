#include "sparsesync/all_reduce.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

#include "kernels/base/dtype.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"

namespace sparsesync {

template <typename T>
struct SparseAllReduce<T>::State {
  State(std::unique_ptr<Transport> transport, Index rows, Index width)
      : session(std::move(transport), memory),
        bucket(session.register_bucket(
            {"all_reduce", {{"tensor", rows, width, ValueTraits<T>::dtype}}})),
        width(width) {}

  HostMemory memory;
  Session session;
  BucketId bucket;
  Index width;
};

template <typename T>
SparseAllReduce<T>::SparseAllReduce(std::unique_ptr<Transport> transport, Index rows, Index width)
    : state_(std::make_unique<State>(std::move(transport), rows, width)) {}
template <typename T>
SparseAllReduce<T>::~SparseAllReduce() = default;
template <typename T>
SparseAllReduce<T>::SparseAllReduce(SparseAllReduce&&) noexcept = default;
template <typename T>
SparseAllReduce<T>& SparseAllReduce<T>::operator=(SparseAllReduce&&) noexcept = default;

template <typename T>
SparseRows<T> SparseAllReduce<T>::operator()(std::span<const Index> indices,
                                             std::span<const T> values) {
  // A division, because a multiplication could overflow.
  const auto width = static_cast<std::size_t>(state_->width);
  if (values.size() / width != indices.size() || values.size() % width != 0) {
    throw InputError(
        fmt::format("{} values for {} rows of width {}: give width values for each row",
                    values.size(), indices.size(), width));
  }
  const std::array gradients{Gradient::row_sparse(indices, std::as_bytes(values).data())};
  state_->session.synchronize(state_->bucket, gradients);
  const TensorResult sum = state_->session.result(state_->bucket, 0);
  const auto* const data = reinterpret_cast<const T*>(sum.values.data);
  return {sum.indices, {data, sum.indices.size() * width}};
}

template class SparseAllReduce<float>;
template class SparseAllReduce<double>;
template class SparseAllReduce<std::int32_t>;
template class SparseAllReduce<std::int64_t>;

}  // namespace sparsesync
