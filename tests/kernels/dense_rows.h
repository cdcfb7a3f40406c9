// Dense matrices of random rows at any address, with the expected result of compact() row by row.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/base/bits.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync::testing {

/// A matrix with zero and nonzero rows.
template <typename T>
class DenseRows {
 public:
  /// @param offset   distance in bytes from a multiple of 64
  /// @param density  share of nonzero rows. Zero rows contain zeros of both signs.
  DenseRows(Random& random, Index rows, Index width, Index offset, double density)
      : DenseRows(random, rows, width, offset, [&](Index) { return random.uniform() < density; }) {}

  /// @param is_nonzero  is_nonzero(row), called for each row in order
  template <typename Choose>
  requires std::is_invocable_r_v<bool, Choose, Index> DenseRows(Random& random, Index rows,
                                                                Index width, Index offset,
                                                                Choose&& is_nonzero)
      : rows_(rows),
        width_(width),
        bytes_(static_cast<std::size_t>(rows * width) * sizeof(T) + 128),
        begin_(round_up<Index>(address(), 64) - address() + offset) {
    // Surround the matrix with nonzero bytes, so that reads outside of it show.
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0x11});
    std::vector<T> row(static_cast<std::size_t>(width));
    for (Index i = 0; i < rows; ++i) {
      for (T& element : row) element = value_of<T>(random.below(4) == 0 ? -0.0 : 0.0);
      if (is_nonzero(i)) {
        const Index elements = random.below(2) == 0 ? 1 : 1 + random.below(width);
        for (Index k = 0; k < elements; ++k) {
          const auto number = static_cast<double>(1 + random.below(255));
          row[static_cast<std::size_t>(random.below(width))] = value_of<T>(number);
        }
        nonzero_.push_back(i);
      }
      if (width > 0) {
        std::memcpy(at(i), row.data(), row.size() * sizeof(T));
      }
    }
  }

  ConstMatrix matrix() const {
    return {bytes_.data() + begin_, ValueTraits<T>::dtype, rows_, width_};
  }
  /// Returns the nonzero rows.
  const std::vector<Index>& nonzero() const { return nonzero_; }
  std::vector<T> row(Index i) const {
    std::vector<T> elements(static_cast<std::size_t>(width_));
    std::memcpy(elements.data(), bytes_.data() + begin_ + i * matrix().row_bytes(),
                elements.size() * sizeof(T));
    return elements;
  }

 private:
  Index address() const {
    return static_cast<Index>(reinterpret_cast<std::uintptr_t>(bytes_.data()));
  }
  std::byte* at(Index i) { return bytes_.data() + begin_ + i * matrix().row_bytes(); }

  Index rows_ = 0;
  Index width_ = 0;
  std::vector<std::byte> bytes_;
  Index begin_ = 0;
  std::vector<Index> nonzero_;
};

/// Chooses rows for DenseRows in runs of `run` neighbours. Each run is chosen with probability
/// `density`.
inline auto in_runs(Random& random, Index run, double density) {
  return [&random, run, density, is_chosen = false](Index row) mutable {
    if (row % run == 0) is_chosen = random.uniform() < density;
    return is_chosen;
  };
}

}  // namespace sparsesync::testing
