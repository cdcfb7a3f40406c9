#include "engine/session/gpu_worker.h"

#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"
#include "sparsesync/transports/nccl.h"

namespace sparsesync {

GpuWorker::GpuWorker(int device, std::optional<std::int64_t> budget, std::size_t tensors,
                     std::span<const int> peers)
    : workspaces_(device, budget, peers),
      memory_(device, std::nullopt, peers),
      of_session_(make_device_stream(workspaces_, pinned_, {device, false, std::nullopt})),
      device_stream_(make_device_stream(memory_, pinned_, {device, false, std::nullopt})),
      context_(memory_, *device_stream_),
      indices_(buffers<Index>(context_, tensors)),
      values_(buffers<std::byte>(context_, tensors)),
      results_(tensors) {
  device_stream_->make_current();
}

OnDevice GpuWorker::on_device() {
  return {of_session_.get(), &workspaces_, &pinned_};
}

std::unique_ptr<Transport> GpuWorker::connect(std::unique_ptr<Transport> words,
                                              std::chrono::milliseconds deadline) {
  return nccl_over(std::move(words), {device_stream_->device(), &workspaces_, &pinned_, deadline});
}

Gradient GpuWorker::place(std::size_t tensor, std::span<const Index> indices,
                          std::span<const std::byte> values) {
  const std::span<Index> to = indices_[tensor].reserve(std::ssize(indices));
  sparsesync::upload(context_, std::as_bytes(indices), std::as_writable_bytes(to).data());
  std::byte* const to_values = values_[tensor].reserve(std::ssize(values)).data();
  sparsesync::upload(context_, values, to_values);
  synchronize(context_);
  return Gradient::row_sparse(to, to_values);
}

TensorResult GpuWorker::fetch(std::size_t tensor, const TensorResult& result) {
  OnHost& host = results_[tensor];
  host.indices.resize(result.indices.size());
  fetch_numbers(context_, result.indices, host.indices);
  host.values.resize(result.values.as_bytes().size());
  sparsesync::fetch(context_, result.values.as_bytes(), host.values.data());
  TensorResult on_host = result;
  on_host.indices = host.indices;
  on_host.values.data = host.values.data();
  return on_host;
}

int device_of_worker(int on_this_machine) {
  expect_device(0);
  return on_this_machine % device_facts().devices;
}

}  // namespace sparsesync
