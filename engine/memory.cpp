#include "engine/memory.h"

#include <algorithm>
#include <limits>

#include "kernels/error.h"

namespace sparsesync {

HostMemory::HostMemory(std::optional<std::int64_t> budget, std::pmr::memory_resource* upstream)
    : budget_(budget), upstream_(upstream) {}

void* HostMemory::allocate(std::size_t bytes, std::size_t alignment, Stream) {
  const std::lock_guard lock(mutex_);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t more =
      bytes > static_cast<std::size_t>(kMost) ? kMost : static_cast<std::int64_t>(bytes);
  const std::int64_t needed = more > kMost - in_use_ ? kMost : in_use_ + more;
  if (needed > budget_.value_or(kMost - 1)) {
    throw BudgetError(needed, budget_.value_or(kMost - 1), "workspace of a worker");
  }
  void* const pointer = upstream_->allocate(bytes, alignment);
  in_use_ = needed;
  high_water_ = std::max(high_water_, in_use_);
  ++allocations_;
  return pointer;
}

void HostMemory::deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                            Stream) noexcept {
  const std::lock_guard lock(mutex_);
  upstream_->deallocate(pointer, bytes, alignment);
  in_use_ -= static_cast<std::int64_t>(bytes);
}

std::int64_t HostMemory::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::int64_t HostMemory::high_water() const {
  const std::lock_guard lock(mutex_);
  return high_water_;
}

std::int64_t HostMemory::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

}  // namespace sparsesync
