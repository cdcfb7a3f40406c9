// Shapes of tensors, and one worker's gradient of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sparsesync/dtype.h"
#include "sparsesync/matrix.h"

namespace sparsesync {

/// Describes an embedding-like tensor: `rows` rows of `width` elements. The same on all workers.
struct TensorSpec {
  std::string name;  ///< unique within its bucket
  Index rows = 0;    ///< rows of the whole tensor
  Index width = 0;   ///< elements per row
  DType dtype = DType::f32;

  Index row_bytes() const { return width * element_bytes(dtype); }
  /// Returns the size of the whole tensor in bytes.
  Index dense_bytes() const { return rows * row_bytes(); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// Holds one worker's gradient of one tensor. A view of the caller's memory; see Session::submit()
/// for how long that memory must stay unchanged.
/// @code
/// const std::vector<Index> rows{7, 100};
/// const std::vector<float> values{1, 2, 3, 4};  // [2, width 2]
/// const auto gradient = Gradient::row_sparse(rows, std::as_bytes(std::span(values)).data());
/// @endcode
class Gradient {
 public:
  /// Names how the gradient is stored.
  enum class Layout : std::uint8_t { row_sparse, dense };

  /// Returns a view of a row-sparse gradient.
  /// @param indices  `[nnz]`: rows in any order; values of a repeated row are added
  /// @param values   `[nnz, width]`, aligned for their dtype
  static Gradient row_sparse(std::span<const Index> indices, const std::byte* values) {
    return {Layout::row_sparse, indices, values};
  }
  /// Returns a view of a dense gradient.
  /// @param values  `[rows, width]`: the whole tensor, aligned for its dtype
  static Gradient dense(const std::byte* values) { return {Layout::dense, {}, values}; }
  /// Returns row indices without values, for Session::announce().
  static Gradient rows(std::span<const Index> indices) {
    static constexpr std::byte kNoValue{};
    return {Layout::row_sparse, indices, &kNoValue};
  }
  /// Returns the gradient of a worker whose batch touched no row.
  static Gradient empty() { return row_sparse({}, nullptr); }

  Layout layout() const { return layout_; }
  std::span<const Index> indices() const { return indices_; }
  const std::byte* values() const { return values_; }

 private:
  Gradient(Layout layout, std::span<const Index> indices, const std::byte* values)
      : layout_(layout), indices_(indices), values_(values) {}
  Layout layout_;
  std::span<const Index> indices_;
  const std::byte* values_;
};

}  // namespace sparsesync
