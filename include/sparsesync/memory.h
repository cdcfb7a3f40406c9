// Memory resources with a budget, for host memory. device.h has those for GPU memory.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <optional>

#include "sparsesync/context.h"

namespace sparsesync {

/// Counts the bytes in use and enforces a budget. Base class of all memory resources of the
/// library.
///
/// Safe to use from several threads at a time. Use HostMemory, DeviceMemory, PinnedMemory or
/// BorrowedMemory.
class CountedMemory : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) final;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                  Stream stream) noexcept final;
  void expect_room(std::size_t bytes) const final;
  /// Returns whether at most a quarter of the budget would be in use. True without a budget.
  bool has_to_spare(std::size_t bytes) const final;

  /// Returns the number of bytes in use.
  std::int64_t in_use() const;
  /// Returns the largest number of bytes that were in use at the same time.
  std::int64_t high_water() const;
  /// Returns the number of calls of allocate().
  std::int64_t allocations() const;

 protected:
  /// @param budget  bytes that may be in use at the same time; nothing: no limit
  explicit CountedMemory(std::optional<std::int64_t> budget) : budget_(budget) {}

 private:
  /// Returns the bytes in use after another `bytes` are allocated. The caller holds the lock.
  /// @throws BudgetError
  std::int64_t in_use_with(std::size_t bytes) const;
  // Implement allocate() and deallocate(). Several threads may call them at a time. The lock is not
  // held, because an allocator of the program may call this resource again.
  virtual void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) = 0;
  virtual void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                         Stream stream) noexcept = 0;

  mutable std::mutex mutex_;
  std::optional<std::int64_t> budget_;
  std::int64_t in_use_ = 0;
  std::int64_t high_water_ = 0;
  std::int64_t allocations_ = 0;
};

/// Allocates host memory from a std::pmr resource.
/// @code
/// HostMemory memory(std::int64_t{2} << 30);  // at most 2 GiB
/// Session session(std::move(transport), memory);
/// @endcode
class HostMemory : public CountedMemory {
 public:
  /// @param budget    bytes that may be in use at the same time; nothing: no limit
  /// @param upstream  the source of the memory. Outlives this object, and is safe to use from
  ///     several threads if this object is
  explicit HostMemory(std::optional<std::int64_t> budget = std::nullopt,
                      std::pmr::memory_resource* upstream = std::pmr::new_delete_resource())
      : CountedMemory(budget), upstream_(upstream) {}

 private:
  void* obtain(std::size_t bytes, std::size_t alignment, Stream) override {
    return upstream_->allocate(bytes, alignment);
  }
  void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                 Stream) noexcept override {
    upstream_->deallocate(pointer, bytes, alignment);
  }

  std::pmr::memory_resource* upstream_;
};

}  // namespace sparsesync
