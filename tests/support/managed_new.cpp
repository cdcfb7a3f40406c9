// With SPARSESYNC_TEST_DEVICE=cuda all that `new` gives is memory that the GPU reaches.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>

#include "kernels/bits.h"
#include "tests/support/devices.h"

namespace {

using sparsesync::round_up;
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

/// Whether there is a GPU. Where there is none the test says so (cuda_main.cpp), and needs memory
/// until then.
bool has_gpu() {
  static const bool has = [] {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  }();
  return has;
}

/// Stands before each piece: where its memory begins, and how long it is in the pool.
struct Piece {
  void* begin;
  std::size_t bytes_of_pool;  // 0: it is not of the pool
};

// What CUDA itself allocates on the way to such memory is the host's.
thread_local bool inside = false;
struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};

void* take(std::size_t bytes, std::size_t alignment) {
  alignment = std::max(alignment, alignof(std::max_align_t));
  // The pool is not trusted with alignments.
  const std::size_t all = bytes + alignment + sizeof(Piece);
  Piece piece{nullptr, 0};
  if (!inside && on_cuda()) {
    const Inside here;
    if (has_gpu()) piece = {pool().allocate(all, alignof(std::max_align_t)), all};
  }
  if (piece.begin == nullptr) piece.begin = std::malloc(all);
  if (piece.begin == nullptr) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(piece.begin);
  auto* const end = reinterpret_cast<Piece*>(round_up(begin + sizeof(Piece), alignment));
  end[-1] = piece;
  return end;
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const Piece piece = static_cast<Piece*>(pointer)[-1];
  if (piece.bytes_of_pool > 0) {
    pool().deallocate(piece.begin, piece.bytes_of_pool, alignof(std::max_align_t));
  } else {
    std::free(piece.begin);
  }
}

}  // namespace

void* operator new(std::size_t bytes) {
  return take(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* pointer) noexcept {
  give_back(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  give_back(pointer);
}
void operator delete(void* pointer, std::align_val_t) noexcept {
  give_back(pointer);
}
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept {
  give_back(pointer);
}
