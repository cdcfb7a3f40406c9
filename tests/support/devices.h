// The device that a test runs on: the CPU, or, with SPARSESYNC_TEST_DEVICE=cuda, a GPU. There all
// that `new` gives is memory that the GPU reaches, too (managed_new.cpp), and each operation is
// waited for; so a test is the same text for both, as long as what operations read and write lies
// in no array or variable of a function.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "engine/memory.h"
#include "kernels/context.h"
#include "kernels/device_queue.h"

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>
#endif

namespace sparsesync::testing {

inline bool on_cuda() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets it
  const char* const device = std::getenv("SPARSESYNC_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

/// Memory that the device under test and the tests reach.
inline std::pmr::memory_resource* device_memory() {
#if defined(SPARSESYNC_WITH_CUDA)
  class Managed : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t) override {
      if (void* const kept = take(bytes); kept != nullptr) return kept;
      void* pointer = nullptr;
      if (cudaMallocManaged(&pointer, bytes, cudaMemAttachGlobal) != cudaSuccess) {
        throw std::bad_alloc();
      }
      return pointer;
    }
#if defined(SPARSESYNC_CUDA_EMULATED)
    void* take(std::size_t) {
      return nullptr;
    }
    void do_deallocate(void* pointer, std::size_t, std::size_t) override {
      cudaFree(pointer);
    }
#else
    // Kept, by size: to free it would wait for all that the device does, and that may wait for a
    // worker which is another thread of this process.
    void* take(std::size_t& bytes) {
      bytes = std::bit_ceil(std::max(bytes, sizeof(void*)));
      const std::lock_guard lock(mutex_);
      void*& first = first_of(bytes);
      return first == nullptr ? nullptr : std::exchange(first, *static_cast<void**>(first));
    }
    void do_deallocate(void* pointer, std::size_t bytes, std::size_t) override {
      const std::lock_guard lock(mutex_);
      void*& first = first_of(std::bit_ceil(std::max(bytes, sizeof(void*))));
      *static_cast<void**>(pointer) = std::exchange(first, pointer);
    }
    void*& first_of(std::size_t power_of_two) {
      return unused_.at(static_cast<std::size_t>(std::countr_zero(power_of_two)));
    }
    std::mutex mutex_;
    std::array<void*, 64> unused_{};  // each holds the address of the next
#endif
    bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }
  };
  if (on_cuda()) {
    // Never ends: objects of static storage may be deleted after it would have.
    alignas(Managed) static std::byte room[sizeof(Managed)];
    static auto* const managed = new (room) Managed;
    return managed;
  }
#endif
  return std::pmr::new_delete_resource();
}

/// A queue of the device under test, if it has one.
class DeviceUnderTest {
 public:
  /// @param memory  for scratch; null: its own
  explicit DeviceUnderTest(bool checked = true, HostMemory* memory = nullptr) {
    if (!on_cuda()) return;
    queue_ = make_device_queue(memory != nullptr ? *memory : scratch_, pinned_,
                               {0, checked, std::nullopt});
  }

  Context context(MemoryResource& memory) const {
    return queue_ ? Context(memory, *queue_) : Context(memory);
  }
  DeviceQueue* queue() const { return queue_.get(); }

 private:
  HostMemory scratch_{std::nullopt, device_memory()};
  HostMemory pinned_{std::nullopt, device_memory()};
  std::unique_ptr<DeviceQueue> queue_;
};

/// A context on the device under test of the calling thread's own.
inline const Context& own_context() {
  static thread_local HostMemory memory{std::nullopt, device_memory()};
  static thread_local const DeviceUnderTest device(false);
  static thread_local const Context context = device.context(memory);
  return context;
}

}  // namespace sparsesync::testing
