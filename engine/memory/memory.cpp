#include "sparsesync/memory.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace sparsesync {

void* CountedMemory::allocate(std::size_t bytes, std::size_t alignment, Stream stream) {
  std::int64_t needed = 0;
  {
    const std::lock_guard lock(mutex_);
    needed = in_use_ = in_use_with(bytes);
  }
  void* pointer = nullptr;
  try {
    pointer = obtain(bytes, alignment, stream);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    in_use_ -= static_cast<std::int64_t>(bytes);
    throw;
  }
  const std::lock_guard lock(mutex_);
  high_water_ = std::max(high_water_, needed);
  ++allocations_;
  return pointer;
}

void CountedMemory::deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                               Stream stream) noexcept {
  give_back(pointer, bytes, alignment, stream);
  const std::lock_guard lock(mutex_);
  in_use_ -= static_cast<std::int64_t>(bytes);
}

void CountedMemory::expect_room(std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  static_cast<void>(in_use_with(bytes));
}

std::int64_t CountedMemory::in_use_with(std::size_t bytes) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t more =
      bytes > static_cast<std::size_t>(kMost) ? kMost : static_cast<std::int64_t>(bytes);
  const std::int64_t needed = more > kMost - in_use_ ? kMost : in_use_ + more;
  if (needed > budget_.value_or(kMost - 1)) {
    throw BudgetError(needed, budget_.value_or(kMost - 1), "workspace of a worker");
  }
  return needed;
}

bool CountedMemory::has_to_spare(std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return !budget_ || (bytes <= static_cast<std::size_t>(*budget_) &&
                      in_use_ + static_cast<std::int64_t>(bytes) <= *budget_ / 4);
}

std::int64_t CountedMemory::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::int64_t CountedMemory::high_water() const {
  const std::lock_guard lock(mutex_);
  return high_water_;
}

std::int64_t CountedMemory::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

}  // namespace sparsesync
