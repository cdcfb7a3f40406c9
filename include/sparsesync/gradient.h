// What a tensor is to the workers: all of them must agree on it.
#pragma once

#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/views.h"

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

}  // namespace sparsesync
