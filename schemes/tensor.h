// What a tensor is to the workers: all of them must agree on it.
#pragma once

#include <string>

#include "kernels/dtype.h"
#include "kernels/views.h"

namespace sparsesync {

/// An embedding-like tensor: `rows` rows of `width` elements.
struct TensorSpec {
  std::string name;
  Index rows = 0;
  Index width = 0;
  DType dtype = DType::f32;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

}  // namespace sparsesync
