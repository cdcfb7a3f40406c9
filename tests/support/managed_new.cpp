// With SPARSESYNC_TEST_DEVICE=cuda all that `new` gives is memory that the GPU reaches.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <new>

#include "tests/support/devices.h"

namespace {

using sparsesync::testing::device_memory;
using sparsesync::testing::on_cuda;

/// Large pieces of it, of which small ones are made. Never ends: objects of static storage may be
/// deleted after it would have.
std::pmr::synchronized_pool_resource& pool() {
  alignas(std::pmr::synchronized_pool_resource) static std::byte
      room[sizeof(std::pmr::synchronized_pool_resource)];
  static auto* const resource = new (room) std::pmr::synchronized_pool_resource(
      std::pmr::pool_options{0, std::size_t{1} << 20}, device_memory());
  return *resource;
}

// Before each piece stands how long it is.
constexpr std::size_t kHeader = 64;

void* take(std::size_t bytes) {
  void* const all =
      on_cuda() ? pool().allocate(bytes + kHeader, kHeader)
                : std::aligned_alloc(kHeader, (bytes + 2 * kHeader - 1) / kHeader * kHeader);
  if (all == nullptr) throw std::bad_alloc();
  *static_cast<std::size_t*>(all) = bytes + kHeader;
  return static_cast<std::byte*>(all) + kHeader;
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  void* const all = static_cast<std::byte*>(pointer) - kHeader;
  if (on_cuda()) {
    pool().deallocate(all, *static_cast<std::size_t*>(all), kHeader);
  } else {
    std::free(all);
  }
}

}  // namespace

void* operator new(std::size_t bytes) {
  return take(bytes);
}
void operator delete(void* pointer) noexcept {
  give_back(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  give_back(pointer);
}
