// A typed workspace that only grows. After warm-up, a step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/error.h"

namespace sparsesync {

/// Owns memory from the memory resource of a context. Elements are uninitialized until they are
/// written.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Buffer(const Context& context) : context_(context) {}
  Buffer(Buffer&& other) noexcept
      : context_(other.context_),
        data_(std::exchange(other.data_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { release(); }

  /// Returns the first `count` elements. Growing loses the contents.
  /// @throws BudgetError, std::bad_alloc; the contents are then lost, too, and the buffer stays
  ///         usable
  std::span<T> reserve(std::int64_t count) {
    SPARSESYNC_EXPECT(count, >=, std::int64_t{0});
    if (count > capacity_) grow(count, true);
    return first(count);
  }

  /// Does the same as reserve(), without slack. Use it for sizes that never change.
  std::span<T> reserve_exactly(std::int64_t count) {
    SPARSESYNC_EXPECT(count, >=, std::int64_t{0});
    if (count > capacity_) grow(count, false);
    return {data_, static_cast<std::size_t>(count)};
  }

  /// Returns the memory to the resource.
  void release() noexcept {
    if (data_ != nullptr) {
      context_.memory().deallocate(data_, bytes(capacity_), kAlignment, context_.stream());
    }
    data_ = nullptr;
    capacity_ = 0;
  }

  T* data() const { return data_; }
  /// Returns the first `count` elements of the reserved memory.
  std::span<T> first(std::int64_t count) const { return {data_, static_cast<std::size_t>(count)}; }
  std::int64_t capacity() const { return capacity_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::int64_t kLargest =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(T));

  static std::size_t bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }

  void grow(std::int64_t count, bool with_slack) {
    if (count > kLargest) {
      throw BudgetError(std::numeric_limits<std::int64_t>::max(), kLargest, "workspace");
    }
    // Release the old block first. Its contents are not kept, and the budget should not count both.
    release();
    MemoryResource& memory = context_.memory();
    // Allocate an eighth more than requested. Sparsity varies from step to step, and growth should
    // stop after a few steps.
    if (with_slack && count <= kLargest / 9 * 8 && memory.has_to_spare(bytes(count + count / 8))) {
      count += count / 8;
    }
    data_ = static_cast<T*>(memory.allocate(bytes(count), kAlignment, context_.stream()));
    capacity_ = count;
  }

  Context context_;
  T* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

/// Creates `count` empty buffers. Does not synchronize the stream.
template <typename T>
std::vector<Buffer<T>> buffers(const Context& context, std::size_t count) {
  std::vector<Buffer<T>> all;
  all.reserve(count);
  while (all.size() < count) all.emplace_back(context);
  return all;
}

}  // namespace sparsesync
