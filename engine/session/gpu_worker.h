// The GPU side of a worker beside its session: memory, a stream, and copies of host data.
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

/// A worker whose gradients come from the host, and whose results go there: of the command line.
/// Called by one thread; keeps its memory.
class GpuWorker {
 public:
  /// @param device   the GPU's number
  /// @param budget   bytes of the session's workspaces; nothing: as many as there are
  /// @param tensors  of a step
  /// @param peers    GPUs of the workers of this process, as DeviceMemory takes them
  /// @throws DeviceError, DeviceMemoryError
  GpuWorker(int device, std::optional<std::int64_t> budget, std::size_t tensors,
            std::span<const int> peers = {});

  /// For SessionOptions.
  OnDevice on_device();
  /// Connects this worker with the others by NCCL. Called by all of them at a time.
  /// @param words  as nccl_over() takes them
  /// @throws what nccl_over() throws
  std::unique_ptr<Transport> connect(std::unique_ptr<Transport> words,
                                     std::chrono::milliseconds deadline);
  /// Of the session's workspaces.
  const CountedMemory& workspaces() const { return workspaces_; }

  /// A copy of a gradient; valid until the next one of that tensor. Synchronizes the stream.
  /// @param indices, values  of the host, as Gradient::row_sparse() takes them
  Gradient place(std::size_t tensor, std::span<const Index> indices,
                 std::span<const std::byte> values);
  /// A copy of a result on the host; valid until the next one of that tensor. Synchronizes the
  /// stream.
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

/// The GPU of a worker, where several of a machine share its GPUs in turn.
/// @param on_this_machine  the worker's number among those of its machine
/// @throws DeviceError if there is none
int device_of_worker(int on_this_machine);

}  // namespace sparsesync
