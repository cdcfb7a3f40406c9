// With SPARSESYNC_TEST_DEVICE=cuda, `new` returns memory that the GPU can access, too.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>

#include "kernels/base/bits.h"
#include "tests/support/devices.h"

namespace {

using sparsesync::round_up;
using sparsesync::testing::on_cuda;
using sparsesync::testing::ReachableMemory;

// Set while CUDA or the pool allocates. Such memory comes from the host's heap.
thread_local bool inside = false;
struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = before; }
  bool before = inside;
};

/// Large blocks of reachable memory.
class Pieces : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    const Inside here;  // the pool also calls this when a thread ends
    return memory_.allocate(bytes, nullptr);
  }
  void do_deallocate(void* pointer, std::size_t bytes, std::size_t) override {
    const Inside here;
    memory_.deallocate(pointer, bytes, nullptr);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  ReachableMemory memory_;
};

/// Divides large blocks into small ones. Never destroyed, because objects of static storage may be
/// deleted later.
std::pmr::synchronized_pool_resource& pool() {
  struct Pool {
    Pieces pieces;
    std::pmr::synchronized_pool_resource small{std::pmr::pool_options{0, std::size_t{1} << 20},
                                               &pieces};
  };
  alignas(Pool) static std::byte room[sizeof(Pool)];
  static auto* const pool = new (room) Pool;
  return pool->small;
}

/// Returns whether there is a GPU. If not, cuda_main.cpp reports it later, and the program still
/// needs memory.
bool has_gpu() {
  static const bool has = [] {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  }();
  return has;
}

/// Header in front of each block: start of its memory, and its size in the pool.
struct Piece {
  void* begin;
  std::size_t bytes_of_pool;  // 0 if it is not from the pool
};

void* take(std::size_t bytes, std::size_t alignment) {
  alignment = std::max(alignment, alignof(std::max_align_t));
  // The pool is not trusted to align.
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
    const Inside here;
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
