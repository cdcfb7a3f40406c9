// Memory of a GPU, and of the host that a GPU reaches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "sparsesync/context.h"
#include "sparsesync/device_stream.h"  // IWYU pragma: export
#include "sparsesync/memory.h"

namespace sparsesync {

/// Memory of a GPU, from a pool of its own that keeps what is given back until this ends. What is
/// given back in a stream serves again in that stream without waiting.
class DeviceMemory : public CountedMemory {
 public:
  /// @param device  its number
  /// @param peers   GPUs of other workers of this process: they access the memory directly where
  ///                the machine lets them. Each one makes the growth of the pool slower by some
  ///                milliseconds. The device itself is left out.
  /// @throws DeviceError if there is no such GPU, or the build has no CUDA
  explicit DeviceMemory(int device, std::optional<std::int64_t> budget = std::nullopt,
                        std::span<const int> peers = {});
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  /// @throws DeviceMemoryError
  void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) override;
  void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                 Stream stream) noexcept override;
  void share_with(int peer) const;

  int device_;
  void* pool_ = nullptr;  // a cudaMemPool_t
};

/// Memory of the host that stays where it is, so that a GPU copies to and from it, and reads and
/// writes it, without the host.
class PinnedMemory : public CountedMemory {
 public:
  explicit PinnedMemory(std::optional<std::int64_t> budget = std::nullopt)
      : CountedMemory(budget) {}

 private:
  /// @throws DeviceMemoryError, DeviceError if the build has no CUDA
  void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) override;
  void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                 Stream stream) noexcept override;
};

/// Memory from somebody else's allocator: PyTorch's, say.
class BorrowedMemory : public CountedMemory {
 public:
  /// The allocator's. They may come from several threads at a time.
  struct Calls {
    /// Memory for work on a stream; throws if there is none.
    std::function<void*(std::size_t bytes, Stream stream)> allocate;
    std::function<void(void* pointer, std::size_t bytes, Stream stream)> deallocate;
  };
  /// @param calls  give memory at multiples of 256 bytes, as allocators of GPUs do
  explicit BorrowedMemory(Calls calls, std::optional<std::int64_t> budget = std::nullopt)
      : CountedMemory(budget), calls_(std::move(calls)) {}

 private:
  void* obtain(std::size_t bytes, std::size_t, Stream stream) override {
    return calls_.allocate(bytes, stream);
  }
  void give_back(void* pointer, std::size_t bytes, std::size_t, Stream stream) noexcept override {
    calls_.deallocate(pointer, bytes, stream);
  }

  Calls calls_;
};

/// Bytes of a GPU's memory.
struct DeviceBytes {
  std::int64_t available = 0;
  std::int64_t total = 0;
};
/// @throws DeviceError if there is no such GPU
DeviceBytes device_bytes(int device);

}  // namespace sparsesync
