// A queue in one block of memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync {

/// First in, first out, in a block that only grows: std::deque takes and gives back blocks as it
/// moves on, and a steady state allocates nothing. Elements that were popped keep their memory
/// until they are overwritten.
template <typename T>
class Queue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }

  /// Puts an element behind all others.
  void push(T element) { push_left_over() = std::move(element); }
  /// The place of the next element. It holds one that was popped, whose memory serves again.
  T& left_over() {
    if (count_ == ring_.size()) grow();
    return ring_[(first_ + count_) % ring_.size()];
  }
  /// Puts left_over() behind all others.
  T& push_left_over() {
    T& element = left_over();
    ++count_;
    return element;
  }
  /// The first one. @pre not empty
  T& front() { return (*this)[0]; }
  /// Takes it away; it keeps its memory. @pre not empty
  void pop() {
    SPARSESYNC_EXPECT(count_, >, std::size_t{0});
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  /// Takes all of them away.
  void clear() { first_ = count_ = 0; }

  /// @param place  counted from the front
  T& operator[](std::size_t place) {
    SPARSESYNC_EXPECT(place, <, count_);
    return ring_[(first_ + place) % ring_.size()];
  }
  const T& operator[](std::size_t place) const {
    SPARSESYNC_EXPECT(place, <, count_);
    return ring_[(first_ + place) % ring_.size()];
  }

 private:
  void grow() {
    std::vector<T> larger(count_ == 0 ? 4 : 2 * count_);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    ring_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace sparsesync
