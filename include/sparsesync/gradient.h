// Tensors as all workers know them, and one worker's gradient of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sparsesync/dtype.h"
#include "sparsesync/matrix.h"

namespace sparsesync {

/// An embedding-like tensor: `rows` rows of `width` elements.
struct TensorSpec {
  std::string name;
  Index rows = 0;
  Index width = 0;
  DType dtype = DType::f32;

  Index row_bytes() const { return width * element_bytes(dtype); }
  /// With all rows.
  Index dense_bytes() const { return rows * row_bytes(); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// One worker's gradient of one tensor: a view of the caller's memory.
class Gradient {
 public:
  enum class Layout : std::uint8_t { row_sparse, dense };

  /// @param indices  rows in any order, repeats allowed: those are summed
  /// @param values   a row of the tensor's width for each index, aligned for their dtype
  static Gradient row_sparse(std::span<const Index> indices, const std::byte* values) {
    return {Layout::row_sparse, indices, values};
  }
  /// @param values  all rows of the tensor, aligned for their dtype
  static Gradient dense(const std::byte* values) { return {Layout::dense, {}, values}; }
  /// Rows alone, for an announcement.
  static Gradient rows(std::span<const Index> indices) {
    static constexpr std::byte kNoValue{};
    return {Layout::row_sparse, indices, &kNoValue};
  }
  /// A worker that touched nothing.
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
