// Workers by their numbers.
#pragma once

#include <compare>  // IWYU pragma: keep
#include <cstddef>

namespace sparsesync {

/// A worker's number, in [0, world size).
struct Rank {
  int value = 0;
  /// Returns the worker's index in a list of all.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(Rank, Rank) = default;
};

/// All workers, by rank: for (const Rank worker : Ranks(size)).
class Ranks {
 public:
  /// Iterates in a range-based for.
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
  /// Worker 0.
  static constexpr Iterator begin() { return {}; }
  constexpr Iterator end() const { return {Rank{size_}}; }

 private:
  int size_;
};

}  // namespace sparsesync
