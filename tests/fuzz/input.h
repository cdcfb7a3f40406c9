// A fuzzed input as a source of numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sparsesync::fuzz {

/// Reads numbers from the front of an input; zeros after its end.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t size = std::min(sizeof(T), bytes_.size());
    if (size > 0) std::memcpy(&value, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return value;
  }
  /// Returns a number in [0, count).
  std::size_t below(std::size_t count) { return take<std::uint16_t>() % count; }
  std::span<const std::byte> take_bytes(std::size_t most) {
    const std::span<const std::byte> taken = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace sparsesync::fuzz
