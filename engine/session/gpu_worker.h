// A worker's GPU resources besides its session: memory, a stream, and copies of host data.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "sparsesync/device.h"
#include "sparsesync/result.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// GPU resources of a worker whose gradients and results are on the host, as in the command-line
/// tools. One thread calls it. It keeps its memory.
class GpuWorker {
 public:
  /// Creates the streams and makes the GPU current.
  /// @param device   index of the GPU
  /// @param budget   limit for the session's workspaces in bytes; no value: unlimited
  /// @param tensors  number of tensors
  /// @param peers    GPUs of this process's other workers, for DeviceMemory
  /// @throws DeviceError, DeviceMemoryError
  GpuWorker(int device, std::optional<std::int64_t> budget, std::size_t tensors,
            std::span<const int> peers = {});

  /// Returns the value of SessionOptions::device.
  OnDevice on_device();
  /// Connects this worker with the others through NCCL. All workers call this function together.
  /// @param words     transport of control messages, for nccl_over()
  /// @param deadline  timeout of the connection, and of later waits
  /// @throws what nccl_over() throws
  std::unique_ptr<Transport> connect(std::unique_ptr<Transport> words,
                                     std::chrono::milliseconds deadline);
  /// Returns the memory of the session's workspaces.
  const CountedMemory& workspaces() const { return workspaces_; }

  /// Copies a gradient to the GPU. The copy is valid until the next call for this tensor.
  /// Synchronizes the stream.
  /// @param indices, values  host memory, in the form of Gradient::row_sparse()
  Gradient place(std::size_t tensor, std::span<const Index> indices,
                 std::span<const std::byte> values);
  /// Copies a result to the host. The copy is valid until the next call for this tensor.
  /// Synchronizes the stream.
  TensorResult fetch(std::size_t tensor, const TensorResult& result);

 private:
  struct OnHost {
    std::vector<Index> indices;
    std::vector<std::byte> values;
  };

  DeviceMemory workspaces_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  std::unique_ptr<DeviceStream> of_session_;
  std::unique_ptr<DeviceStream> device_stream_;
  Context context_;
  std::vector<Buffer<Index>> indices_;     // [tensor]
  std::vector<Buffer<std::byte>> values_;  // [tensor]
  std::vector<OnHost> results_;            // [tensor]
};

/// Returns a worker's GPU. The workers of a machine use its GPUs in turn.
/// @param on_this_machine  the worker's index among the workers of its machine
/// @throws DeviceError if the machine has no GPU
int device_of_worker(int on_this_machine);

}  // namespace sparsesync
