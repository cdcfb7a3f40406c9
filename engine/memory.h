// Memory of the host, with a budget that is kept.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <optional>

#include "kernels/context.h"

namespace sparsesync {

/// Adapts a std::pmr resource; counts the bytes that are in use. Safe from several threads.
class HostMemory : public MemoryResource {
 public:
  /// @param budget    bytes that may be in use at a time; nothing: as many as there are
  /// @param upstream  where the memory comes from; outlives this
  explicit HostMemory(std::optional<std::int64_t> budget = std::nullopt,
                      std::pmr::memory_resource* upstream = std::pmr::new_delete_resource());

  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                  Stream stream) noexcept override;

  std::int64_t in_use() const;
  /// The most bytes that were in use at a time.
  std::int64_t high_water() const;
  /// Calls of allocate() so far.
  std::int64_t allocations() const;

 private:
  mutable std::mutex mutex_;
  std::optional<std::int64_t> budget_;
  std::pmr::memory_resource* upstream_;
  std::int64_t in_use_ = 0;
  std::int64_t high_water_ = 0;
  std::int64_t allocations_ = 0;
};

}  // namespace sparsesync
