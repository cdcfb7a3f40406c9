// Memory resources for GPU memory and for host memory that a GPU reaches.
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

/// Allocates memory of one GPU from its own CUDA memory pool.
///
/// The pool keeps freed memory until this object is destroyed. Memory that was freed in a stream is
/// reused in the same stream without waiting. Safe to use from several threads at a time. See
/// examples/cpp/cuda.cpp.
/// @code
/// DeviceMemory memory(0);  // GPU 0
/// PinnedMemory pinned;
/// const auto stream = make_device_stream(memory, pinned);
/// @endcode
class DeviceMemory : public CountedMemory {
 public:
  /// @param device  the GPU's number
  /// @param budget  bytes that may be in use at the same time; nothing: no limit
  /// @param peers   GPUs of other workers of this process. They get direct access to the memory if
  ///     the machine supports it. Each peer adds some milliseconds whenever the pool grows. May
  ///     include `device`, which is ignored
  /// @throws DeviceError if the GPU does not exist, or the build has no CUDA
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

/// Allocates page-locked host memory, which a GPU reads, writes and copies without the host's help.
///
/// Safe to use from several threads at a time. See examples/cpp/cuda.cpp.
/// @code
/// PinnedMemory pinned(std::int64_t{1} << 30);  // at most 1 GiB
/// @endcode
class PinnedMemory : public CountedMemory {
 public:
  /// @param budget  bytes that may be in use at the same time; nothing: no limit
  explicit PinnedMemory(std::optional<std::int64_t> budget = std::nullopt)
      : CountedMemory(budget) {}

 private:
  /// @throws DeviceMemoryError
  /// @throws DeviceError if the build has no CUDA
  void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) override;
  void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                 Stream stream) noexcept override;
};

/// Allocates memory with the functions of another allocator, such as PyTorch's. Safe to use from
/// several threads at a time if the allocator is.
/// @code
/// BorrowedMemory memory({.allocate = [&](std::size_t bytes, Stream stream) {
///                          return pool.get(bytes, stream);
///                        },
///                        .deallocate = [&](void* pointer, std::size_t bytes, Stream stream) {
///                          pool.put(pointer, bytes, stream);
///                        }});
/// @endcode
class BorrowedMemory : public CountedMemory {
 public:
  /// The allocator's functions. Several threads may call them at a time.
  struct Calls {
    /// Allocates memory for work on `stream`. Throws if the memory is exhausted.
    std::function<void*(std::size_t bytes, Stream stream)> allocate;
    /// Frees memory of allocate(). Later work on `stream` may reuse it.
    std::function<void(void* pointer, std::size_t bytes, Stream stream)> deallocate;
  };
  /// @param calls   allocate at multiples of 256 bytes, as GPU allocators do
  /// @param budget  bytes that may be in use at the same time; nothing: no limit
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

/// Holds the size of a GPU's memory in bytes.
struct DeviceBytes {
  std::int64_t available = 0;  ///< free memory
  std::int64_t total = 0;      ///< free and used memory
};
/// Returns the free and total memory of a GPU.
/// @throws DeviceError if the GPU does not exist
DeviceBytes device_bytes(int device);

}  // namespace sparsesync
