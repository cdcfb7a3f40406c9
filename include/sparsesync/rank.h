// Ranks of workers.
#pragma once

#include <compare>  // IWYU pragma: keep
#include <cstddef>

namespace sparsesync {

/// Identifies a worker: a number in [0, world size).
struct Rank {
  int value = 0;
  /// Returns the worker's index in an array of all workers.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(Rank, Rank) = default;
};

/// Lists all workers by rank, for a range-based `for`.
/// @code
/// for (const Rank worker : Ranks(size)) { ... }
/// @endcode
class Ranks {
 public:
  /// Iterates over ranks.
  struct Iterator {
    Rank at;
    constexpr Rank operator*() const { return at; }
    constexpr Iterator& operator++() {
      ++at.value;
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;
  };

  constexpr explicit Ranks(int size) : size_(size) {}
  /// Returns an iterator at rank 0.
  static constexpr Iterator begin() { return {}; }
  constexpr Iterator end() const { return {Rank{size_}}; }

 private:
  int size_;
};

}  // namespace sparsesync
