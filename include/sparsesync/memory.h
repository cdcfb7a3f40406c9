// Memory resources, each with a budget that is kept: of the host here, of a GPU in
// device_memory.h.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <optional>

#include "sparsesync/context.h"

namespace sparsesync {

/// Counts the bytes that are in use, and keeps a budget. Safe from several threads.
class CountedMemory : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) final;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                  Stream stream) noexcept final;
  void expect_room(std::size_t bytes) const final;
  /// Returns true as long as no more than a quarter of the budget is in use.
  bool has_to_spare(std::size_t bytes) const final;

  std::int64_t in_use() const;
  /// The most bytes that were in use at a time.
  std::int64_t high_water() const;
  /// Calls of allocate() so far.
  std::int64_t allocations() const;

 protected:
  /// @param budget  bytes that may be in use at a time; nothing: as many as there are
  explicit CountedMemory(std::optional<std::int64_t> budget) : budget_(budget) {}

 private:
  /// With the lock held: bytes that would be in use with so many more.
  /// @throws BudgetError
  std::int64_t in_use_with(std::size_t bytes) const;
  // As MemoryResource has them, from several threads at a time. Without the lock: an allocator of
  // the program's may come back here.
  virtual void* obtain(std::size_t bytes, std::size_t alignment, Stream stream) = 0;
  virtual void give_back(void* pointer, std::size_t bytes, std::size_t alignment,
                         Stream stream) noexcept = 0;

  mutable std::mutex mutex_;
  std::optional<std::int64_t> budget_;
  std::int64_t in_use_ = 0;
  std::int64_t high_water_ = 0;
  std::int64_t allocations_ = 0;
};

/// Adapts a std::pmr resource.
class HostMemory : public CountedMemory {
 public:
  /// @param upstream  where the memory comes from; outlives this, and is itself safe from several
  ///                  threads where this is called by them
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
