// A FIFO queue in one block of memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync {

/// A FIFO queue in a ring buffer that only grows, so that a steady state allocates nothing. A
/// std::deque allocates and frees blocks as it advances. Popped elements keep their memory until
/// they are overwritten.
template <typename T>
class Queue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }

  /// Allocates the memory of this number of elements.
  void reserve(std::size_t elements) {
    if (elements > ring_.size()) grow(elements);
  }
  /// Appends an element.
  void push(T element) { push_left_over() = std::move(element); }
  /// Returns the slot for the next element. It holds a popped element, whose memory can be reused.
  T& left_over() {
    if (count_ == ring_.size()) grow(count_ == 0 ? 4 : 2 * count_);
    return ring_[(first_ + count_) % ring_.size()];
  }
  /// Appends the element in left_over().
  T& push_left_over() {
    T& element = left_over();
    ++count_;
    return element;
  }
  /// Returns the oldest element.
  /// @pre not empty
  T& front() { return (*this)[0]; }
  /// Removes the oldest element, which keeps its memory.
  /// @pre not empty
  void pop() {
    SPARSESYNC_EXPECT(count_, >, std::size_t{0});
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  /// Removes all elements, which keep their memory.
  void clear() { first_ = count_ = 0; }

  /// Returns an element.
  /// @param place  index counted from the oldest element
  T& operator[](std::size_t place) {
    SPARSESYNC_EXPECT(place, <, count_);
    return ring_[(first_ + place) % ring_.size()];
  }
  const T& operator[](std::size_t place) const {
    SPARSESYNC_EXPECT(place, <, count_);
    return ring_[(first_ + place) % ring_.size()];
  }

 private:
  void grow(std::size_t size) {
    std::vector<T> larger(size);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    ring_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace sparsesync
