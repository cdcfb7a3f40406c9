// The device that a test runs on: the CPU, or a GPU if SPARSESYNC_TEST_DEVICE=cuda. On a GPU, `new`
// returns memory that the GPU can access, too (managed_new.cpp), and each operation is waited for.
// The same test thus runs on both devices, as long as operations do not access arrays or variables
// on the stack.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/device_stream.h"
#include "sparsesync/memory.h"

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>
#endif

namespace sparsesync::testing {

inline bool on_cuda() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code sets it
  const char* const device = std::getenv("SPARSESYNC_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

#if defined(SPARSESYNC_WITH_CUDA) && !defined(SPARSESYNC_CUDA_EMULATED)
/// Memory that the host and the GPU reach: managed memory, or pinned memory if the host cannot
/// access managed memory while the GPU works.
/// @throws std::bad_alloc
inline void* allocate_reachable(std::size_t bytes) {
  static const bool is_managed = [] {
    int concurrent = 0;
    return cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0) ==
               cudaSuccess &&
           concurrent != 0;
  }();
  void* pointer = nullptr;
  const cudaError_t result = is_managed ? cudaMallocManaged(&pointer, bytes, cudaMemAttachGlobal)
                                        : cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable);
  if (result != cudaSuccess) throw std::bad_alloc();
  return pointer;
}

/// A cache of reachable memory, by stream and size. It never returns memory to the driver: that
/// would wait for the whole device, which may wait for a worker in another thread of this process.
/// Free lists are stored outside the memory, because the GPU may still be using it.
class ReachableMemory {
 public:
  /// @throws std::bad_alloc
  void* allocate(std::size_t bytes, const void* stream) {
    const std::size_t size = size_of(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& unused = unused_[{stream, size}];
    if (unused.empty()) return allocate_reachable(size);
    void* const pointer = unused.back();
    unused.pop_back();
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes, const void* stream) {
    const std::lock_guard lock(mutex_);
    unused_[{stream, size_of(bytes)}].push_back(pointer);
  }

 private:
  static std::size_t size_of(std::size_t bytes) {
    return std::bit_ceil(std::max<std::size_t>(bytes, 256));
  }
  std::mutex mutex_;
  std::map<std::pair<const void*, std::size_t>, std::vector<void*>> unused_;
};
#endif

/// Memory that both the device under test and the tests can access. On a GPU, released memory is
/// reused only in the same stream, where earlier work on it may not have finished.
class TestMemory : public HostMemory {
 public:
  explicit TestMemory(std::optional<std::int64_t> budget = std::nullopt) : HostMemory(budget) {}

 private:
  void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) override {
#if defined(SPARSESYNC_WITH_CUDA)
    if (on_cuda()) return obtain_reachable(bytes, stream);
#endif
    static_cast<void>(stream);
    return ::operator new(bytes, std::align_val_t(alignment));
  }
  void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                 Stream stream) noexcept override {
#if defined(SPARSESYNC_WITH_CUDA)
    if (on_cuda()) return give_back_reachable(pointer, bytes, stream);
#endif
    static_cast<void>(bytes);
    static_cast<void>(stream);
    ::operator delete(pointer, std::align_val_t(alignment));
  }

#if defined(SPARSESYNC_CUDA_EMULATED)
  static void* obtain_reachable(std::size_t bytes, Stream) {
    void* pointer = nullptr;
    if (cudaMallocManaged(&pointer, bytes, cudaMemAttachGlobal) != cudaSuccess) {
      throw std::bad_alloc();
    }
    return pointer;
  }
  static void give_back_reachable(void* pointer, std::size_t, Stream) {
    cudaFree(pointer);
  }
#elif defined(SPARSESYNC_WITH_CUDA)
  static void* obtain_reachable(std::size_t bytes, Stream stream) {
    return reachable().allocate(bytes, stream.handle);
  }
  static void give_back_reachable(void* pointer, std::size_t bytes, Stream stream) {
    reachable().deallocate(pointer, bytes, stream.handle);
  }
  /// Never destroyed, because static objects may release memory later.
  static ReachableMemory& reachable() {
    static auto* const memory = new ReachableMemory;
    return *memory;
  }
#endif
};

/// A stream of the device under test, if it has one.
class DeviceUnderTest {
 public:
  /// @param memory  for scratch; null: memory of this object
  explicit DeviceUnderTest(bool checked = true, MemoryResource* memory = nullptr) {
    if (!on_cuda()) return;
    device_stream_ =
        make_device_stream(memory != nullptr ? *memory : static_cast<MemoryResource&>(scratch_),
                           pinned_, {0, checked, std::nullopt});
  }

  Context context(MemoryResource& memory) const {
    return device_stream_ ? Context(memory, *device_stream_) : Context(memory);
  }
  DeviceStream* device_stream() const { return device_stream_.get(); }

 private:
  TestMemory scratch_;
  TestMemory pinned_;
  std::unique_ptr<DeviceStream> device_stream_;
};

/// Returns a context on the device under test that belongs to the calling thread.
inline const Context& own_context() {
  static thread_local TestMemory memory;
  static thread_local const DeviceUnderTest device(false);
  static thread_local const Context context = device.context(memory);
  return context;
}

}  // namespace sparsesync::testing
